"""A report as a table, in a notebook and for the libraries that people use; ranks and trends."""

import dataclasses
import html.parser
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms import HeavyHitter, Plan, Report, WindowReport, WindowSchedule, read_report
from dp_transforms.core.window_report import ABOVE, BETWEEN
from dp_transforms.plan.plan import plan_for
from dp_transforms.reports import ReportFileError, ReportHeader
from dp_transforms.reports.files import write_report_file
from dp_transforms.reports.trends import TrendRule, trends
from tests.helpers.audited_names import plan_in_rounds
from tests.helpers.calibrated_plans import COUNTS, IN_DOMAIN
from tests.helpers.page_reports import hourly_plan, reports_of

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


@pytest.mark.parametrize("label", HOSTILE)
def test_a_label_stays_text_on_one_line(tmp_path, label):
    shown = label.replace("\u202e", "\\u202e").replace("\n", "\\n")
    report = report_of(0, [label])
    one = Table(report._repr_html_())
    path = tmp_path / "report.jsonl"
    plan = Plan.for_hits(epsilon=2, delta=1e-9, schedule=TWO_DAYS)
    write_report_file(path, ReportHeader.of_plan(plan, "run", "events"), [report])
    whole = Table(read_report(path)._repr_html_())
    assert one.tags | whole.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "bdi", "br", "p"}
    assert one.cells[-5:] == [shown, "", "", "1", "1,234"]
    assert whole.cells[4:] == ["1", shown, "at least 1,234", ""]
    assert f"<p>{plan.guarantee}</p>" in read_report(path)._repr_html_()
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


@pytest.mark.parametrize("charge", ["contributions", "hits"])
def test_a_plan_shows_what_it_promises_and_declares(charge):
    plan = plan_for(charge, epsilon=2, delta=1e-9, schedule=TWO_DAYS)
    table = Table(plan._repr_html_())
    assert table.caption == plan.guarantee
    facts = dict(zip(table.cells[::2], table.cells[1::2], strict=True))
    assert facts["start"] == "2026-01-01T00:00:00Z"
    assert facts["end"] == "2026-01-03T00:00:00Z"
    assert (facts["window"], facts["charge"], facts["epsilon"]) == ("3,600 s", charge, "2.0")
    assert facts["threshold"] == f"{plan.threshold:,}"


HOURLY_20 = hourly_plan(20)
STORED = json.loads(HOURLY_20.to_json())
LEAST = TrendRule.of(STORED).least_change or 0


def told(plan, reports):
    """Of each window: item -> rank and change, in order; those that are gone with rank 0."""
    return [
        {each.hitter.item: (each.rank, each.change) for each in found.entries}
        | {hitter.item: (0, "gone") for hitter in found.gone}
        for found in trends(plan, reports)
    ]


