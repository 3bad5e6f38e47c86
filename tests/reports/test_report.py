"""A report as a table, in a notebook, and for the libraries that people use."""

import html.parser
import json

import pytest

from dp_transforms import Plan, WindowReport, WindowSchedule, read_report
from dp_transforms.core.window_report import HeavyHitter
from dp_transforms.errors import UserError
from dp_transforms.reports import Report, ReportFileError, ReportHeader

SCHEDULE = WindowSchedule.fixed("2026-01-01", "2026-01-02", "1h")
PLAN = Plan.for_contributions(epsilon=2, delta=1e-9, schedule=SCHEDULE)
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
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    report = REPORT  # by its name, as DuckDB finds it
    assert duckdb.sql(QUERY).fetchall() == ROWS
    assert json.loads(report.to_arrow().schema.metadata[b"shh.header"])["guarantee"] == PLAN.guarantee
    assert report.to_arrow().schema.names[6:] == ["at_least_users", "noisy_count", "level"]
    assert Report(HEADER, ()).to_arrow().schema == report.to_arrow().schema
    assert polars.DataFrame(report)["rank"].to_list() == [row[1] for row in ROWS]


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
    with pytest.raises(UserError, match="exists and is never overwritten"):
        REPORT.write(tmp_path / "whole.avro")
    with pytest.raises(ReportFileError, match=r"both have the window that begins at 2026-01-01T00:00:00Z\. Name each"):
        read_report(*files, tmp_path / "whole.avro")
    Report(ReportHeader.of_plan(PLAN, "other", "events"), ()).write(tmp_path / "other.avro")
    with pytest.raises(ReportFileError, match="are not of one run: its run_id is 'run', and not 'other'"):
        read_report(*files, tmp_path / "other.avro")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReportFileError, match="there is no report in"):
        read_report(tmp_path / "empty")


class Table(html.parser.HTMLParser):
    """The tags and the texts of cells."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        assert not attrs
        self.tags.add(tag)
        if tag in ("td", "th", "caption", "p"):
            self.cells.append("")

    def handle_data(self, data):
        self.cells[-1] += data


def test_a_notebook_shows_the_largest_items_of_the_latest_window_as_text():
    hostile = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "&lt;b&gt;", "a\u202eb", "two\nlines"]
    many = window(9, **{label: 100 - number for number, label in enumerate([*hostile, *"ghijklmn"])})
    shown = Table(Report(HEADER, (window(8, g=1), many))._repr_html_())
    assert shown.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "bdi", "br", "p"}
    caption, *cells, promise = shown.cells
    assert "2026-01-01T09:00:00Z" in caption
    assert "the latest of 2 windows with heavy items; it has 13" in caption
    assert promise == PLAN.guarantee
    items = [label.replace("\u202e", "\\u202e").replace("\n", "\\n") for label in [*hostile, *"ghijk"]]
    assert cells[:8] == ["rank", "item", "users", "change", "1", items[0], "at least 100", "new"]
    assert cells[5::4] == items
    assert "No window reports any item." in Report(HEADER, ())._repr_html_()
