"""The SQL of docs/other_languages.md runs on a report of a real run, and says what the report says."""

from __future__ import annotations

import collections
import datetime
import pathlib
import re

import duckdb
import pytest

from dp_transforms import HeavyHitter, Plan, WindowReport, WindowSchedule
from dp_transforms.reports import ReportHeader, write_report_file

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "other_languages.md"
HOUR = 3_600_000_000
ITEMS = {0: ["a", "b"], 1: ["a", "c"], 3: ["a", "c", "d'; --"], 4: ["c"]}  # by window; window 2 has none


@pytest.fixture
def connection(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> duckdb.DuckDBPyConnection:
    monkeypatch.chdir(tmp_path)
    schedule = WindowSchedule.fixed("2026-01-01", "2026-01-02", 3600)
    plan = Plan.calibrate(epsilon=2, delta=1e-9, schedule=schedule, mode="hits")
    reports = [
        WindowReport(
            *("events", schedule.window_start_micros(window), schedule.window_end_micros(window)),
            [HeavyHitter(item, None, None, 1, 10 * window + 5) for item in items],
            *(2.0, 1e-9, 2.0),
        )
        for window, items in ITEMS.items()
    ]
    write_report_file(tmp_path / "report.parquet", ReportHeader.of_plan(plan, "run", "events"), reports)
    return duckdb.connect()


def queries() -> list[str]:
    return re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_items_that_were_heavy_in_most_windows(connection: duckdb.DuckDBPyConnection) -> None:
    counts = collections.Counter(item for items in ITEMS.values() for item in items)
    last = {item: 10 * window + 5 for window, items in ITEMS.items() for item in items}
    expected = [(item, counts[item], last[item]) for item in sorted(counts, key=lambda item: (-counts[item], item))]
    assert connection.execute(queries()[0]).fetchall() == expected


def test_the_items_that_are_new_in_a_window(connection: duckdb.DuckDBPyConnection) -> None:
    new = [
        (datetime.datetime(2026, 1, 1, window, tzinfo=datetime.UTC), item)
        for window, items in ITEMS.items()
        for item in sorted(items)
        if item not in ITEMS.get(window - 1, [])
    ]
    found = connection.execute(queries()[1]).fetchall()
    assert [
        (start.astimezone(datetime.UTC) if start.tzinfo else start.replace(tzinfo=datetime.UTC), item)
        for start, item in found
    ] == new
    assert len(queries()) == 2
