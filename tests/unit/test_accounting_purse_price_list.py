"""Price lists: reference weights, exact sums, and the best adaptive adversary of two and three looks."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest

from dp_transforms.accounting.purse.look_prices import look_price, zone_price
from dp_transforms.accounting.purse.price_list import PriceList, hits_from, make_price_list, order_budget, replay_weight
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from tests.unit import purse_oracle
from tests.unit.purse_oracle import REFERENCE

SCALE = 10_000
EPSILON, DELTA = 1.0, 1e-4  # of the small lists that adversaries attack


@functools.cache
def reference_list(shape: float, order: float, most_looks: int = 1152) -> PriceList:
    budget = order_budget(order, REFERENCE["epsilon"], REFERENCE["delta_looks"])
    return make_price_list(ExponentialPower(shape, SCALE), order, budget, most_looks)


@pytest.mark.parametrize(
    "row", REFERENCE["thresholds_if_all_have_N_looks"], ids=lambda row: f"{row['p']}-{row['alpha']}"
)
def test_reference_weights(row: dict) -> None:
    """The grid has 10^-4 of the scale, and beyond 32 looks rungs are at most 1 % apart."""
    prices = reference_list(row["p"], row["alpha"])
    for looks, entry in row["looks"].items():
        wanted = entry["weight"]
        found = prices.replay_weight(int(looks)) / SCALE
        slack = 0.002 if int(looks) <= 32 or looks == "1152" else 0.012
        assert wanted * (1 - slack) - 1 / SCALE < found < wanted * 1.001


@pytest.mark.parametrize(("spacing", "hits"), [(0, 0), (4000, 0), (4000, 3)])
def test_every_price_pays_for_its_look(spacing: int, hits: int) -> None:
    noise, hit_units = ExponentialPower(2.5, 2000), 10**11 if hits else 0
    prices = make_price_list(noise, 17.0, 0.9, 40, hit_units=hit_units, hits=hits, spacing=spacing)
    assert prices.weights[0] > 50
    assert prices.most_looks == 40
    for weight, units in zip(prices.weights, prices.units, strict=True):
        price = units * 0.9 / PURSE_UNITS
        assert price >= look_price(noise, 17.0, weight, hit_price=hit_units * 0.9 / PURSE_UNITS)
        if spacing:
            assert price >= zone_price(noise, 17.0, weight, spacing, hit_price=hit_units * 0.9 / PURSE_UNITS)
    for looks in (1, 7, 32, 40, 10_000):
        weight = prices.replay_weight(looks)
        paid = min(looks, 40) * prices.units[prices.weights.index(weight)]
        assert weight > 0
        assert paid + hits * hit_units <= PURSE_UNITS


def test_with_hits_looks_cost_less_and_all_hits_are_set_aside() -> None:
    noise, hit_units = ExponentialPower(2.5, 2000), 5 * 10**10
    alone = make_price_list(noise, 17.0, 0.9, 500, spacing=8000)
    with_hits = make_price_list(noise, 17.0, 0.9, 500, fewest_looks=20, hit_units=hit_units, hits=4, spacing=8000)
    assert with_hits.purse == PURSE_UNITS - 4 * hit_units
    assert with_hits.most_looks == alone.most_looks == 500
    assert with_hits.weights[-1] < alone.weights[-1], "made for 20 looks and more"
    for looks in (1, 10, 100, 500):
        assert replay_weight(alone, with_hits, looks) == max(alone.replay_weight(looks), with_hits.replay_weight(looks))
    least = hits_from(alone, with_hits)
    assert 1 < least < 500
    assert all(with_hits.replay_weight(looks) <= alone.replay_weight(looks) for looks in range(1, least))
    assert with_hits.replay_weight(least) > alone.replay_weight(least)
    costly = make_price_list(noise, 17.0, 0.9, 500, hit_units=2495 * 10**8, hits=4, spacing=8000)
    assert hits_from(alone, costly) == 0


def test_columns_of_amounts() -> None:
    prices = reference_list(2.5, 17.0, 100)
    amounts = np.array([0, prices.units[0] - 1, prices.units[0], prices.units[5] + 1, PURSE_UNITS, 5 * PURSE_UNITS])
    weights, units = prices.listed.largest(amounts)
    first, sixth, last = prices.weights[0], prices.weights[5], prices.weights[-1]
    assert weights.tolist() == [0, 0, first, sixth, last, last]
    assert units.tolist() == [0, 0, prices.units[0], prices.units[5], *2 * [prices.units[-1]]]


def test_a_purse_pays_for_no_more_looks_than_declared() -> None:
    assert [reference_list(2.5, 17.0, looks).most_looks for looks in (1, 2, 33, 1000)] == [1, 2, 33, 1000]


# --- The best adaptive adversary


def small_list(shape: float, scale: int, order: float, looks: int) -> PriceList:
    return make_price_list(ExponentialPower(shape, scale), order, order_budget(order, EPSILON, DELTA), looks)


def adversary(prices: PriceList, *, weights_times: int = 1, counts: int = 4) -> purse_oracle.Adversary:
    """Over all counts within so many scales; weights_times: a fault, the looks' weights over those that are paid."""
    noise, reach = prices.noise, counts * prices.noise.scale
    options = []
    for weight, units in zip(prices.weights, prices.units, strict=True):
        worlds = []
        for moved in (weights_times * weight, 0):
            bits = [purse_oracle.bit(noise.shape, noise.scale, m - moved) for m in range(-reach, reach + 1)]
            worlds.append(np.array([[float(one) for one in outcomes] for outcomes in bits]).T)
        options.append((units, *worlds))
    return purse_oracle.Adversary(options, EPSILON)


