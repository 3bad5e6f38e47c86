"""Prices of looks: reference values, the definition with 50 digits, other accountants; and planted faults."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant

from dp_transforms.accounting.purse import look_prices
from dp_transforms.accounting.purse.look_prices import SMALLEST_PRICE, look_price
from dp_transforms.mechanisms.exponential_power import LOG_TAIL_ERROR, ExponentialPower
from tests.unit import purse_oracle
from tests.unit.purse_oracle import REFERENCE

SCALE = 10_000  # fine enough that the spacing of integers does not show in six digits
CASES = [
    (entry["p"], entry["alpha"], round(float(weight) * SCALE), price)
    for entry in REFERENCE["prices"]
    for weight, price in entry["price_of_weight"].items()
]
HITS = [
    (entry["p"], entry["alpha"], round(float(weight) * SCALE), price)
    for entry in REFERENCE["prices"]
    for weight, price in entry["look_price_with_hit_price_0.1"].items()
]
SMALL = [(1.0, 6, 2.0, 1), (1.5, 5, 9.0, 2), (2.0, 6, 17.0, 1), (2.5, 7, 4.0, 3), (3.0, 6, 17.0, 1), (4.0, 9, 1.5, 4)]


@pytest.mark.parametrize(("shape", "order", "weight", "price"), CASES)
def test_reference_prices(shape: float, order: float, weight: int, price: float) -> None:
    """Six digits are given, and all are met: the supremum at p = 3, weight .2, is where the tail is e^-303."""
    assert look_price(ExponentialPower(shape, SCALE), order, weight) == pytest.approx(price, rel=6e-6)


@pytest.mark.parametrize(("shape", "order", "weight", "price"), HITS)
def test_reference_prices_with_a_hit_price(shape: float, order: float, weight: int, price: float) -> None:
    found = look_price(ExponentialPower(shape, SCALE), order, weight, hit_price=0.1)
    assert found == (pytest.approx(price, rel=1e-5) if price else SMALLEST_PRICE)


@pytest.mark.parametrize(("shape", "scale", "order", "weight"), SMALL)
@pytest.mark.parametrize("hit_price", [0.0, 0.02, 0.5])
def test_prices_are_those_of_the_definition(
    shape: float, scale: int, order: float, weight: int, hit_price: float
) -> None:
    """Over counts to 12 scales on both sides, with 50 digits; rounded up, and by less than 1e-8."""
    found = look_price(ExponentialPower(shape, scale), order, weight, hit_price=hit_price)
    exact = purse_oracle.price(shape, scale, order, weight, range(-12 * scale, 12 * scale), hit_price)
    assert exact <= found <= max(exact * (1 + 1e-8), 3 * SMALLEST_PRICE)


@pytest.mark.parametrize("shape", [1.0, 2.5, 4.0])
@pytest.mark.parametrize("hit_price", [0.0, 0.1])
def test_a_weight_costs_more_than_a_smaller_one(shape: float, hit_price: float) -> None:
    noise = ExponentialPower(shape, 50)
    prices = [look_price(noise, 12.0, weight, hit_price=hit_price) for weight in (1, 2, 3, 5, 8, 13, 21)]
    assert prices == sorted(prices)
    assert prices[0] < prices[-1]


def test_a_hit_price_can_only_lower_the_price() -> None:
    noise = ExponentialPower(2.5, 100)
    prices = [look_price(noise, 17.0, 3, hit_price=hit) for hit in (0.0, 0.01, 0.1, 1.0)]
    assert prices == sorted(prices, reverse=True)
    assert prices[-1] < prices[0] / 2


@pytest.mark.parametrize("order", [2, 8, 17, 64])
@pytest.mark.parametrize("weight", [10, 100])
def test_a_bit_costs_less_than_the_noisy_count_itself(order: int, weight: int) -> None:
    """By dp_accounting, of Gaussian and of Laplace noise: what is published here is computed from those."""
    gaussian = look_price(ExponentialPower(2.0, 1000), order, weight)
    accountant = rdp_privacy_accountant.RdpAccountant([order])
    accountant.compose(dp_event.GaussianDpEvent(1000 / math.sqrt(2) / weight))
    count = float(accountant._rdp[0])  # of one order: its divergence
    assert count == pytest.approx(order * (weight / 1000) ** 2)
    assert 0.3 * count < gaussian < count
    laplace = look_price(ExponentialPower(1.0, 1000), order, weight)
    accountant = rdp_privacy_accountant.RdpAccountant([order])
    accountant.compose(dp_event.LaplaceDpEvent(1000 / weight))
    assert 0.5 * float(accountant._rdp[0]) < laplace < float(accountant._rdp[0]) * (1 + 1e-9)
    assert laplace < weight / 1000  # pure epsilon


def test_orders_beyond_floats_have_an_infinite_price() -> None:
    assert look_price(ExponentialPower(4.0, 100), 900.0, 80) == math.inf
    assert math.isfinite(look_price(ExponentialPower(4.0, 100), 100.0, 1))


# --- Planted faults


@pytest.mark.parametrize(("shape", "scale", "order", "weight"), SMALL)
def test_the_bound_beyond_the_reach_holds(shape: float, scale: int, order: float, weight: int) -> None:
    """At every reach at which it is finite, for the counts beyond it, both ways and with both outcomes."""
    noise, finite = ExponentialPower(shape, scale), 0
    for reach in range(weight + 1, 9 * scale, 3):
        bound = look_prices.beyond_reach(noise, order, weight, reach)
        if bound == math.inf:
            continue
        finite += 1
        with_user = purse_oracle.tail(shape, scale, reach - weight)
        assert bound >= (1 - with_user) ** (1 - order) - 1  # "far below" in docs/guarantee.md
        for margin in (reach + 1, reach + 2, reach + scale, weight - reach, weight - reach - scale):
            worlds = [purse_oracle.bit(shape, scale, margin - weight), purse_oracle.bit(shape, scale, margin)]
            assert purse_oracle.excess(*worlds, order) <= bound
            assert purse_oracle.excess(*worlds[::-1], order) <= bound
    assert finite > 5


@pytest.mark.parametrize("order", [1.5, 17.0, 200.0])
def test_an_outcome_is_rounded_up_for_all_errors_of_its_logarithms(order: float) -> None:
    """P too small and Q too large by as much as is stated: still no less than the exact part of the sum."""
    for margin in (1, 30, 250, 500):
        p, q = purse_oracle.tail(2.5, 100, margin - 1), purse_oracle.tail(2.5, 100, margin)
        for first, second in ((p, q), (q, p), (1 - q, 1 - p)):
            with mpmath.workdps(50):
                exact = first * ((first / second) ** (mpmath.mpf(order) - 1) - 1)
                logs = [mpmath.log(first), mpmath.log(second)]
                errors = [LOG_TAIL_ERROR * max(1, abs(log)) for log in logs]
                low, high = float(logs[0] - errors[0]), float(logs[1] + errors[1])
            found = float(look_prices.outcome_excess(np.array([low]), np.array([high]), order)[0])
            assert exact <= found <= exact + 1e-8 * (abs(exact) + first)


def test_the_price_of_another_order_is_another_price() -> None:
    noise = ExponentialPower(2.5, 1000)
    assert look_price(noise, 16.0, 50) < look_price(noise, 17.0, 50) * 0.97
