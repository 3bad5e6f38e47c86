"""Composition against 60 digits; the solver; shares of delta for hashes."""

import decimal
import math
from fractions import Fraction

import numpy as np
import pytest

from dp_transforms.accounting.composition import (
    hash_delta,
    optimal_composition_delta,
    running_figure,
    smallest_safe_argument,
)

DIGITS = decimal.Context(prec=60, Emin=-(10**8), Emax=10**8)


def composition_delta(epsilon_per_query, calls, epsilon):
    """``E[(1 - exp(epsilon - loss))_+]`` with 60 digits: each mass of the binomial from the one beside it.

    Masses below e^-400 of the largest are left out; so what is found is at most the truth.
    """
    e = DIGITS.exp(decimal.Decimal(epsilon_per_query))
    mode = round(calls * float(e / (1 + e)))
    reach = math.ceil(30 * math.sqrt(calls) / 2)
    masses = {mode: decimal.Decimal(1)}
    with decimal.localcontext(DIGITS):
        for k in range(mode, min(calls, mode + reach)):
            masses[k + 1] = masses[k] * (calls - k) / (k + 1) * e
        for k in range(mode, max(0, mode - reach), -1):
            masses[k - 1] = masses[k] * k / (calls - k + 1) / e
        total = sum(masses.values())
        gained = decimal.Decimal(0)
        for k, mass in masses.items():
            exponent = decimal.Decimal(epsilon) - decimal.Decimal(epsilon_per_query) * (2 * k - calls)
            if exponent < 0:
                gained += mass * (1 - exponent.exp())
        return gained / total


@pytest.mark.parametrize(
    ("epsilon_per_query", "calls", "share"),
    [
        *[(0.0001 * number, 1_000_000, 0.3 * number) for number in (1, 5, 11)],
        *[(0.01, calls, share) for calls in (3, 1000, 30_000) for share in (0.5, 2.0)],
        *[(each, calls, share) for each, calls in ((0.5, 1), (0.1, 29), (1.0, 7)) for share in (0.0, 0.4, 0.9)],
    ],
)
def test_composition_is_never_below_the_truth(epsilon_per_query, calls, share):
    """The logarithms of a million calls are large, and their rounding with them."""
    epsilon = share * epsilon_per_query * math.sqrt(calls)
    found = optimal_composition_delta(epsilon_per_query, calls, epsilon)
    truth = composition_delta(epsilon_per_query, calls, epsilon)
    assert truth <= decimal.Decimal(found) <= truth * decimal.Decimal(1 + 1e-7)


def test_solver_returns_the_safe_side():
    for delta in np.geomspace(0.5, 1e-15, 40).tolist():
        for guess in (1e-3, 100.0):
            found = smallest_safe_argument(lambda x: math.exp(-x), delta, guess=guess, lowest=0.0, highest=1e6)
            assert found == pytest.approx(-math.log(delta), rel=1e-5)
            assert math.exp(-found) <= delta
    found = smallest_safe_argument(lambda x: 0.5 if x < 3 else 1e-12, 1e-6, guess=1.0, lowest=0.0, highest=50.0)
    assert 3 <= found <= 3 * (1 + 1e-5), "the zone of labels has whole numbers, so its delta jumps"
    assert smallest_safe_argument(lambda x: 0.0, 0.1, guess=5.0, lowest=2.0, highest=9.0) == 2.0
    with pytest.raises(ValueError, match="no argument up to 9"):
        smallest_safe_argument(lambda x: 0.5, 0.1, guess=5.0, lowest=2.0, highest=9.0)


@pytest.mark.parametrize(("max_users", "max_items"), [(1, 1), (10**6, 10**9), (3, 2**40), (2**40, 2**60)])
def test_the_share_of_hash_collisions_counts_users_and_items(max_users, max_items):
    """One other user of so many has the same 64 bits; any two of so many items have the same 128, each pair twice."""
    truth = Fraction(max_users, 2**64) + Fraction(max_items**2, 2**128)
    assert hash_delta(max_users, max_items) == pytest.approx(float(truth), rel=1e-15, abs=0)


def test_a_running_figure_is_rounded_up():
    found = running_figure(np.array([0.12345611, 0.1, 1.2345678, 0.9]), 1.234567)
    assert found == (0.123457, 0.123457, 1.234567, 1.234567)