@pytest.mark.parametrize(
    ("shape", "scale", "order"), [(1.0, 12, 14.0), (2.0, 14, 14.0), (2.5, 16, 13.0), (3.0, 20, 12.0)]
)
@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize(("looks", "counts"), [(1, 4), (2, 4), (3, 2)])
def test_no_adaptive_adversary_gets_more_than_delta(
    shape: float, scale: int, order: float, removed: bool, looks: int, counts: int
) -> None:
    """Any counts and any payable weights, chosen by the bits so far. It gets a part of what is promised, but for
    Laplace noise so wide that a look or two are (epsilon, 0)-DP."""
    prices = small_list(shape, scale, order, looks)
    attained = adversary(prices, counts=counts).delta(looks, PURSE_UNITS, removed=removed)
    assert (0.0 if shape == 1 else DELTA * 0.03) <= attained <= DELTA


@pytest.mark.parametrize("looks", [1, 2])
def test_the_price_of_a_smaller_weight_is_seen(looks: int) -> None:
    """A fault: looks of twice the weight that is paid for."""
    prices = small_list(2.5, 16, 13.0, looks)
    assert adversary(prices, weights_times=2).delta(looks, PURSE_UNITS) > DELTA


@pytest.mark.parametrize("looks", [1, 2])
def test_prices_of_another_order_are_seen(looks: int) -> None:
    """A fault: prices of order 3, less by far, paid from the budget of order 13."""
    mixed = make_price_list(ExponentialPower(2.5, 16), 3.0, order_budget(13.0, EPSILON, DELTA), looks)
    assert adversary(mixed).delta(looks, PURSE_UNITS) > DELTA


def test_a_purse_checked_after_a_look_is_seen() -> None:
    """A fault: a second look is begun whenever anything is left."""
    prices = small_list(2.5, 16, 13.0, 1)
    assert adversary(prices).delta(2, PURSE_UNITS) <= DELTA
    assert adversary(prices).delta(2, 2 * PURSE_UNITS - 1) <= DELTA  # one look, since each takes a full purse
    assert adversary(prices, counts=2).delta(3, 3 * PURSE_UNITS) > DELTA


# --- Wrong lists


def test_a_list_with_too_low_a_price_cannot_be_built() -> None:
    prices = reference_list(2.5, 17.0, 40)
    assert dataclasses.replace(prices) == prices
    lower = (*prices.units[:-1], math.floor(prices.units[-1] * 0.999))
    for change in (
        {"units": lower},
        {"order": 17.5},
        {"budget": prices.budget * 0.99},
        {"noise": ExponentialPower(2.5, SCALE - 50)},
        {"noise": ExponentialPower(2.6, SCALE)},
        {"spacing": 20_000},
    ):
        with pytest.raises(ValueError, match=r"costs \d+ units, got \d+"):
            dataclasses.replace(prices, **change)
