"""What a notebook shows of plans and reports: released values as text, whatever a label holds."""

import html.parser

import pytest

from dp_transforms import HeavyHitter, Plan, Report, WindowReport, WindowSchedule, read_report
from dp_transforms.html_tables import html_table
from dp_transforms.reports import ReportHeader, write_report_file

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "&lt;b&gt;",
    "a\u202eb",
    "two\nlines",
    "</td>",
]
SCHEDULE = WindowSchedule.fixed("2026-01-01", "2026-01-03", 3600)


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
    start = SCHEDULE.window_start_micros(window)
    return WindowReport("events", start, start + 3_600_000_000, found, 2.0, 1e-9, 2.0)


@pytest.mark.parametrize("label", HOSTILE)
def test_a_label_stays_text_on_one_line(tmp_path, label):
    shown = label.replace("\u202e", "\\u202e").replace("\n", "\\n")
    report = report_of(0, [label])
    one = Table(report._repr_html_())
    path = tmp_path / "report.jsonl"
    plan = Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, mode="hits")
    write_report_file(path, ReportHeader.of_plan(plan, "run", "events"), [report])
    whole = Table(read_report(path)._repr_html_())
    assert one.tags | whole.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "bdi", "br", "p"}
    assert one.cells[-5:] == [shown, "", "", "1", "1,234"]
    assert whole.cells[4:] == ["1", shown, "at least 1,234", ""]
    assert f"<p>{plan.guarantee}</p>" in read_report(path)._repr_html_()
    assert "(2, 1e-09)-DP for each user" in one.caption


def test_a_report_shows_the_largest_items_of_its_latest_window():
    plan = Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE)
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


@pytest.mark.parametrize("mode", ["looks", "hits"])
def test_a_plan_shows_what_it_promises_and_declares(mode):
    plan = Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, mode=mode)
    table = Table(plan._repr_html_())
    assert table.caption == plan.guarantee
    facts = dict(zip(table.cells[::2], table.cells[1::2], strict=True))
    assert facts["start"] == "2026-01-01T00:00:00Z"
    assert facts["end"] == "2026-01-03T00:00:00Z"
    assert (facts["window"], facts["mode"], facts["epsilon"]) == ("3,600 s", mode, "2.0")
    assert facts["threshold"] == f"{plan.threshold:,}"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (HeavyHitter("a", "above", None), "above"),
        (HeavyHitter("a", "between", 1500), "about 1,500"),
        (HeavyHitter("a", None, None), ""),
        (HeavyHitter("a", None, None, 3, 92), "at least 92"),
        (HeavyHitter("a", None, 0, 3, 92), "about 0"),
    ],
)
def test_an_item_is_said_with_the_size_that_was_published(found, words):
    assert found.size_in_words == words


def test_a_long_label_is_cut():
    (cell,) = Table(html_table("", (), [["x" * 1000]])).cells
    assert cell == "x" * 80 + "..."
