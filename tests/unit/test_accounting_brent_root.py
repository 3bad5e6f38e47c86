"""Brent's method: the same steps as scipy's, to the last bit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from dp_transforms.accounting.brent_root import brent_root


@given(
    zero=st.floats(0.01, 9.9),
    power=st.sampled_from([0.3, 1.0, 2.0, 5.0]),
    slope=st.floats(1e-6, 1e6),
    tolerance=st.sampled_from([1e-12, 1e-7, 1e-3]),
    falls=st.booleans(),
)
def test_the_root_is_that_of_scipy_after_the_same_evaluations(
    zero: float, power: float, slope: float, tolerance: float, falls: bool
) -> None:
    asked: dict[str, list[float]] = {"ours": [], "scipy": []}

    def at(x: float, by: str) -> float:
        asked[by].append(x)
        sign = -1.0 if falls else 1.0
        return sign * slope * math.copysign(abs(x - zero) ** power, x - zero) + sign * math.expm1(x - zero)

    ours = brent_root(lambda x: at(x, "ours"), 0.0, 10.0, xtol=tolerance, rtol=4 * tolerance)
    assert ours == brentq(lambda x: at(x, "scipy"), 0.0, 10.0, xtol=tolerance, rtol=4 * tolerance)
    assert asked["ours"] == asked["scipy"]
    assert abs(ours - zero) <= tolerance + 4 * tolerance * 10


def test_a_zero_at_an_end_is_found_at_once() -> None:
    assert brent_root(lambda x: x, 0.0, 1.0, xtol=1e-9, rtol=1e-9) == 0.0
    assert brent_root(lambda x: x - 1, 0.0, 1.0, xtol=1e-9, rtol=1e-9) == 1.0


def test_equal_signs_are_refused() -> None:
    with pytest.raises(ValueError, match="different signs"):
        brent_root(lambda x: x + 1, 0.0, 1.0, xtol=1e-9, rtol=1e-9)


def test_a_search_without_end_is_an_error() -> None:
    with pytest.raises(ArithmeticError, match="within 100 steps"):
        brent_root(lambda x: x - 0.3 if x < 1 else 1.0, 0.0, 1e300, xtol=0.0, rtol=0.0)
