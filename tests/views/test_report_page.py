"""``shh show --html`` without a browser: the page tells what the report tells, loads nothing, and runs no label."""

import datetime
import re
import zoneinfo

import pytest

from dp_transforms.core.window_report import ABOVE, HeavyHitter
from dp_transforms.errors import UserError
from dp_transforms.reports import ReportHeader
from dp_transforms.views.page import report_columns as columns_module
from dp_transforms.views.page import report_page as page_module
from dp_transforms.views.page.report_columns import report_columns
from dp_transforms.views.page.report_page import report_page
from dp_transforms.views.report_words import shown_text
from tests.helpers.calibrated_plans import COUNTS
from tests.helpers.page_reports import HOSTILE, LABELS, STORIES, header_of, hourly_plan, reports_of
from tests.helpers.pages import Page, policy_hash, told
from tests.helpers.report_samples import HEADER, REPORTS, report

UTC = datetime.UTC
PLAN = hourly_plan()
EVIL = {
    "an end of the data": "</script><script>alert(1)</script>",
    "an entity": "&lt;b&gt;&amp;",
    "an attribute": "\"' onerror=alert(1) x=",
    "a template": "$title ${data} {{x}}",
    "control": HOSTILE,
}


def page_of(reports, header=None, **options):
    return Page(report_page(header or header_of(PLAN), reports, UTC, **options))


def in_words(hitter):
    return f"at least {hitter.at_least_users:,} users" if hitter.at_least_users else f"level {hitter.level:,}"


def test_a_page_tells_all_that_the_report_tells_and_nothing_else():
    reports = reports_of(PLAN, STORIES)
    page = page_of(reports)
    assert told(page.data["columns"]) == {
        (each.window_start / 1000, each.window_end / 1000, hitter.item, in_words(hitter))
        for each in reports
        for hitter in each.heavy_hitters
    }
    windows = page.data["columns"]["windows"]
    assert (windows["count"], windows["step"]) == (5, 3_600_000)
    text = " ".join(page.texts)
    assert PLAN.guarantee in text
    assert PLAN.fingerprint[:16] in text
    for tests in (1, 10):
        assert f"{PLAN.found_from(tests):,} users" in page.texts


@pytest.mark.parametrize(
    ("reports", "plan"),
    [
        (REPORTS, None),  # of several streams
        (LABELS, None),
        ([report(w, HeavyHitter("a", None, 4000 + w), HeavyHitter("b", None, -3)) for w in (0, 1, 5, 9)], COUNTS),
    ],
    ids=["all kinds", "labels", "counts on the windows of a plan"],
)
def test_columns_hold_every_pair_of_every_mode(reports, plan):
    columns = report_columns(reports, plan)
    several = len({each.stream for each in reports}) > 1
    expected = {
        (each.window_start / 1000, each.window_end / 1000, f"{each.stream}: {label}" if several else label)
        for each in reports
        for label in (shown_text(hitter.item) for hitter in each.heavy_hitters)
    }
    assert {found[:3] for found in told(columns.as_json())} == expected
    assert (columns.windows.step > 0) == (plan is not None)
    assert all(0 <= state.size_class < len(columns.classes) for state in columns.states)


def test_the_policy_lets_run_our_scripts_alone_and_load_nothing():
    page = page_of(reports_of(PLAN, STORIES))
    assert page.policy["default-src"] == ["'none'"]
    assert page.policy["script-src"] == [policy_hash(script) for script in page.scripts]
    assert page.policy["style-src"] == [policy_hash(style) for style in page.styles]
    assert set(page.policy) == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
    assert not {"src", "srcset", "action", "style", "integrity"} & page.attributes
    assert not {name for name in page.attributes if name.startswith("on")}
    assert {value for tag, name, value in page.values if name == "href"} == {"#run", "#promise"}
    assert len(page.scripts) == 3


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
def test_no_text_of_a_report_becomes_a_tag_a_script_or_a_hidden_sign(evil):
    """Wherever it stands."""
    plain, text = (
        report_page(
            ReportHeader(words, words, words, {"x": words}),
            [report(0, HeavyHitter(words, ABOVE, None), HeavyHitter("a", ABOVE, None))],
            UTC,
            {"a": words},
            "",
        )
        for words in ("harmless", evil)
    )
    page, harmless = Page(text), Page(plain)
    for name in ("tags", "attributes", "scripts", "policy"):
        assert getattr(page, name) == getattr(harmless, name)
    assert text.count("<script") == plain.count("<script")
    odd = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\u200b-\u200f\ufeff]")
    assert not odd.search(text)
    assert shown_text(evil) in page.data["columns"]["labels"]


def test_a_report_that_no_browser_can_hold_is_refused(monkeypatch):
    reports = reports_of(PLAN, STORIES)
    monkeypatch.setattr(page_module, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match="--last"):
        report_page(header_of(PLAN), reports, UTC)
    monkeypatch.setattr(columns_module, "MOST_STATES", 3)
    with pytest.raises(UserError, match="--last"):
        report_columns(reports, PLAN)


def test_a_page_without_a_readable_plan_or_without_windows_says_so():
    empty = page_of([], header=HEADER)
    assert empty.data["columns"]["presence"] == []
    assert any("No item was named." in text for text in empty.texts)
    assert any("cannot read the plan" in text for text in page_of(LABELS, header=HEADER).texts)


def test_titles_stand_for_labels_and_times_for_a_zone():
    zone = zoneinfo.ZoneInfo("Asia/Kolkata")
    titles = {"first": "First, of all", "second": "Twice", "third": "Twice"}
    page = Page(report_page(header_of(PLAN), reports_of(PLAN, STORIES), zone, titles))
    columns = page.data["columns"]
    shown = dict(zip(columns["labels"], zip(columns["titles"], columns["names"], strict=True), strict=True))
    assert shown["first"] == ("First, of all", "First, of all")
    assert shown["second"] == ("Twice", "Twice (second)")
    assert shown["fourth"] == ("", "fourth")
    assert page.data["zone"] == "Asia/Kolkata"
    start = datetime.datetime.fromtimestamp(PLAN.schedule.start_seconds, zone)
    assert f"{start:%Y-%m-%d %H:%M}" in " ".join(page.texts)
