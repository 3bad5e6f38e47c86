"""The formulas of the accountants, each written once more in plain Python, to the last digits.

The other tests hold them against independent figures, which leave some room; here a changed constant shows.
"""

import math

import numpy as np
import pytest

from dp_transforms.accounting.charging_game import _lattice, check_target
from dp_transforms.accounting.composition import ROUNDING, optimal_composition_delta
from dp_transforms.accounting.discrete_laplace_law import upper_tail
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant, _delta, _failure
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.plan_files import with_changes

DIGITS = 1e-13


def exactly(value, digits=DIGITS):
    return pytest.approx(value, rel=digits, abs=0)


@pytest.mark.parametrize(("each", "calls", "epsilon"), [(0.3, 7, 0.25), (0.3, 7, 1.5), (1.0, 2, 1.0), (0.01, 400, 0.3)])
def test_optimal_composition_by_hand_with_its_rounding(each, calls, epsilon):
    p = 1 / (1 + math.exp(-each))
    total = sum(
        math.comb(calls, k) * p**k * (1 - p) ** (calls - k) * max(0.0, -math.expm1(epsilon - each * (2 * k - calls)))
        for k in range(calls + 1)
    )
    rounding = ROUNDING + 1e-15 * (math.lgamma(calls + 1) + calls * (1 + each))
    assert optimal_composition_delta(each, calls, epsilon) == exactly(total * (1 + rounding), 2e-12)


@pytest.mark.parametrize(
    ("each", "q", "hits", "epsilon"), [(0.5, 0.3, 2, 1.0), (0.01, 0.3, 2, 1.0), (0.5, 0.1, 3, 2.0), (3.0, 0.04, 1, 0.0)]
)
def test_the_lattice_of_the_game_by_hand(each, q, hits, epsilon):
    """Long enough for 14 in the loss, or for ten deviations of as many calls as are likely."""
    lattice = _lattice(each, q, hits, epsilon)
    up = math.exp(each) / (1 + math.exp(each))
    margin = min(14 / each, 10 * math.sqrt((hits + 10 * math.sqrt(hits) + 40) / q))
    below, above = math.ceil(margin), math.ceil(epsilon / each + margin)
    assert (lattice.origin, len(lattice.stop_value)) == (below, below + above + 1)
    assert (lattice.up, lattice.down) == (exactly(up), exactly(1 - up))
    edge = min(1.0, q / (1 - up))
    assert lattice.vertices == ((exactly(edge), 0.0), (0.0, exactly(edge)), (q, q))
    stop = [max(0.0, -math.expm1(epsilon - each * step)) for step in range(-below, above + 1)]
    assert lattice.stop_value == pytest.approx(stop, rel=1e-12)


@pytest.mark.parametrize("each", [0.1, 1.0, 3.7, 600.0])
def test_the_largest_target_is_taken_with_the_rounding_of_others_and_is_a_probability(each):
    largest = 1 / (math.exp(each) + 1)
    check_target(each, largest * (1 + 9e-13))
    with pytest.raises(ValueError, match="target_probability must lie in"):
        check_target(each, largest * (1 + 1.2e-12))
    for share in (1, 1 + 5e-13, 1 + 9e-13):
        (edge, _), *_ = _lattice(each, largest * share, 3, 1.0).vertices
        assert edge <= 1.0


def test_where_no_float_is_a_target_none_is_taken():
    check_target(699.0, 2e-304)
    with pytest.raises(ValueError, match="target_probability must lie in"):
        check_target(700.0, 5e-305)


def test_the_price_of_a_monitor_by_hand():
    shift, hits = 1e-3, 4
    for epsilon in (0.5, 0.7, 2.0):
        d = min(1.0, math.exp((75 * (hits + 1) - epsilon / shift) / 25))
        assert _failure(shift, hits, epsilon) == exactly(d * (1 + ROUNDING), 1e-11)
        assert _delta(shift, hits, 1, epsilon) == exactly(min(1.0, 3 * d * (1 + ROUNDING)), 1e-11)
    assert _failure(shift, hits, 0.0) == exactly(1 + ROUNDING)
    assert _delta(shift, hits, 7, 0.0) == 1.0, "composition says nothing at epsilon 0"


def test_the_smallest_cap_is_the_one_whose_tail_is_small_enough():
    narrow, grid = 0.01, 30
    caps = [cap for cap in range(50, 400) if upper_tail(narrow, cap + 1) <= narrow * grid / 2]
    noises = {"wide_epsilon": 1e-5, "narrow_epsilon": narrow, "grid": grid}
    ThresholdMonitorAccountant(**noises, cap=caps[0], hits=1)
    with pytest.raises(ValueError, match="Raise cap to"):
        ThresholdMonitorAccountant(**noises, cap=caps[0] - 1, hits=1)


def test_the_price_of_few_hits_of_a_monitor_by_hand():
    accountant = ThresholdMonitorAccountant(wide_epsilon=1e-7, narrow_epsilon=1e-4, cap=10**5, hits=7)
    direct = 1e-4 * (75 * 8 + 25 * math.log(3 / 1e-6))
    assert accountant.epsilon(1e-6) == exactly(direct * (1 + ROUNDING), 1e-11)
    assert np.isclose(accountant.delta(direct), 1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["paid", "open", "sampling", "hash"])
def test_no_share_of_delta_is_nothing_or_all_of_it(name):
    schedule = WindowSchedule(0, 24 * 3600, 3600, 3600)
    plan = Plan.for_hits(epsilon=2.0, delta=1e-6, schedule=schedule)
    for share in (0.0, 1e-6):
        with pytest.raises(ValueError, match=f"{name} must lie strictly between 0 and delta, got {share!r}"):
            with_changes(plan, {f"shares.{name}": share})
