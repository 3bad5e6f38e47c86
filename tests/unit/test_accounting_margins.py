"""The margin of a plan: another machine's last digits must not refuse what was calibrated here."""

from __future__ import annotations

import math

import pytest

from dp_transforms.accounting.kms21_accountant import _round_noise
from dp_transforms.accounting.mixed_charging import delta_from_divergences, epsilon_from_divergences
from dp_transforms.accounting.release_modes import NoiseParameters, smallest_safe_threshold, solve_target_charging

MARGIN = 1e-9
DELTA = 1e-7


@pytest.mark.parametrize(("below", "found"), [(0.5 * MARGIN, 0.1), (2 * MARGIN, 0.2)])
def test_noise_that_is_safe_by_less_than_the_margin_is_not_taken(below: float, found: float) -> None:
    """Between 0.1 and 0.2 delta is below what is allowed by so small a part; up to 0.1 by half."""

    def delta_at(epsilon_per_query: float) -> float:
        if epsilon_per_query <= 0.1:
            return DELTA / 2
        return DELTA * (1 - below) if epsilon_per_query <= 0.2 else 1.0

    assert solve_target_charging(delta_at, 3, 1.0, DELTA) == pytest.approx(found, rel=2e-5)


@pytest.mark.parametrize("scale", [2000.0, 3000.0])
def test_noise_of_a_monitor_is_not_taken_within_the_margin_either(scale: float) -> None:
    hits, epsilon, grid = 20, 1.0, 3
    first = _round_noise(scale, epsilon, 1.0 - 1e-6, hits, grid)
    exact = first.delta(epsilon)
    assert 0 < exact < 1e-6
    for above, is_taken in ((0.5 * MARGIN, False), (2 * MARGIN, True)):
        taken = _round_noise(scale, epsilon, exact * (1 + above), hits, grid)
        assert (taken.narrow_epsilon == first.narrow_epsilon) is is_taken
        assert taken.narrow_epsilon <= first.narrow_epsilon


@pytest.mark.parametrize("share", [1.0, 1 + 1e-12, 1 - 1e-12])
def test_the_smallest_safe_threshold_is_safe_and_the_smallest(share: float) -> None:
    """At the exact tail of a margin, and one digit beside it."""
    noise, queries = NoiseParameters(0.3), 240
    for margin in (1, 2, 17, 90):
        delta_open = queries * noise.upper_tail(margin) * share
        found = smallest_safe_threshold(noise, queries, delta_open)
        assert queries * noise.upper_tail(found - 1) <= delta_open
        assert queries * noise.upper_tail(found - 2) > delta_open
    assert smallest_safe_threshold(noise, queries, queries * 0.6) == 1
    assert smallest_safe_threshold(noise, 1, noise.upper_tail(0)) == 1


@pytest.mark.parametrize("divergence", [1e-40, 1e-18, 1e-16, 9e-16, 1e-15])
def test_divergences_whose_digits_would_be_lost_count_as_larger_ones(divergence: float) -> None:
    """``1 - e^-d`` has no digit left below 1e-16, and a logarithm of 0 would end the conversion."""
    for order, epsilon in ((1.5, 0.0), (3.0, 1e-12), (50.0, 0.1)):
        found = delta_from_divergences([order], [divergence], epsilon)
        assert found == delta_from_divergences([order], [1e-15], epsilon)
        assert math.sqrt(1e-15) < found < 4e-8
        assert epsilon_from_divergences([order], [divergence], 1e-9) >= 0


def test_small_divergences_are_not_rounded_down_by_the_conversion() -> None:
    """At epsilon 0 a divergence d gives ``sqrt(1 - e^-d)``, or less where the order is worth more: here it is not."""
    for exponent in range(-1500, -300):
        divergence = 10 ** (exponent / 100)
        found = delta_from_divergences([1.02], [divergence], 0.0)
        assert math.sqrt(-math.expm1(-divergence)) <= found <= math.sqrt(divergence + 1e-15) * (1 + 1e-3)
