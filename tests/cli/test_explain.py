"""``shh explain``: the numbers are those of the plan, and a report that contradicts its plan is told."""

import dataclasses
import unicodedata

import pytest

from dp_transforms.core.window_report import ABOVE, HeavyHitter, report_of_window
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.files import write_report_file
from dp_transforms.views.page.promise import Budget, in_three_sentences
from tests.helpers.calibrated_plans import COUNTS, LABELS, OF_PUBLIC, short_contributions_plan
from tests.helpers.page_reports import HOSTILE, STORIES, header_of, hourly_plan, reports_of
from tests.helpers.shh_here import said

PLAN = hourly_plan()
REPORTS = reports_of(PLAN, STORIES)


@pytest.fixture
def explain(tmp_path):
    """Runs ``shh explain`` on a file of the reports; what it prints without line ends, its errors, its exit code."""

    def run(reports, *words, header=None):
        path = tmp_path / "report.avro"
        path.unlink(missing_ok=True)
        write_report_file(path, header or header_of(PLAN), reports)
        out, err, code = said("explain", path, *words)
        return " ".join(out.split()), err, code

    return run


def test_a_report_is_explained_with_the_numbers_of_its_run(explain):
    out, err, code = explain(REPORTS)
    assert (err, code) == ("", 0)
    assert PLAN.guarantee in out
    assert "4 items were named in 5 windows" in out
    assert f"epsilon: {PLAN.epsilon:g} for each user" in out
    assert PLAN.fingerprint in out
    assert "NO," not in out
    for sentence in in_three_sentences(Budget(PLAN.epsilon, PLAN.delta, PLAN.schedule.horizon)):
        assert sentence in out
    assert out.count(" yes: ") == 6


def first(**changes):
    """The first report alone, with changes."""
    return {"reports": [REPORTS[0]._replace(**changes)]}


def stated(**changes):
    return {"header": dataclasses.replace(header_of(PLAN), **changes)}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (stated(guarantee="(0.1, 0)-DP"), "The guarantee that the report states"),
        (stated(plan={**header_of(PLAN).plan, "epsilon": 0.1}), "The plan in the report"),
        (first(epsilon_total=0.1), "epsilon and delta of the plan"),
        (first(window_end=REPORTS[0].window_end + 1), "windows of the plan"),
        ({"reports": [*REPORTS, REPORTS[0]]}, "No window is there twice"),
        (first(stream="other"), "of the stream that the report names"),
        (first(heavy_hitters=[HeavyHitter("a", ABOVE, None)]), "What is said of items"),
        (first(heavy_hitters=[HeavyHitter("a", None, 7, 1, 5)]), "What is said of items"),
    ],
)
def test_a_report_that_contradicts_its_plan_is_told_and_fails(explain, change, told):
    out, err, code = explain(**{"reports": REPORTS, **change})
    assert code == 1
    assert "do not agree" in err
    (sentence,) = [part for part in out.split(" - ") if part.startswith("NO, this does not hold:")]
    assert told in sentence


@pytest.mark.parametrize(("size", "code"), [(50, 0), (49, 1)])
def test_least_users_are_explained_and_no_size_is_below(explain, size, code):
    plan = short_contributions_plan(least_users=50)
    report = report_of_window(plan, "events", 0, [HeavyHitter("a", None, None, 1, size)], plan.epsilon)
    out, _, ended = explain([report], header=ReportHeader.of_plan(plan, "run-1", "events"))
    assert ended == code
    assert "Each item states at least 50." in out
    assert "That it is k-anonymous for k = 50" in out
    assert out.count("one more") == 1, "what an exact count would show"


def test_what_a_hostile_report_says_is_shown_harmless(explain):
    out, _, code = explain([], header=ReportHeader(HOSTILE, HOSTILE, HOSTILE, {"epsilon": HOSTILE}))
    assert code == 1
    assert not [sign for sign in out if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp")]


@pytest.mark.parametrize(
    "plan", [short_contributions_plan(), LABELS, COUNTS, OF_PUBLIC], ids=lambda plan: plan.charge_in_words
)
def test_a_plan_is_explained_with_its_whole_contract(tmp_path, plan):
    (tmp_path / "plan.json").write_text(plan.to_json())
    text = " ".join(said("explain", "--plan", "plan.json", cwd=tmp_path)[0].split())
    for stated in (
        f"{plan.epsilon:g} for each user",
        f"{plan.delta:g} (1 in 1,000,000,000) for each user",
        "one user id with all of its events",
        "adding or removing a user",
        f"{plan.schedule.horizon:,} windows of 1h",
        plan.fingerprint,
        f"(users pay for {plan.charge_in_words})",
    ):
        assert stated in text, stated
    assert ("must be public" in text) == bool(plan.public_item_count)
