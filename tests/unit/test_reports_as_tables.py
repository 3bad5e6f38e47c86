"""A report as a table, read by the libraries that people read it with."""

import json

import pytest

from dp_transforms import HeavyHitter, Plan, Report, WindowReport, WindowSchedule, read_report
from dp_transforms.reports import ReportFileError, ReportHeader

SCHEDULE = WindowSchedule.fixed("2026-01-01", "2026-01-02", "1h")
PLAN = Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE)
HEADER = ReportHeader.of_plan(PLAN, "run", "events")


def window(hour, **sizes):
    found = [HeavyHitter(item, None, None if item != "b" else 5, 1, size) for item, size in sizes.items()]
    start = SCHEDULE.window_start_micros(hour)
    return WindowReport("events", start, start + 3_600_000_000, found, 2.0, 1e-9, 2.0)


REPORT = Report(HEADER, (window(0, a=0, b=900), window(1, b=100, c=2000, d=100), window(7, a=50)))
ROWS = [  # hour, rank, item, change, at_least_users, noisy_count
    (0, 1, "b", None, 900, 5),
    (0, 2, "a", None, None, None),  # a size that is not stated
    (1, 1, "c", "new", 2000, None),
    (1, 2, "b", "falling", 100, 5),
    (1, 2, "d", "new", 100, None),
    (7, 1, "a", "new", 50, None),
]
QUERY = "select hour(window_start at time zone 'UTC'), rank, item, change, at_least_users, noisy_count from report"


def test_the_rows_are_ranked_and_every_library_reads_them():
    duckdb = pytest.importorskip("duckdb")
    report = REPORT  # by its name, as DuckDB finds it
    assert duckdb.sql(QUERY).fetchall() == ROWS
    assert report.top(1).column("item").to_pylist() == ["b", "c", "a"]
    assert report.top(2).num_rows == 6, "two items share a rank"
    assert json.loads(report.to_arrow().schema.metadata[b"shh.header"])["guarantee"] == PLAN.guarantee
    assert report.to_arrow().schema.names[6:] == ["at_least_users", "noisy_count", "level"]
    assert Report(HEADER, ()).to_arrow().schema == report.to_arrow().schema


def test_pandas_has_whole_numbers_and_moments_in_utc():
    pytest.importorskip("pandas")
    frame = REPORT.to_pandas()
    assert frame["noisy_count"].tolist()[0] == 5
    assert str(frame.dtypes["noisy_count"]) == "Int64"
    assert str(frame["window_end"].iloc[0]) == "2026-01-01 01:00:00+00:00"
    assert frame["item"].tolist() == [row[2] for row in ROWS]


def test_polars_takes_a_report_as_it_is():
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(REPORT)["rank"].to_list() == [row[1] for row in ROWS]


def test_a_report_is_its_windows_and_says_in_a_line_what_it_is():
    assert (list(REPORT), len(REPORT)) == (list(REPORT.windows), 3)
    assert repr(REPORT) == f"<Report: 6 items in 3 windows. {PLAN.guarantee}>"


def test_a_report_is_written_and_read_alone_or_in_parts(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for number, part in enumerate(REPORT):
        Report(HEADER, (part,)).write(folder / f"{number}.jsonl")
    REPORT.write(tmp_path / "whole.avro")
    files = sorted(folder.iterdir())
    assert read_report(tmp_path / "whole.avro") == read_report(folder) == read_report(*files) == REPORT
    with pytest.raises(ReportFileError, match="exists and is never overwritten"):
        REPORT.write(tmp_path / "whole.avro")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReportFileError, match="there is no report in"):
        read_report(tmp_path / "empty")
