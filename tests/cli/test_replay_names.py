"""`shh replay` in its default mode, names: the command in this process, small logs."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.helpers import forked
from tests.helpers.replay_logs import BUDGET, FEW, HOURS, MANY, START, log_rows, write_parquet
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import key_file

NAMES = ("--mode", "looks", "--usual-looks", 1, 10, "--most-looks", 20)


def found(path: pathlib.Path) -> tuple[dict, dict[str, list[str]]]:
    first, *records = [json.loads(line) for line in path.read_text().splitlines()]
    windows = {record["window_start"][11:13]: [hit["item"] for hit in record["heavy_hitters"]] for record in records}
    return first["header"], windows


@pytest.fixture
def log(tmp_path: pathlib.Path) -> pathlib.Path:
    write_parquet(tmp_path / "log.parquet", log_rows())
    return tmp_path / "log.parquet"


def test_heavy_items_are_named_also_where_no_mode_is_asked_for(log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "report.jsonl"
    done = shh("replay", log, *BUDGET[: BUDGET.index("--mode")], *NAMES[2:], "--output", output)
    assert done.returncode == 0, done.stderr
    header, windows = found(output)
    hours = [hour for hour in range(HOURS) if hour not in (2, 4)]
    assert windows == {f"{hour:02d}": [f"heavy-{hour}"] for hour in hours}
    assert "looks" in header["plan"]
    assert 10**12 // header["plan"]["looks"]["units"][0] == 20
    assert "did not count" not in done.stderr
    assert f"Read {len(log_rows()):,} rows" in done.stderr


def test_two_processes_name_what_one_names(log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Items of 300 users and of 5: no noise of the plan changes which are named."""
    key = key_file(tmp_path)
    workers = ["--", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    words = ["replay", str(log), *BUDGET, *map(str, NAMES), "--noise-key-file", key]
    found_by = {}
    for name, more in (("one", []), ("two", workers)):
        done = forked.shh(*words, "--output", f"{name}.jsonl", *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found_by[name] = found(tmp_path / f"{name}.jsonl")
    assert found_by["one"][1] == found_by["two"][1]
    assert found_by["two"][1] == {f"{hour:02d}": [f"heavy-{hour}"] for hour in range(HOURS) if hour not in (2, 4)}
    refused = shh(*words[:-2], "--output", tmp_path / "none.jsonl", *workers)
    assert "--noise-key-file" in refused.stderr, "each process would draw a key of its own"


def test_pairs_beyond_what_a_purse_pays_are_counted_for_the_operator(tmp_path: pathlib.Path) -> None:
    """Each of the users has 30 pairs, and 20 count."""
    path, output = tmp_path / "log.parquet", tmp_path / "report.jsonl"
    write_parquet(path, [(f"user-{n}", f"i{n} {item}", START + 60 * item) for n in range(FEW) for item in range(30)])
    done = shh("replay", path, *BUDGET, *NAMES, "--output", output)
    assert done.returncode == 0, done.stderr
    assert f" {FEW * 10:,} pairs (window, item) beyond --most-looks of a user did not count," in done.stderr
    assert found(output)[1] == {}
    assert "No window had an item held by enough users. An hour's item" in done.stdout


def test_the_largest_items_have_counts_and_the_report_tells_their_noise(
    log: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "report.jsonl"
    done = shh("replay", log, *BUDGET, *NAMES, "--counts-for", 3, "--output", output)
    assert done.returncode == 0, done.stderr
    first, *records = [json.loads(line) for line in output.read_text().splitlines()]
    plan = first["header"]["plan"]
    deviation = plan["counts"]["scale"] / 2**0.5
    counts = [hit["noisy_count"] for record in records for hit in record["heavy_hitters"]]
    assert len(counts) == HOURS - 2
    # MANY users hold each item; a false alarm has a probability below 1e-9.
    assert all(abs(count - MANY) < 7 * deviation for count in counts)
    assert f"with noise of standard deviation {deviation:.3g}; each user counts for at most 10 of them" in " ".join(
        done.stdout.split()
    )


def test_counts_belong_to_replays(log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    below = shh("replay", log, *BUDGET, *NAMES, "--counts-for", -1, "--output", tmp_path / "r.avro")
    assert "--counts-for must be" in below.stderr
    key = tmp_path / "noise.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    arguments = ("--folder", tmp_path, "--noise-key-file", key, "--output", tmp_path / "reports")
    stream = shh("stream", *arguments, *BUDGET, *NAMES, "--counts-for", 3, "--engine", "in-process")
    assert stream.returncode != 0
    assert "--counts-for cannot be used with a stream" in stream.stderr


def test_rounds_are_for_replays_of_a_whole_run(log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """They go over the whole log again and again. And the audit, which does not know them, says so."""
    plan, key = tmp_path / "plan.json", tmp_path / "noise.key"
    planned = shh("plan", *BUDGET, *NAMES, "--rounds", "--output", plan)
    assert planned.returncode == 0, planned.stderr
    assert "Looks are paid for in 4 rounds." in planned.stdout
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    given = ("--plan", plan, "--noise-key-file", key)
    replay = shh("replay", log, *given, "--state", tmp_path / "s", "--output", tmp_path / "r.avro")
    assert "--state cannot be used with a plan that has --rounds" in replay.stderr
    stream = shh("stream", "--folder", tmp_path, *given, "--output", tmp_path / "reports", "--engine", "in-process")
    assert "--rounds cannot be used with a stream" in stream.stderr
    assert "--plan has rounds of looks" in shh("audit", "--plan", plan).stderr


def test_a_known_domain_is_named_from_fewer_users_and_a_budget_is_kept_for_no_lone_items(
    log: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    items, output = tmp_path / "items.txt", tmp_path / "report.jsonl"
    items.write_text("heavy-0\nheavy-1\nheavy-3\nnobody's\n")
    done = shh("replay", log, *BUDGET, *NAMES, "--domain-file", items, "--output", output)
    assert done.returncode == 0, done.stderr
    header, windows = found(output)
    # An item that nobody holds is named in about one run of twenty; these three hours never fail.
    assert {hour: labels for hour, labels in windows.items() if hour in ("00", "01", "03")} == {
        f"0{hour}": [f"heavy-{hour}"] for hour in (0, 1, 3)
    }
    assert "open" not in header["plan"]["shares"]
    assert f"{MANY:,} of other items than --domain-file" not in done.stderr
    assert " of other items than --domain-file skipped" in done.stderr
