"""All transcripts of tiny replays in mode `looks`, with x' and without: the exact delta(epsilon) of the pair,
in both directions, is below what the price list and the threshold claim. Nothing here is random."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import pytest

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_bounds import Published
from dp_transforms.accounting.price_list import PriceList, make_price_list, order_budget, smallest_open_threshold
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.naming_runs import units_of
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import changed, looks_trial
from tests.privacy.adversary import deltas_of_pair
from tests.privacy.exact_naming import Held, law_of_replay, sums_of_replay
from tests.reference.prices import delta_of_budget

TARGET = "x'"
ORDER, EPSILON, DELTA_LOOKS, DELTA_OPEN = 8.0, 2.0, 0.01, 0.01
EPSILONS = [0.1 * index for index in range(41)]
MOST_TESTS_OF_USER = 3


@functools.cache
def prices() -> PriceList:
    noise = ExponentialPower(2.5, 20)
    budget = order_budget(ORDER, EPSILON, DELTA_LOOKS)
    return make_price_list(Published(noise, ORDER, math.ceil(5 * noise.standard_deviation)), budget, MOST_TESTS_OF_USER)


def settings_of(
    windows: int, *, followed_threshold: int | None = None, forget_after: int = 2, domain_size: int = 0
) -> TrialPlan:
    """The smallest thresholds that the claim allows; any known threshold is allowed, and this one is low."""
    threshold = smallest_open_threshold(prices(), DELTA_OPEN)
    return looks_trial(
        stream="s",
        run_id="r",
        fingerprint="p",
        schedule=WindowSchedule.fixed(0, windows, 1),
        threshold=threshold,
        epsilon=EPSILON,
        delta=DELTA_LOOKS + DELTA_OPEN,
        domain_size=domain_size,
        weights=prices().weights,
        units=prices().units,
        noise=prices().noise,
        followed_threshold=followed_threshold or threshold // 3,
        forget_after=forget_after,
        spacing=prices().spacing,
        likely_noise=30,
    )


def every_window(windows: int, item: str = "a", first: int = 0) -> list[tuple[int, str]]:
    return [(window, item) for window in range(first, windows)]


def others(counts: dict[tuple[int, str], int]) -> dict[str, list[tuple[int, str]]]:
    """So many users with one pair each, the largest weight, in each cell."""
    return {
        f"{window} {item} {number}": [(window, item)]
        for (window, item), count in counts.items()
        for number in range(count)
    }


def scenarios() -> dict[str, tuple[int, Held]]:
    """How many windows, and what is held; x' is one of the users."""
    weight, threshold = prices().weights[-1], smallest_open_threshold(prices(), DELTA_OPEN)
    near = threshold // weight
    first, second, third = (0, "a"), (1, "a"), (2, "a")
    return {
        "alone in each window": (3, {TARGET: every_window(3)}),
        "others near the threshold": (3, {TARGET: every_window(3), **others(dict.fromkeys(every_window(3), near))}),
        "the item is known, and then x' is alone": (4, {TARGET: every_window(4, first=1), **others({first: 2 * near})}),
        "known, forgotten, and x' alone": (4, {TARGET: [(3, "a")], **others({first: 2 * near})}),
        "x' once, with all of its purse": (2, {TARGET: [second], **others({first: near, second: near})}),
        "known, and x' comes and goes": (4, {TARGET: [second, (3, "a")], **others({first: near + 3})}),
        "two items in a window": (2, {TARGET: [first, (0, "b"), second], **others({(0, "b"): near, second: near})}),
        "more pairs than the purse pays": (4, {TARGET: every_window(4), **others({second: near, third: near})}),
        "others who have several weights": (
            3,
            {
                TARGET: every_window(3),
                "u": every_window(3),
                "v": every_window(2),
                **others({first: near - 1, second: near}),
            },
        ),
    }


def claim(epsilon: float, *, open_domain: bool = True) -> float:
    looks = delta_of_budget(ORDER, prices().budget, epsilon)
    sampling = (1 + math.exp(epsilon)) * prices().most_tests * prices().noise.sampling_total_variation
    return looks + (DELTA_OPEN if open_domain else 0.0) + sampling


def without_target(held: Held) -> Held:
    return {user: pairs for user, pairs in held.items() if user != TARGET}


