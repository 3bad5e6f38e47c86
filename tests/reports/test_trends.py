"""Ranks and trends of a report: by hand, against a slow reference, and without a plan."""

import pytest

from dp_transforms import Plan, WindowReport, WindowSchedule
from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter
from dp_transforms.reports.trends import TrendRule, trends
from tests.helpers.calibrated_plans import COUNTS
from tests.helpers.page_reports import hourly_plan, reports_of

HOURLY_20 = hourly_plan(20)
LEAST = TrendRule.of(HOURLY_20).least_change or 0


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
        "a": {0: big, 1: 3 * big // 2, 2: 3 * big // 2, 5: big},
        "b": {0: big, 1: big * 7 // 5, 2: big // 2},
        "small": {0: 0, 1: LEAST - 1, 2: 2 * LEAST - 1},
        "late": {1: big, 2: big + LEAST},
    }
    assert told(HOURLY_20, reports_of(HOURLY_20, held)[::-1]) == [  # in whatever order they come
        {"a": (1, None), "b": (1, None), "small": (3, None)},
        {"a": (1, "rising"), "b": (2, "same"), "late": (3, "new"), "small": (4, "same")},
        {"a": (1, "same"), "late": (2, "same"), "b": (3, "falling"), "small": (4, "rising")},
        {"a": (1, "new")},  # the window before named nothing, and has no report
    ]
    # Without a plan the window before is the one that was reported before, and no size is compared.
    *_, second, third = told(None, reports_of(HOURLY_20, held))[1:]
    assert second == {"a": (1, "same"), "late": (2, "same"), "b": (3, "same"), "small": (4, "same")}
    assert third == {"a": (1, "same")} | dict.fromkeys(("late", "b", "small"), (0, "gone"))


def test_hits_by_name_have_no_sizes_that_compare():
    plan = Plan.for_hits(epsilon=2, delta=1e-9, schedule=HOURLY_20.schedule)
    hits = [HeavyHitter("a", BETWEEN, 500), HeavyHitter("b", ABOVE, None), HeavyHitter("c", BETWEEN, 700)]
    windows = [reports_of(HOURLY_20, {"a": {number: 1}})[0] for number in range(2)]
    windows = [windows[0]._replace(heavy_hitters=hits), windows[1]._replace(heavy_hitters=hits[1:])]
    assert told(plan, windows)[1] == {"b": (1, "same"), "c": (2, "same"), "a": (0, "gone")}


def test_the_least_change_is_what_the_plan_makes_of_its_noise():
    paid = HOURLY_20.paid_contributions
    assert 1.5 * paid.spacing <= LEAST * paid.weights[-1] < 1.5 * paid.spacing + paid.weights[-1]
    # A difference of two Laplace counts has a standard deviation of 2 scales.
    counts = TrendRule.of(COUNTS).least_change
    assert 6 * COUNTS.charged_hits.noise.scale <= counts < 6 * COUNTS.charged_hits.noise.scale + 1


@pytest.mark.parametrize("hours", [1, 3])
def test_a_window_is_compared_with_the_one_that_ends_before_it(hours):
    """Or, where windows overlap, that begins a slide before it."""
    schedule = WindowSchedule.sliding("2026-01-01", "2026-01-02", 3600 * hours, 3600)
    plan = Plan.for_contributions(epsilon=2, delta=1e-9, schedule=schedule)
    assert TrendRule.of(plan).overlap == (hours - 1) * 3_600_000_000
    reports = [
        WindowReport(
            *("s", schedule.window_start_micros(window), schedule.window_end_micros(window)),
            *([HeavyHitter(item, None, None, 1, 9) for item in items], 1.0, 0.0, 1.0),
        )
        for window, items in ((3, "ab"), (4, "ac"), (6, "a"))
    ]
    assert told(plan, reports) == [
        {"a": (1, None), "b": (1, None)},
        {"a": (1, "same"), "c": (1, "new"), "b": (0, "gone")},
        {"a": (1, "new")},
    ]