def test_ranks_and_changes_by_hand():
    big = 10 * LEAST
    held = {
        "a": {0: big, 1: 2 * big, 2: 2 * big, 5: big},
        "b": {0: big, 1: big * 7 // 5, 2: big // 2},
        "small": {0: 0, 1: LEAST - 1, 2: 0},
        "late": {1: big, 2: big + LEAST},
    }
    assert told(STORED, reports_of(HOURLY_20, held)[::-1]) == [  # in whatever order they come
        {"a": (1, None), "b": (1, None), "small": (3, None)},
        {"a": (1, "rising"), "b": (2, "same"), "late": (3, "new"), "small": (4, "same")},
        {"a": (1, "same"), "late": (2, "same"), "b": (3, "falling"), "small": (4, "same")},
        {"a": (1, "new")},  # the window before named nothing, and has no report
    ]
    # Without a schedule the window before is the one that was reported before.
    assert told({}, reports_of(HOURLY_20, held))[-1] == {"a": (1, "same"), "late": (0, "gone"), "b": (0, "gone")} | {
        "small": (0, "gone")
    }


def test_the_least_change_is_what_the_plan_makes_of_its_noise():
    looks = HOURLY_20.paid_contributions
    assert 1.5 * looks.spacing <= LEAST * looks.weights[-1] < 1.5 * looks.spacing + looks.weights[-1]
    # A difference of two Laplace counts has a standard deviation of 2 scales.
    counts = TrendRule.of(json.loads(COUNTS.to_json())).least_change
    assert 6 * COUNTS.charged_hits.noise.scale <= counts < 6 * COUNTS.charged_hits.noise.scale + 1
    in_rounds = plan_in_rounds()
    (smallest,), _ = in_rounds.paid_contributions.listed.largest(np.array([in_rounds.paid_rounds.units[-1] // 64]))
    assert smallest < min(in_rounds.largest_in_rounds), "a second look has the least noise that a size allows for"
    found = TrendRule.of(json.loads(in_rounds.to_json())).least_change
    assert (found - 1) * smallest < 1.5 * in_rounds.paid_contributions.spacing <= found * smallest
    units = list(in_rounds.paid_rounds.units)
    swapped = {**json.loads(in_rounds.to_json()), "rounds": {"units": [units[1], units[0], *units[2:]]}}
    assert TrendRule.of(swapped).least_change == found, "blocks have sizes too, of the first round"
    small = {**json.loads(in_rounds.to_json()), "rounds": {"units": units[2:]}}
    small["contributions"] |= {"units": [units[2] // 2, units[2]], "weights": [5, 6], "spacing": 100}
    assert TrendRule.of(small).least_change == 30, "a second look has at least the least weight"
    hits = [HeavyHitter("a", BETWEEN, 500), HeavyHitter("b", ABOVE, None), HeavyHitter("c", BETWEEN, 700)]
    reports = [WindowReport("s", w * 10, w * 10 + 10, found, 1.0, 0.0, 1.0) for w, found in enumerate((hits, hits[1:]))]
    assert told({"hits": {"publishes": "names"}}, reports)[1] == {"b": (1, "same"), "c": (2, "same"), "a": (0, "gone")}
    windows = IN_DOMAIN.schedule
    overlap = (windows.window_seconds - windows.slide_seconds) * 1_000_000
    assert TrendRule.of(json.loads(IN_DOMAIN.to_json())).overlap == overlap


@pytest.mark.parametrize("window_seconds", [3600, 3 * 3600])
def test_a_block_is_compared_with_the_block_before(window_seconds):
    """Blocks of 4, 4, 2 and 2 windows: the third names nothing. The last two are of two parts of a run."""
    schedule = WindowSchedule.sliding("2026-01-01", "2026-01-02", window_seconds, 3600)
    named = ("ab", "ac", "", "a")
    reports = [
        WindowReport(
            *("s", schedule.window_start_micros(first), schedule.window_end_micros(last)),
            *([HeavyHitter(item, None, None, 1, 9) for item in items], 1.0, 0.0, 1.0),
        )
        for (first, last), items in zip(((0, 3), (4, 7), (8, 9), (10, 11)), named, strict=True)
        if items
    ]
    assert told({"schedule": dataclasses.asdict(schedule)}, reports) == [
        {"a": (1, None), "b": (1, None)},
        {"a": (1, "same"), "c": (1, "new"), "b": (0, "gone")},
        {"a": (1, "new")},
    ]


SIZES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 12).map(lambda size: size * LEAST // 3))


@given(st.lists(SIZES, min_size=1, max_size=6))
def test_any_windows_agree_with_a_slow_reference(windows):
    held = {}
    for window, sizes in enumerate(windows):
        for item, size in sizes.items():
            held.setdefault(item, {})[window] = size
    reports = reports_of(HOURLY_20, held)
    first = next((number for number, sizes in enumerate(windows) if sizes), 0)
    expected = []
    for number, sizes in enumerate(windows):
        if not sizes:
            continue
        before = windows[number - 1] if number else {}
        found = {}
        for item, size in sizes.items():
            change = "same"
            if item not in before:
                change = "new"
            elif abs(size - before[item]) >= LEAST:
                if Fraction(size) >= Fraction(3, 2) * before[item]:
                    change = "rising"
                elif Fraction(before[item]) >= Fraction(3, 2) * size:
                    change = "falling"
            rank = 1 + sum(other > size for other in sizes.values())
            found[item] = (rank, None if number == first else change)
        expected.append(found | dict.fromkeys(before.keys() - sizes.keys(), (0, "gone")))
    answers = told(STORED, reports)
    assert answers == expected
    for answer in answers:
        ranks = [rank for rank, _ in answer.values() if rank]
        assert ranks == sorted(ranks)


NO_PLANS = [
    {"schedule": 3, "contributions": []},
    {
        "schedule": {"slide_seconds": 3600, "window_seconds": 3600},
        "contributions": {"units": [], "weights": [], "spacing": 1},
    },
    {
        "schedule": {"slide_seconds": 3600, "window_seconds": 10**400},
        "contributions": {"units": [1], "weights": [0], "spacing": 1},
    },
    {"schedule": {"slide_seconds": -1}, "contributions": {"units": ["x"], "weights": [1], "spacing": 10**400}},
    {"schedule": {"slide_seconds": "\x1b"}, "contributions": {"units": [1], "weights": [1], "spacing": "y"}},
    {"schedule": None, "contributions": {**STORED["contributions"], "spacing": float("nan")}},
    {"rounds": {"units": [1]}, "contributions": STORED["contributions"]},
    {"hits": {"publishes": "counts", "epsilon_per_query": 0.0}},
    {"hits": {"publishes": "counts", "epsilon_per_query": 1e-300}},
    {"hits": None},
    {},
]


@pytest.mark.parametrize("plan", NO_PLANS)
def test_a_plan_that_is_none_names_no_trend(plan):
    rule = TrendRule.of(plan)
    assert rule.least_change is None
    assert rule.overlap in (None, 0)
    assert told(plan, reports_of(HOURLY_20, {"a": {0: 1, 1: 10**6}}))[1] == {"a": (1, "same")}
