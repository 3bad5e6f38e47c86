"""Ranks and trends of a report: by hand, against a slow reference, and of plans that are none."""

import dataclasses
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms import WindowReport, WindowSchedule
from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter
from dp_transforms.reports.trends import TrendRule, trends
from tests.helpers.audited_names import plan_in_rounds
from tests.helpers.calibrated_plans import COUNTS, IN_DOMAIN
from tests.helpers.page_reports import hourly_plan, reports_of

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
    (smallest,), _ = in_rounds.paid_contributions.prices.listed.largest(
        np.array([in_rounds.paid_rounds.units[-1] // 64])
    )
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
        "schedule": {"slide_seconds": 3600, "window_seconds": 10**400},
        "contributions": {"units": [1], "weights": [0], "spacing": 1},
    },
    {"schedule": {"slide_seconds": -1}, "contributions": {"units": ["x"], "weights": [1], "spacing": 10**400}},
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
