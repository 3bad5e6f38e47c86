"""What the searches of the accountants find and pass on: noise, thresholds, shares of delta, running figures."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from dp_transforms.accounting.calibration import DEFAULT_FALSE_REPORTS, choose_for_known_domain, choose_for_open_domain
from dp_transforms.accounting.charging_game import GameAccountant
from dp_transforms.accounting.composition import ROUNDING
from dp_transforms.accounting.mixed_charging import MixedChargingAccountant, largest_probability
from dp_transforms.accounting.release_modes import (
    NoiseParameters,
    _chord,
    epsilon_after_each_hit,
    smallest_safe_threshold,
    solve_target_charging,
)

EACH, Q, HITS, DELTA = 0.2, 0.3, 4, 1e-6


def test_the_noise_of_a_plan_is_the_largest_of_six_digits() -> None:
    for root in (0.123456789, 0.00765432199):
        found = solve_target_charging(lambda each, root=root: 1e-7 if each <= root else 1.0, 3, 1.0, 1.1e-7)
        unit = 10 ** (math.floor(math.log10(root)) - 5)
        assert found in [pytest.approx(math.floor(root / unit) * unit - less * unit, rel=1e-12) for less in (0, 1)]
        assert float(f"{found:.6g}") == found


# --- The shares of delta


def solver(asked_for: list[float]) -> Callable[[float], NoiseParameters]:
    """Notes the deltas it is asked for; less delta, more noise."""

    def solve(delta: float) -> NoiseParameters:
        asked_for.append(delta)
        return NoiseParameters(0.3 if delta > 0.6e-6 else 0.25)

    return solve


def test_all_of_delta_goes_to_the_noise_where_the_domain_is_known() -> None:
    asked_for: list[float] = []
    found = choose_for_known_domain(solver(asked_for), 1e-6, 5000, None)
    noise = NoiseParameters(0.3)
    assert found == (noise, smallest_safe_threshold(noise, 5000, DEFAULT_FALSE_REPORTS) - 1, 0.0)
    assert choose_for_known_domain(solver(asked_for), 1e-6, 5000, -3) == (noise, -3, 0.0)
    assert choose_for_known_domain(solver(asked_for), 1e-6, 0, None)[1] == 1, "never below one holder"
    assert asked_for == [1e-6] * 3


def test_an_open_domain_takes_half_of_delta_or_what_its_threshold_needs() -> None:
    asked_for: list[float] = []
    smallest = smallest_safe_threshold(NoiseParameters(0.25), 240, 0.5e-6)
    wanted = (NoiseParameters(0.25), smallest, 0.5e-6)
    assert choose_for_open_domain(solver(asked_for), 1e-6, 240, None) == wanted
    assert choose_for_open_domain(solver(asked_for), 1e-6, 240, smallest) == wanted
    assert asked_for == [0.5e-6] * 2
    with pytest.raises(ValueError, match=f"threshold must be >= {smallest}, .* got {smallest - 1}"):
        choose_for_open_domain(solver(asked_for), 1e-6, 240, smallest - 1)
    del asked_for[:]
    for above in (1, 40, 400):
        tail = 240 * NoiseParameters(0.25).upper_tail(smallest + above - 1)
        share = max(tail, 1e-12)
        noise, threshold, delta_open = choose_for_open_domain(solver(asked_for), 1e-6, 240, smallest + above)
        assert delta_open == pytest.approx(share, rel=1e-14, abs=0)
        assert (threshold, asked_for[-1]) == (smallest + above, 1e-6 - delta_open)
        assert noise == NoiseParameters(0.3 if 1e-6 - share > 0.6e-6 else 0.25)


def test_the_running_figure_begins_at_a_thousandth_and_never_exceeds_the_total() -> None:
    total = GameAccountant(EACH, Q, HITS).epsilon(0.2)
    assert GameAccountant(EACH, Q, 1).epsilon(0.2) < total / 1000, "a generous delta covers the first hit"
    assert epsilon_after_each_hit(EACH, Q, HITS, total, 0.2)[0] == pytest.approx(total / 1000, rel=1e-12)
    lower = GameAccountant(EACH, Q, HITS).epsilon(DELTA) * (1 - 1e-8)
    assert lower * (1 - 1e-6) < max(epsilon_after_each_hit(EACH, Q, HITS, lower, DELTA)) <= lower


def test_a_chord_is_straight_in_the_exponential() -> None:
    low, high, delta = 0.5, 1.5, 0.02
    left, right = (0.9, 0.05), (0.8, 0.01)
    share = (0.05 - delta) / (0.05 - 0.01)
    wanted = math.log(math.exp(low) + share * (math.exp(high) - math.exp(low)))
    assert _chord((low, left), (high, right), 1, delta) == pytest.approx(wanted * (1 + 1e-9), rel=1e-14)
    assert _chord((low, left[:1]), (high, right), 1, delta) == high, "the left one has no such entry"
    assert _chord((low, (0.9, delta)), (high, right), 1, delta) == high
    assert _chord((low, left), (high, (0.8, delta)), 1, delta) == high, "rounded up, and not beyond"


# --- Mixed charging


def test_the_budget_of_an_order_by_hand() -> None:
    for epsilon, delta, order in ((1.0, 1e-6, 20.0), (3.0, 1e-9, 12.0)):
        found = MixedChargingAccountant.calibrate(epsilon, delta, order)
        divergence = epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)
        assert found.order == order
        assert 1 - 2e-8 < found.budget / (divergence * (order - 1)) <= 1 - 10 * ROUNDING * 0.999


def test_a_larger_target_counts_as_the_largest_that_there_is() -> None:
    assert largest_probability(1.0, 1) == pytest.approx(1 / (math.e + 1), rel=1e-15)
    assert largest_probability(1.0, 0.2) == 0.2
    for refused in (0, -0.1, 1.0000001, True, math.nan):
        with pytest.raises(ValueError, match="target_probability must lie in"):
            largest_probability(1.0, refused)
