"""`shh replay` as its users run it: files in, files out, one-line errors, nothing that leaks."""

from __future__ import annotations

import json
import os
import pathlib
import stat
import tempfile

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from dp_transforms.monitor.window_report import HeavyHitter
from tests.helpers import forked
from tests.helpers.replay_logs import BUDGET, FEW, MANY, START, iso, log_rows, write_log, write_parquet
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import error_line


@pytest.fixture
def parquet_log(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "log.parquet"
    write_parquet(path, log_rows())
    return path


def read_report(path: pathlib.Path) -> tuple[dict, list[dict]]:
    """Header and records, by each format's own library; times as ISO 8601."""
    if path.suffix == ".jsonl":
        first, *records = [json.loads(line) for line in path.read_text().splitlines()]
        return first["header"], records
    if path.suffix == ".avro":
        with path.open("rb") as file:
            reader = fastavro.reader(file)
            records, header = list(reader), json.loads(reader.metadata["shh.header"])
    else:
        table = pq.read_table(path)
        records, header = table.to_pylist(), json.loads(table.schema.metadata[b"shh.header"])
    for record in records:
        for name in ("window_start", "window_end"):
            record[name] = record[name].isoformat().replace("+00:00", "Z")
    return header, records


def items_by_window(records: list[dict]) -> dict[str, list[str]]:
    return {record["window_start"]: [hitter["item"] for hitter in record["heavy_hitters"]] for record in records}


EXPECTED = {f"2026-01-01T0{hour}:00:00Z": [f"heavy-{hour}"] for hour in (0, 1, 3, 5)}


@pytest.mark.parametrize(("source", "output"), [("csv", "jsonl"), ("jsonl", "avro"), ("avro", "parquet")])
def test_reads_and_writes_every_format(tmp_path: pathlib.Path, source: str, output: str) -> None:
    write_log(tmp_path / f"log.{source}")
    result = shh("replay", f"log.{source}", *BUDGET, "--output", f"report.{output}", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    header, records = read_report(tmp_path / f"report.{output}")
    assert items_by_window(records) == EXPECTED
    assert header["plan"]["epsilon"] == 8
    assert "(8, 1e-06)-differentially private" in result.stdout
    assert "heavy-5" in result.stdout
    for record in records:
        assert set(record) == {
            *("stream", "window_start", "window_end", "heavy_hitters"),
            *("epsilon_total", "delta", "epsilon_spent"),
        }
        for hitter in record["heavy_hitters"]:
            assert tuple(hitter) == HeavyHitter._fields
            assert (hitter["zone"] == "above") == (hitter["noisy_count"] is None)
    shown = shh("show", f"report.{output}", cwd=tmp_path)
    assert shown.returncode == 0
    assert "heavy-3" in shown.stdout
    assert "light" not in shown.stdout


def test_counts_mode_gives_a_noisy_count_for_every_item(parquet_log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    words = [*BUDGET, "--mode", "hits-with-counts", "--stream", "news", "--output", "report.jsonl"]
    result = shh("replay", parquet_log, *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    header, records = read_report(tmp_path / "report.jsonl")
    assert items_by_window(records) == EXPECTED
    hitters = [hitter for record in records for hitter in record["heavy_hitters"]]
    assert all(hitter["zone"] is None for hitter in hitters)
    scale = 1 / header["plan"]["hits"]["epsilon_per_query"]
    # False alarm below e^-40: noise beyond 40 times its scale.
    assert all(abs(hitter["noisy_count"] - MANY) < 40 * scale for hitter in hitters)
    assert {record["stream"] for record in records} == {"news"}


def test_ids_are_compared_as_text_across_types_and_formats(tmp_path: pathlib.Path) -> None:
    """The integer 7 of Parquet is the text 7 of CSV, and 007 another: 160 users as integers and 160 as text."""
    folder = tmp_path / "log"
    folder.mkdir()
    half = 160
    times = pa.array([START] * half, pa.int64())
    numbers = pa.table({"user": pa.array(range(half)), "item": pa.array([7] * half), "timestamp": times})
    pq.write_table(numbers, folder / "a.parquet")
    lines = "".join(f"{n},7,{START}\n{n},007,{START}\n" for n in range(half, 2 * half))
    (folder / "b.csv").write_text("user,item,timestamp\n" + lines)
    # The same users again, as text: they must not count twice.
    (folder / "c.jsonl").write_text(
        "".join(f'{{"user": "{n}", "item": 7, "timestamp": {START}}}\n' for n in range(half))
    )
    words = [*BUDGET, "--time-unit", "s", "--mode", "hits-with-counts", "--output", "r.jsonl"]
    result = shh("replay", folder, *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    header, records = read_report(tmp_path / "r.jsonl")
    (record,) = records
    found = {hitter["item"]: hitter["noisy_count"] for hitter in record["heavy_hitters"]}
    assert abs(found["7"] - 2 * half) < 40 / header["plan"]["hits"]["epsilon_per_query"]


def test_a_kept_key_and_a_chosen_run_id_exclude_each_other(parquet_log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Both again on a log that differs in one user give reports that differ in exactly what that user holds."""
    key = tmp_path / "noise.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    words = ["replay", parquet_log, *BUDGET, "--mode", "hits-with-counts", "--output", "report.jsonl"]
    stderr_text = error_line(shh(*words, "--noise-key-file", key, "--run-id", "nightly", cwd=tmp_path))
    assert "--run-id cannot be used with --noise-key-file" in stderr_text
    assert "Leave --run-id out" in stderr_text
    assert not (tmp_path / "report.jsonl").exists()
    reports = []
    for number, more in enumerate([["--noise-key-file", key], ["--noise-key-file", key], ["--run-id", "nightly"]]):
        output = tmp_path / f"report-{number}.jsonl"
        assert shh(*words[:-1], output, *more, cwd=tmp_path).returncode == 0
        reports.append(read_report(output))
    assert reports[2][0]["run_id"] == "nightly"
    run_ids = {header["run_id"] for header, _ in reports}
    assert len(run_ids) == 3
    assert len({json.dumps(items_by_window(records)) for _, records in reports}) == 1
    # Four noisy counts at a scale of about ten: all equal with probability far below 1e-4, were they not fresh.
    assert len({json.dumps(records) for _, records in reports}) == 3


def test_a_plan_file_replaces_the_budget_options(parquet_log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert shh("plan", *BUDGET, "--output", "plan.json", cwd=tmp_path).returncode == 0
    result = shh("replay", parquet_log, "--plan", "plan.json", "--output", "report.jsonl", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    header, records = read_report(tmp_path / "report.jsonl")
    assert items_by_window(records) == EXPECTED
    assert header["plan"] == json.loads((tmp_path / "plan.json").read_text())
    both = shh("replay", parquet_log, "--plan", "plan.json", "--epsilon", "3", "--output", "other.jsonl", cwd=tmp_path)
    assert "--epsilon" in error_line(both)
    weak = json.loads((tmp_path / "plan.json").read_text())
    weak["hits"]["epsilon_per_query"] *= 2
    (tmp_path / "weak.json").write_text(json.dumps(weak))
    tampered = shh("replay", parquet_log, "--plan", "weak.json", "--output", "other.jsonl", cwd=tmp_path)
    assert "weak.json" in error_line(tampered)


def test_bad_rows_go_to_the_dead_letter_file_and_nothing_else_is_lost(tmp_path: pathlib.Path) -> None:
    write_log(tmp_path / "log.jsonl")
    good = (tmp_path / "log.jsonl").read_text().splitlines()
    bad = [
        '{"user": "secret-cell',
        '{"item": "light", "timestamp": "2026-01-01"}',
        '{"user": "u", "item": "", "timestamp": 1}',
    ]
    (tmp_path / "log.jsonl").write_text("\n".join([bad[0], *good[:9], bad[1], *good[9:], bad[2]]) + "\n")
    words = ["replay", "log.jsonl", *BUDGET, "--output", "report.jsonl", "--dead-letter", "bad.jsonl"]
    result = shh(*words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert items_by_window(read_report(tmp_path / "report.jsonl")[1]) == EXPECTED
    entries = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [entry["position"] for entry in entries] == [1, 11, len(good) + 3]
    assert all(entry["file"].endswith("log.jsonl") and entry["reason"] for entry in entries)
    assert stat.S_IMODE((tmp_path / "bad.jsonl").stat().st_mode) == 0o600
    assert "3 unreadable" in result.stderr
    everything = result.stdout + result.stderr + (tmp_path / "bad.jsonl").read_text()
    assert "secret-cell" not in everything


def test_too_many_bad_rows_stop_the_run_and_publish_nothing(tmp_path: pathlib.Path) -> None:
    write_log(tmp_path / "log.csv")
    with (tmp_path / "log.csv").open("a") as file:
        file.writelines(["x,y,not-a-time\n"] * 40)
    words = ["replay", "log.csv", *BUDGET, "--output", "report.jsonl"]
    stopped = shh(*words, "--max-bad-fraction", "0.01", cwd=tmp_path)
    assert "--max-bad-fraction" in error_line(stopped)
    assert "40 of" in stopped.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv"]
    assert shh(*words, cwd=tmp_path).returncode == 0


def test_events_outside_the_range_are_skipped_and_only_the_operator_is_told(
    parquet_log: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    words = ["--start", "2026-01-01T01:00:00Z", "--end", "2026-01-01T05:00:00Z", *BUDGET[4:]]
    result = shh("replay", parquet_log, *words, "--output", "report.jsonl", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    header, records = read_report(tmp_path / "report.jsonl")
    assert list(items_by_window(records)) == ["2026-01-01T01:00:00Z", "2026-01-01T03:00:00Z"]
    assert f"{2 * (MANY + FEW):,} outside" in result.stderr
    assert "outside" not in result.stdout + json.dumps(header)


def test_windows_are_aligned_to_the_start_and_may_slide(parquet_log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    words = ["--start", "2025-12-31T23:30:00Z", "--end", "2026-01-01T06:00:00Z", "--window", "2h", "--slide", "1h"]
    result = shh("replay", parquet_log, *words, *BUDGET[6:], "--output", "report.jsonl", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    header, records = read_report(tmp_path / "report.jsonl")
    # Hour h of the log lies at h:00 .. h:05, in the windows that start at (h - 1):30 - 1h and (h - 1):30.
    found = items_by_window(records)
    assert found["2025-12-31T22:30:00Z"] == ["heavy-0"]
    assert sorted(found["2025-12-31T23:30:00Z"]) == ["heavy-0", "heavy-1"]
    assert found["2026-01-01T00:30:00Z"] == ["heavy-1"]
    assert {tuple(record["heavy_hitters"][0]) for record in records} == {HeavyHitter._fields}
    assert header["plan"]["schedule"]["slide_seconds"] == 3600
    # 6.5 hours of hourly slides, rounded up, and the window that began before the start.
    assert "8 windows" in header["guarantee"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["missing.parquet"], "missing.parquet"),
        (["log.parquet", "--user-field", "who"], "--user-field"),
        (["log.parquet", "--time-field", "item"], "--user-field, --item-field and --time-field must name three"),
        (["log.parquet", "--output", "report.txt"], ".avro"),
        (["log.parquet", "--output", "taken.avro"], "--output"),
        (["log.parquet", "--output", "no/such/folder.avro"], "No such file or directory"),
        (["log.parquet", "--output", "x" * 250 + ".avro"], "File name too long"),
        (["log.parquet", "--output", "same.jsonl", "--dead-letter", "./same.jsonl"], "name the same file"),
        (["log.parquet", "--stream", "a\x1bb"], "--stream"),
        (["log.parquet", "--run-id", ""], "--run-id"),
        (["log.parquet", "--dead-letter", "taken.avro"], "--dead-letter"),
        (["log.parquet", "--threshold", "5"], "--threshold"),
        (["log.parquet", "--noise-key-file", "short.key"], "32"),
        (["log.parquet", "--noise-key-file", "open.key"], "chmod"),
        (["log.parquet", "--plan", "missing.json"], "--plan"),
        (["numbers.parquet"], "--time-unit"),
    ],
)
def test_errors_are_one_line_that_names_the_remedy(
    parquet_log: pathlib.Path, tmp_path: pathlib.Path, words: list[str], named: str
) -> None:
    (tmp_path / "taken.avro").write_text("")
    numbers = pa.table({"user": ["a"], "item": ["b"], "timestamp": [START]})
    pq.write_table(numbers, tmp_path / "numbers.parquet")
    for name, size, mode in (("short.key", 31, 0o600), ("open.key", 32, 0o644)):
        (tmp_path / name).write_bytes(b"k" * size)
        (tmp_path / name).chmod(mode)
    output = [] if "--output" in words else ["--output", "report.avro"]
    budget = [] if "--plan" in words else BUDGET
    before = sorted(path.name for path in tmp_path.iterdir())
    assert named in error_line(shh("replay", *words, *budget, *output, cwd=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_missing_budget_options_are_named(parquet_log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    result = shh("replay", parquet_log, "--output", "r.avro", cwd=tmp_path)
    assert result.returncode == 2
    for option in ("--epsilon", "--delta", "--start", "--end", "--window"):
        assert option in result.stderr


def test_a_log_that_breaks_on_the_way_leaves_no_file(tmp_path: pathlib.Path) -> None:
    write_log(tmp_path / "log.parquet")
    content = bytearray((tmp_path / "log.parquet").read_bytes())
    content[40:400] = b"\xff" * 360  # the first pages; the footer, which the check at the start reads, is whole
    (tmp_path / "log.parquet").write_bytes(content)
    result = shh("replay", "log.parquet", *BUDGET, "--output", "report.avro", cwd=tmp_path)
    assert "log.parquet" in error_line(result)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.parquet"]


def test_beam_options_pass_through(parquet_log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    key = tmp_path / "noise.key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    workers = ["--", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    words = ["replay", parquet_log, *BUDGET, "--output", "report.jsonl"]
    for typo in ("--direct_num_worker=2", "runner=Flink"):
        assert "Beam has no option" in error_line(shh(*words, "--", typo, cwd=tmp_path))
    refused = shh(*words, *workers, cwd=tmp_path)
    assert "--noise-key-file" in error_line(refused)
    result = forked.shh(*words, "--noise-key-file", key, *workers, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert items_by_window(read_report(tmp_path / "report.jsonl")[1]) == EXPECTED


def test_planted_users_appear_nowhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 users that can be recognised, some of them in broken rows: in no report, log, error or file left behind."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    lines = [f'{{"user": "planted-{n}", "item": "news", "timestamp": "{iso(START + n)}"}}' for n in range(1000)]
    lines += [f'{{"user": "planted-{n}", "item": {{"planted-{n}": 1}}, "timestamp": 0}}' for n in range(5)]
    lines += [f'{{"user": "planted-{n}" "item"' for n in range(5)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    words = ["replay", "log.jsonl", *BUDGET, "--output", "report.jsonl", "--dead-letter", "bad.jsonl"]
    result = forked.shh(*words, cwd=tmp_path, TMPDIR=str(scratch))
    assert result.returncode == 0, result.stderr
    assert "news" in (tmp_path / "report.jsonl").read_text()
    assert "10 unreadable" in result.stderr
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    stopped = shh(*words, "--max-bad-fraction", "0", cwd=tmp_path, TMPDIR=str(scratch))
    texts = [result.stdout, result.stderr, stopped.stdout, stopped.stderr]
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "log.jsonl"]
    assert len(left) >= 2
    texts += [path.read_bytes().decode(errors="replace") for path in left]
    assert not any("planted" in text for text in texts)
