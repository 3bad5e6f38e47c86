"""A report as a table, in a notebook and for the libraries that people use; ranks and trends."""

import html.parser
import json

import pytest

from dp_transforms import Plan, WindowReport, WindowSchedule, read_report
from dp_transforms.core.window_report import HeavyHitter
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
    pytest.importorskip("pandas")
    report = REPORT  # by its name, as DuckDB finds it
    assert duckdb.sql(QUERY).fetchall() == ROWS
    assert report.top(1).column("item").to_pylist() == ["b", "c", "a"]
    assert report.top(2).num_rows == 6, "two items share a rank"
    assert json.loads(report.to_arrow().schema.metadata[b"shh.header"])["guarantee"] == PLAN.guarantee
    assert report.to_arrow().schema.names[6:] == ["at_least_users", "noisy_count", "level"]
    assert Report(HEADER, ()).to_arrow().schema == report.to_arrow().schema
    assert polars.DataFrame(report)["rank"].to_list() == [row[1] for row in ROWS]
    frame = report.to_pandas()
    assert (frame["noisy_count"][0], str(frame.dtypes["noisy_count"])) == (5, "Int64"), "whole numbers stay whole"
    assert str(frame["window_end"].iloc[0]) == "2026-01-01 01:00:00+00:00"
    assert frame["item"].tolist() == [row[2] for row in ROWS]


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


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "&lt;b&gt;",
    "a\u202eb",
    "two\nlines",
    "</td>",
]
TWO_DAYS = WindowSchedule.fixed("2026-01-01", "2026-01-03", 3600)


class Table(html.parser.HTMLParser):
    """The tags and the texts of cells."""

    def __init__(self, text):
        super().__init__()
        self.tags = set()
        self.cells = []
        self.caption = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        assert not attrs
        self.tags.add(tag)
        if tag in ("td", "th", "caption", "p"):
            self.cells.append("")
        elif tag == "br":
            self.cells[-1] += "|"

    def handle_endtag(self, tag):
        if tag in ("caption", "p"):
            self.caption += self.cells.pop()

    def handle_data(self, data):
        self.cells[-1] += data


def report_of(window, labels):
    found = [HeavyHitter(label, None, None, 1, 1234) for label in labels]
    start = TWO_DAYS.window_start_micros(window)
    return WindowReport("events", start, start + 3_600_000_000, found, 2.0, 1e-9, 2.0)


def test_a_label_stays_text_on_one_line():
    shown = sorted(label.replace("\u202e", "\\u202e").replace("\n", "\\n") for label in HOSTILE)
    report = report_of(0, HOSTILE)
    plan = Plan.for_hits(epsilon=2, delta=1e-9, schedule=TWO_DAYS)
    whole = Report(ReportHeader.of_plan(plan, "run", "events"), (report,))._repr_html_()
    one, many = Table(report._repr_html_()), Table(whole)
    assert one.tags | many.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "bdi", "br", "p"}
    assert sorted(one.cells[5::5]) == sorted(many.cells[5::4]) == shown
    assert f"<p>{plan.guarantee}</p>" in whole
    assert "(2, 1e-09)-DP for each user" in one.caption


def test_a_report_shows_the_largest_items_of_its_latest_window():
    plan = Plan.for_contributions(epsilon=2, delta=1e-9, schedule=TWO_DAYS)
    header = ReportHeader.of_plan(plan, "run", "events")
    sizes = [40, 9000, *range(300, 310)]
    found = [HeavyHitter(f"item-{size}", None, None, 1, size) for size in sizes]
    before = report_of(8, ["item-9000", "item-40"])
    shown = Report(header, (before, report_of(9, [])._replace(heavy_hitters=found)))._repr_html_()
    assert "The latest of 2 windows with heavy items: 2026-01-01T09:00:00Z to 2026-01-01T10:00:00Z" in shown
    table = Table(shown)
    rows = [table.cells[low : low + 4] for low in range(0, len(table.cells), 4)]
    assert rows[0] == ["rank", "item", "users", "change"]
    assert rows[1] == ["1", "item-9000", "at least 9,000", "rising"]
    assert rows[2] == ["2", "item-309", "at least 309", "new"]
    assert [row[0] for row in rows[1:11]] == [str(rank) for rank in range(1, 11)]
    assert rows[11:] == [["", "and 2 more", "", ""]]
    assert "No window reports any item." in Report(header, (report_of(9, []),))._repr_html_()
    quiet = (report_of(10, ["item-40"]), report_of(11, []))  # the page begins with the latest busy one too
    later = Report(header, (before, report_of(9, [])._replace(heavy_hitters=found), *quiet))._repr_html_()
    assert "The latest busy one of 3 windows with heavy items: 2026-01-01T09:00:00Z" in later
    assert Table(later).cells == table.cells
