"""ThresholdMonitor's price: the tail of its noise, the conditions of its proof, and what is calibrated."""

import decimal
import math

import pytest

from dp_transforms.accounting.discrete_laplace_law import capped_sum_tail_integer, capped_sum_upper_tail
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant, calibrate_threshold_monitor

Decimal = decimal.Decimal


def numbers(wide, narrow, cap):
    """By the names that the code has for them."""
    return {"wide_epsilon": wide, "narrow_epsilon": narrow, "cap": cap}


def decimal_tail(wide, narrow, cap, margin):
    """One summand for each v, by recurrence, with 100 digits."""
    a, b = (-Decimal(wide)).exp(), (-Decimal(narrow)).exp()
    reach = math.ceil(120 / narrow)

    def above(m):
        return a**m / (1 + a) if m >= 0 else 1 - a ** (1 - m) / (1 + a)

    total = b**cap / (1 + b) * above(margin - cap)
    weight = (1 - b) / (1 + b) * b ** max(reach, abs(cap - 1))
    for v in range(-reach, cap):
        total += weight * above(margin - v)
        weight = weight / b if v < 0 else weight * b
    return total


@pytest.mark.parametrize(
    ("wide", "narrow", "cap", "margins"),
    [
        (1 / 9000, 1 / 131.5, 900, (-4000, 0, 900, 40_000)),
        (0.25, 1.7, 7, (-60, -1, 0, 1, 7, 8, 33)),
        (2.0, 0.25, 0, (-60, -1, 0, 1, 33)),
    ],
)
def test_the_tail_is_the_sum_over_all_pairs_to_the_last_unit(wide, narrow, cap, margins):
    with decimal.localcontext() as context:
        context.prec = 100
        for margin in margins:
            expected, noise = decimal_tail(wide, narrow, cap, margin), numbers(wide, narrow, cap)
            tail, integer = (f(margin, **noise) for f in (capped_sum_upper_tail, capped_sum_tail_integer))
            # What the reference leaves out, V < -reach, has probability below e^-120.
            assert abs(integer - int(expected * 2**128)) <= 1
            assert Decimal(tail) / expected - 1 < Decimal("3e-12")
            assert Decimal(tail) >= min(expected, 1)


def least_noise(grid, shift):
    """The numbers at which the four conditions are just met."""
    narrow = shift / grid
    cap = math.ceil(math.exp(0.1) * grid)
    while math.exp(-narrow * (cap + 1)) / (1 + math.exp(-narrow)) > shift / 2:
        cap += 1
    return 0.1 / cap * (1 - 1e-12), narrow, cap


@pytest.mark.parametrize(("grid", "shift"), [(1, 0.5), (1, 0.1), (5, 0.5), (7, 0.2)])
def test_the_conditions_are_no_weaker_than_the_proof_needs(grid, shift):
    wide, narrow, cap = least_noise(grid, shift)
    for refused in ((wide * 1.001, narrow, cap), (wide, narrow, cap - 1), (wide, narrow * 0.5 / shift * 1.001, cap)):
        with pytest.raises(ValueError, match="must be at"):
            ThresholdMonitorAccountant(**numbers(*refused), grid=grid, hits=1)


@pytest.mark.parametrize("hits", [1, 2000])
def test_the_accountant_is_a_curve_and_its_inverse(hits):
    accountant = calibrate_threshold_monitor(1.0, 1e-6, hits)
    deltas = [accountant.delta(epsilon) for epsilon in (0.0, 0.5, 1.0, 1.1, 2.0, 50.0)]
    assert deltas == sorted(deltas, reverse=True)
    assert deltas[0] == 1.0
    assert deltas[-1] < 1e-12
    for delta in (0.5, 1e-12):
        epsilon = accountant.epsilon(delta)
        assert accountant.delta(epsilon) <= delta < accountant.delta(epsilon * 0.9999)
    figures = accountant.epsilon_after_hits(1.0, 1e-6)
    assert list(figures) == sorted(figures)
    assert len(figures) == hits
    assert accountant.epsilon(1e-6) <= figures[-1] <= 1.0
    assert figures[0] == pytest.approx(accountant.narrow_epsilon * (150 + 25 * math.log(3e6)), rel=1e-5)