def excess_of(held: Held, settings: TrialPlan, domain: tuple[str, ...] = ()) -> tuple[float, float]:
    """Largest delta - claim and largest delta / claim over both directions and all epsilons."""
    laws = [law_of_replay(part, settings, domain=domain) for part in (held, without_target(held))]
    deltas = deltas_of_pair(laws[0], laws[1], EPSILONS)
    claims = [claim(epsilon, open_domain=not domain) for epsilon in EPSILONS]
    pairs = [(max(both), most) for both, most in zip(deltas, claims, strict=True)]
    return max(delta - most for delta, most in pairs), max(delta / most for delta, most in pairs)


@functools.cache
def excess_of_scenario(name: str, share: int) -> tuple[float, float]:
    """share: the known threshold is the other one divided by it."""
    windows, held = scenarios()[name]
    settings = settings_of(windows)
    return excess_of(held, changed(settings, followed_threshold=settings.threshold // share))


@pytest.mark.parametrize("share", [3, 1])
@pytest.mark.parametrize("name", scenarios())
def test_every_transcript_is_within_the_claim(name: str, share: int) -> None:
    assert excess_of_scenario(name, share)[0] <= 1e-12


def test_the_claim_is_nearly_attained() -> None:
    """Else the inequality above would say little."""
    ratios = {name: excess_of_scenario(name, 3)[1] for name in scenarios()}
    assert max(ratios.values()) > 0.3, ratios
    assert all(ratio > 0 for ratio in ratios.values())


@pytest.mark.parametrize("name", scenarios())
def test_x_changes_no_sum_by_more_than_it_pays_for(name: str) -> None:
    """So weights of the others are the same with x' and without."""
    windows, held = scenarios()[name]
    settings = settings_of(windows)
    with_target, without = (sums_of_replay(part, settings) for part in (held, without_target(held)))
    added = np.array([total - without.get(cell, 0) for cell, total in with_target.items()])
    assert set(without) <= set(with_target)
    assert sum(units_of(settings, added)) <= BUDGET_UNITS
    assert 0 < np.count_nonzero(added) == min(len([*held[TARGET]]), MOST_TESTS_OF_USER)


def test_an_item_of_one_user_is_named_with_the_probability_of_the_tail() -> None:
    """And never without the user."""
    settings = settings_of(1)
    law = law_of_replay({TARGET: [(0, "a")]}, settings)
    tails = settings.contributions.noise.upper_tail_integers()
    expected = float(Fraction(tails[settings.threshold - settings.contributions.weights[-1] - 1], 1 << 128))
    named = sum(probability for transcript, probability in law.items() if transcript)
    assert named == pytest.approx(expected, rel=1e-12)
    assert 0 < expected <= DELTA_OPEN
    assert law_of_replay({}, settings) == {(): 1.0}


# ---------------------------------------------------------------------------------------------------------------------
# Known domain
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("followed_threshold", [1, 12])
@pytest.mark.parametrize("pairs", [[(0, "a"), (1, "a")], [(1, "a")]])
def test_every_transcript_of_a_known_domain(followed_threshold: int, pairs: list[tuple[int, str]]) -> None:
    """Nothing is set aside there for items of one user, and no threshold is too low."""
    settings = settings_of(2, followed_threshold=followed_threshold, domain_size=1)
    for held in ({TARGET: pairs}, {TARGET: pairs, **others({(0, "a"): 2, (1, "a"): 1})}):
        excess, ratio = excess_of(held, settings, ("a",))
        assert excess <= 1e-12
        assert ratio > 0


def test_an_item_that_nobody_holds_has_the_law_of_the_noise() -> None:
    """In one window: not named, or named with a level that is drawn given that it is named."""
    settings = settings_of(1, followed_threshold=5, domain_size=1)
    law = law_of_replay({}, settings, domain=("a",))
    tails = settings.contributions.noise.upper_tail_integers()
    named = {level: share for transcript, share in law.items() for _, _, level, _ in transcript}
    for level, share in named.items():
        bounds = [5 + step * settings.contributions.spacing for step in (level - 1, level)]
        low, high = (tails[bound - 1] if bound <= len(tails) else 0 for bound in bounds)
        assert share == pytest.approx((low - high) / 2**128, rel=1e-9)
    assert {1, 2} <= set(named)


# ---------------------------------------------------------------------------------------------------------------------
# Planted faults
# ---------------------------------------------------------------------------------------------------------------------


def test_enumeration_finds_a_known_threshold_for_items_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(3)
    low = changed(settings, threshold=settings.followed_threshold)
    assert excess_of({TARGET: every_window(3)}, low)[0] > 0.05
