"""`shh replay` with a known domain, and in mode kms21: the command in this process, small logs."""

from __future__ import annotations

import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from dp_transforms.cli import plan, replay
from dp_transforms.errors import UserError
from dp_transforms.monitor.item_domain import ItemDomain

START = 1_767_225_600  # 2026-01-01T00:00:00Z
BUDGET = [
    *("--start", "2026-01-01", "--end", "2026-01-01T06:00:00Z", "--window", "1h"),
    *("--epsilon", "8", "--delta", "1e-6", "--mode", "hits"),
]
ITEMS = [*(f"heavy-{hour}" for hour in (0, 1, 3)), "light", *(f"nobody's-{number}" for number in range(100))]


def shh(*words: object, command: object = replay.command) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: pathlib.Path) -> pathlib.Path:
    """In hours 0, 1, 3 and 5 one item of 150 users, and in all hours one of 20."""
    rows = [(f"user-{n}", f"heavy-{hour}", START + 3600 * hour + n) for hour in (0, 1, 3, 5) for n in range(150)]
    rows += [(f"user-{n}", "light", START + 3600 * hour + n) for hour in range(6) for n in range(20)]
    rows.append(("user-1", "heavy-0", START - 1))
    user, item, time = zip(*rows, strict=True)
    path = tmp_path / "log.parquet"
    times = pa.array([second * 1_000_000 for second in time], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"user": user, "item": item, "timestamp": times}), path)
    return path


@pytest.fixture
def items(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "items.txt"
    path.write_text("\n".join(ITEMS))
    return path


def found(path: pathlib.Path) -> tuple[dict, dict[str, list[str]]]:
    first, *records = [json.loads(line) for line in path.read_text().splitlines()]
    windows = {record["window_start"][11:13]: [hit["item"] for hit in record["heavy_hitters"]] for record in records}
    return first["header"], windows


def test_items_of_the_list_are_found_and_others_are_left_out(
    log: pathlib.Path, items: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    output, plan_file = tmp_path / "report.jsonl", tmp_path / "plan.json"
    written = shh(*BUDGET, "--domain-file", items, "--threshold", 75, "--output", plan_file, command=plan.command)
    assert written.exit_code == 0, written.output
    result = shh(log, "--plan", plan_file, "--domain-file", items, "--output", output)
    assert result.exit_code == 0, result.output
    header, windows = found(output)
    assert windows == {"00": ["heavy-0"], "01": ["heavy-1"], "03": ["heavy-3"]}
    assert header["plan"]["domain"]["size"] == len(ITEMS)
    assert header["plan"]["domain"]["fingerprint"] == ItemDomain.of_ids(ITEMS).fingerprint
    assert "open" not in header["plan"]["shares"]
    assert "1 outside --start .. --end skipped, 150 of other items than --domain-file skipped" in result.stderr


def test_a_list_that_no_event_is_on(log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    items, output = tmp_path / "items.txt", tmp_path / "report.jsonl"
    items.write_text("something else\n")
    # With the default threshold the item, which nobody holds, would be found in one run of twenty.
    result = shh(log, *BUDGET, "--domain-file", items, "--threshold", 75, "--output", output)
    assert result.exit_code == 0, result.output
    assert "No event has an item of --domain-file." in result.stderr
    assert found(output)[1] == {}


def test_kms21_finds_nothing_in_a_small_log(log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "report.jsonl"
    result = shh(log, *BUDGET, "--mode", "kms21", "--output", output)
    assert result.exit_code == 0, result.output
    header, windows = found(output)
    assert windows == {}
    assert header["plan"]["hits"]["accountant"] == "threshold_monitor"
    assert (
        "No window had an item held by enough users. An hour's item (a story, a search, an error) is found from about "
        in result.stdout
    )


def refusal(*words: object) -> str:
    result = shh(*words)
    assert isinstance(result.exception, UserError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_what_does_not_fit_is_refused_before_anything_is_read(
    log: pathlib.Path, items: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for name, options in (("open", []), ("known", ["--domain-file", items])):
        written = shh(*BUDGET, *options, "--output", tmp_path / f"{name}.json", command=plan.command)
        assert written.exit_code == 0, written.output
    output = ["--output", tmp_path / "report.jsonl"]
    known, opened = ["--plan", tmp_path / "known.json"], ["--plan", tmp_path / "open.json"]
    assert refusal(log, *known, *output) == (
        "the plan is for a known domain of 104 items. Give the list of them with --domain-file."
    )
    assert "the plan is for an open domain. Leave --domain-file out" in refusal(
        log, *opened, "--domain-file", items, *output
    )
    items.write_text("\n".join(ITEMS[1:]))
    assert "the domain (103 items) is not the domain of the plan (104 items)" in refusal(
        log, *known, "--domain-file", items, *output
    )
    missing = tmp_path / "missing.txt"
    for words in ([*known], [*BUDGET]):
        assert f"{missing} cannot be read: No such file or directory" in refusal(
            log, *words, "--domain-file", missing, *output
        )
    assert "--threshold cannot be used with --plan" in refusal(
        log, *known, "--domain-file", items, "--threshold", "5", *output
    )
    assert not (tmp_path / "report.jsonl").exists()
