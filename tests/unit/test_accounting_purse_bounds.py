"""Bounds on many prices, and how much work a list of prices may be."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.accounting.purse import look_prices
from dp_transforms.accounting.purse.look_prices import level_price, look_price
from dp_transforms.accounting.purse.price_bounds import Published, price_bounds, within
from dp_transforms.accounting.purse.price_list import MOST_WORK, PriceList, price_work
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.plan.plan import Plan
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.plan_files import changed_plan
from tests.unit import purse_oracle


def exact_prices(published, weights):
    noise, order, spacing = published.noise, published.order, published.spacing

    def price(weight):
        return level_price(noise, order, weight, spacing) if spacing else look_price(noise, order, weight)

    return np.array([price(int(weight)) for weight in weights])


def published(shape, scale, order, deviations):
    noise = ExponentialPower(shape, scale)
    return Published(noise, order, math.ceil(deviations * noise.standard_deviation))


@pytest.mark.parametrize("deviations", [0, 5.5], ids=["bit", "levels"])
@pytest.mark.parametrize(
    ("shape", "scale", "order"),
    [(1.5, 2000, 27.0), (2.0, 3000, 14.0), (2.75, 3000, 16.0), (3.0, 1000, 17.0), (4.0, 1000, 17.0), (2.5, 500, 200.0)],
)
def test_bounds_are_hardly_above_the_prices(shape, scale, order, deviations):
    looks = published(shape, scale, order, deviations)
    weights = np.unique(np.geomspace(0.004, 0.1, 7) * scale * min(1, 17 / order)).astype(np.int64) + 1
    exact = exact_prices(looks, weights)
    found = price_bounds(looks, weights, most=5.0)
    payable = exact < 4.9
    assert np.all(found >= exact)
    assert np.all(found[payable] <= exact[payable] * 1.0002 + 1e-9)
    assert np.all(np.isinf(found[exact > 5.001]))
    assert np.all(within(looks, weights, found)[np.isfinite(found)])
    assert not np.any(within(looks, weights, exact * (1 - 1e-6) - 1e-10))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from([1.0, 1.3, 2.0, 2.5, 3.0, 4.0]),
    scale=st.integers(5, 60),
    order=st.floats(1.2, 40.0),
    deviations=st.sampled_from([0.0, 2.2, 3.0, 5.5, 9.0]),
    weight=st.integers(1, 12),
)
def test_a_bound_is_never_below_the_price(shape, scale, order, deviations, weight):
    looks = published(shape, scale, order, deviations)
    if looks.spacing and weight > looks.spacing:
        return
    weights = np.array([weight])
    exact = exact_prices(looks, weights)
    assert price_bounds(looks, weights)[0] >= exact[0] * (1 - 1e-9)
    assert not within(looks, weights, exact * (1 - 1e-6) - 1e-10)[0]


def test_bounds_hold_by_the_definition_with_50_digits():
    for shape, scale, order, weight in ((1.0, 6, 2.0, 1), (2.0, 6, 17.0, 1), (2.5, 7, 4.0, 3)):
        exact = purse_oracle.price(shape, scale, order, weight, range(-12 * scale, 12 * scale))
        found = price_bounds(Published(ExponentialPower(shape, scale), order), np.array([weight]))[0]
        assert exact <= found <= exact * 1.0002


def test_a_bound_does_not_depend_on_the_weights_beside_it():
    looks = published(2.5, 3000, 17.0, 5.5)
    weights = np.arange(20, 320)
    together = price_bounds(looks, weights)
    alone = [price_bounds(looks, weights[i : i + 1])[0] for i in (0, 7, 255, 256, 299)]
    assert together[[0, 7, 255, 256, 299]] == pytest.approx(alone, rel=1e-9)


def test_weights_that_pass_two_boundaries_and_orders_beyond_floats_have_no_bound():
    looks = published(2.0, 100, 17.0, 2.5)
    assert price_bounds(looks, np.array([looks.spacing + 1]))[0] == math.inf
    assert not within(looks, np.array([looks.spacing + 1]), np.array([1e9]))[0]
    assert price_bounds(Published(ExponentialPower(4.0, 100), 900.0), np.array([80]))[0] == math.inf


def test_tails_that_no_float_holds_are_bounded_as_well():
    """Levels are so far apart that tails of other boundaries underflow; some maxima are where a tail is e^-300."""
    for shape, order, weight in ((4.0, 17.0, 5), (4.0, 17.0, 20), (3.0, 17.0, 40), (2.0, 40.0, 60)):
        looks = published(shape, 400, order, 30.0)
        exact = exact_prices(looks, np.array([weight]))[0]
        assert exact <= price_bounds(looks, np.array([weight]))[0] <= exact * 1.0002 + 1e-9


def test_far_tails_of_weights_beyond_the_boundary_are_not_bounded_by_a_hazard_above_it():
    """The tail without the user underflows where that with it is still near 1: a huge weight and an order near 1."""
    for shape, weight, order in ((1.0, 13_000, 1.2), (1.0, 13_000, 1.02), (3.0, 185, 1.001), (2.0, 520, 1.001)):
        looks = Published(ExponentialPower(shape, 20), order)
        exact = look_price(looks.noise, order, weight)
        found = price_bounds(looks, np.array([weight]))[0]
        assert found >= exact
        assert not within(looks, np.array([weight]), np.array([exact * (1 - 1e-6)]))[0]


def test_forged_weights_that_no_memory_holds_have_no_bound_and_leave_the_others_alone():
    looks = published(2.5, 3000, 17.0, 5.5)
    weights = np.array([30, 300, 10**12, 2**62])
    found = price_bounds(looks, weights)
    assert found[:2].tolist() == price_bounds(looks, weights[:2]).tolist()
    assert np.isinf(found[2:]).all()
    assert within(looks, weights, np.full(4, found[1])).tolist() == [True, True, False, False]


def test_small_prices_need_no_closer_look():
    looks = published(2.5, 3000, 17.0, 5.5)
    weights = np.array([3, 30, 300])
    close, coarse = price_bounds(looks, weights), price_bounds(looks, weights, least=2e-3)
    assert coarse[:2].tolist() == [2e-3, 2e-3]
    assert coarse[2] == pytest.approx(close[2], rel=3e-4)


# --- Planted faults


@pytest.mark.parametrize(("scale", "spacing"), [(20, 120), (60, 5000), (500, 3000)])
def test_a_list_that_charges_too_little_is_refused_with_bounds_and_where_prices_are_less_work(scale, spacing):
    noise, weight = ExponentialPower(2.5, scale), scale // 15
    needed = math.ceil(level_price(noise, 17.0, weight, spacing) / 5.0 * 10**12 * (1 + 1e-9))
    assert PriceList(noise, 17.0, 5.0, (weight,), (needed + 1,), spacing=spacing).most_looks >= 1
    with pytest.raises(ValueError, match="Use make_price_list"):
        PriceList(noise, 17.0, 5.0, (weight,), (needed - needed // 10**8 - 2,), spacing=spacing)


# --- A plan file that would take minutes to check is refused before any price is computed.

MANY = {"looks.weights": list(range(1, 1001)), "looks.units": [10**12 // 20 + n for n in range(1000)]}
HIGH = {"threshold": 10**7, "known.threshold": 10**7, "shares.sampling": 1e-15}
WIDE = {**HIGH, "looks.scale": 50_000, "looks.spacing": 200_000}
FEW = {"looks.weights": list(range(50_000, 50_100)), "looks.units": MANY["looks.units"][:100]}


@pytest.mark.parametrize(
    "changes",
    [
        {**MANY, **WIDE},
        {**MANY, **WIDE, "looks.spacing": 20_000_000},  # 800 standard deviations
        {**WIDE, "looks.order": 1000.0, "looks.shape": 4.0, **FEW},
        {**WIDE, "looks.order": 1000.0, "looks.shape": 1.0, **MANY},
    ],
)
def test_a_forged_plan_is_refused_at_once(changes):
    """Its prices would take minutes."""
    text = changed_plan(small_looks_plan(), changes)
    started = time.process_time()
    with pytest.raises(ValueError, match=r"steps to check the prices, more than 1e\+09\. No plan of Plan"):
        Plan.from_json(text)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(("epsilon", "most_looks"), [(2.0, 20), (0.2, 20), (40.0, 3000)])
def test_plans_of_calibrate_are_far_below_the_limit(epsilon, most_looks):
    plan = small_looks_plan().calibrate(
        epsilon=epsilon,
        delta=1e-6,
        schedule=small_looks_plan().schedule,
        usual_looks=(1, most_looks),
        most_looks=most_looks,
        max_users=1000,
        max_items=1000,
    )
    assert plan.looks is not None
    assert (
        price_work(plan.looks.noise, plan.paid_looks.order, plan.paid_looks.weights, plan.paid_looks.spacing)
        < MOST_WORK / 5
    )


@pytest.mark.parametrize(
    ("shape", "order", "weight"), [(1.0, 3.0, 150), (2.5, 17.0, 40), (4.0, 40.0, 10), (3.0, 1.1, 190)]
)
def test_no_price_looks_further_than_the_work_says(shape, order, weight, monkeypatch):
    """All integers that a price reads are tails of one table: how far it is asked for."""
    noise = ExponentialPower(shape, 211)  # of no other test: nothing is remembered
    spacing = int(np.ceil(5.5 * noise.standard_deviation))
    asked = []
    real = look_prices.log_tails

    def watched(law, reach):
        asked.append(reach)
        return real(law, reach)

    monkeypatch.setattr(look_prices, "log_tails", watched)
    level_price(noise, order, weight, spacing)
    # Tables are made for up to twice as far.
    assert max(asked) <= price_work(noise, order, [weight], spacing) + 2 * weight
