"""The solver; shares of delta for hashes; what is published of a running figure."""

import math
from fractions import Fraction

import numpy as np
import pytest

from dp_transforms.accounting.accountants import hash_delta, running_figure, smallest_safe_argument


def test_solver_returns_the_safe_side_and_asks_seldom():
    def delta_at(x):
        asked.append(x)
        return math.exp(-x)

    for delta in np.geomspace(0.5, 1e-15, 40).tolist():
        for guess in (1e-3, 100.0):
            asked = []
            found = smallest_safe_argument(delta_at, delta, guess=guess, lowest=0.0, highest=1e6)
            assert len(asked) <= 20, "each may be a game that takes a second"
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
