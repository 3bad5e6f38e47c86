"""Bounds on the prices of many weights: against the definition, over all counts; and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_bounds import SMALLEST_PRICE, Published, price_bounds, within
from dp_transforms.accounting.price_list import PriceList, check_prices
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from tests.reference import prices
from tests.reference.prices import level_price, look_price


def published(shape, scale, order, deviations):
    noise = ExponentialPower(shape, scale)
    return Published(noise, order, math.ceil(deviations * noise.standard_deviation))


def exact_prices(law, weights):
    return np.array([level_price(law.noise, law.order, int(weight), law.spacing) for weight in weights])


@pytest.mark.parametrize(
    ("shape", "scale", "order", "weight"),
    [(1.0, 6, 2.0, 1), (1.5, 5, 9.0, 2), (2.0, 6, 17.0, 1), (2.5, 7, 4.0, 3), (4.0, 9, 1.5, 4)],
)
def test_bounds_and_the_reference_hold_by_the_definition_with_50_digits(shape, scale, order, weight):
    """Over counts to 12 scales on both sides."""
    exact = prices.price(shape, scale, order, weight, range(-12 * scale, 12 * scale))
    assert exact <= look_price(ExponentialPower(shape, scale), order, weight) <= exact * (1 + 1e-8)
    found = price_bounds(published(shape, scale, order, 29.0), np.array([weight]))[0]
    assert exact <= found <= max(exact * 1.0002 + 1e-12, 3 * SMALLEST_PRICE)


@pytest.mark.parametrize("deviations", [5.5, 29.0])
@pytest.mark.parametrize(
    ("shape", "scale", "order"),
    [(1.5, 2000, 27.0), (2.0, 3000, 14.0), (2.75, 3000, 16.0), (4.0, 1000, 17.0), (2.5, 500, 200.0)],
)
def test_bounds_are_hardly_above_the_prices(shape, scale, order, deviations):
    law = published(shape, scale, order, deviations)
    weights = np.unique(np.geomspace(0.004, 0.1, 7) * scale * min(1, 17 / order)).astype(np.int64) + 1
    exact = exact_prices(law, weights)
    found = price_bounds(law, weights, most=5.0)
    payable = exact < 4.9
    assert np.all(found >= exact)
    assert np.all(found[payable] <= exact[payable] * 1.0002 + 1e-9)
    assert np.all(np.isinf(found[exact > 5.001]))
    assert np.all(within(law, weights, found)[np.isfinite(found)])
    assert not np.any(within(law, weights, exact * (1 - 1e-6) - 1e-10))


@given(
    shape=st.sampled_from([1.0, 1.3, 2.0, 2.5, 3.0, 4.0]),
    scale=st.integers(5, 60),
    order=st.floats(1.2, 40.0),
    deviations=st.sampled_from([2.0, 2.2, 3.0, 5.5, 9.0]),
    weight=st.integers(1, 12),
)
@example(shape=2.5, scale=20, order=3.0, deviations=2.0, weight=5)  # boundaries beyond the reach show most
def test_a_bound_is_never_below_the_price(shape, scale, order, deviations, weight):
    law = published(shape, scale, order, deviations)
    if weight > law.spacing:
        return
    weights = np.array([weight])
    exact = exact_prices(law, weights)
    assert price_bounds(law, weights)[0] >= exact[0] * (1 - 1e-9)
    assert not within(law, weights, exact * (1 - 1e-6) - 1e-10)[0]


@pytest.mark.parametrize(
    ("shape", "order", "weight"), [(4.0, 17.0, 5), (4.0, 17.0, 20), (3.0, 17.0, 40), (2.0, 40.0, 60)]
)
def test_tails_that_no_float_holds_are_bounded_as_well(shape, order, weight):
    """Levels are so far apart that tails of other boundaries underflow; some maxima are where a tail is e^-300."""
    law = published(shape, 400, order, 29.0)
    exact = exact_prices(law, np.array([weight]))[0]
    assert exact <= price_bounds(law, np.array([weight]))[0] <= exact * 1.0002 + 1e-9


def test_weights_that_pass_two_boundaries_and_orders_beyond_floats_have_no_bound():
    law = published(2.0, 100, 17.0, 2.5)
    assert price_bounds(law, np.array([law.spacing + 1]))[0] == math.inf
    assert not within(law, np.array([law.spacing + 1]), np.array([1e9]))[0]
    assert price_bounds(published(4.0, 100, 900.0, 5.5), np.array([80]))[0] == math.inf


def test_a_bound_does_not_depend_on_the_weights_beside_it_nor_on_forged_ones():
    """Also not on weights that no memory holds, which have no bound."""
    law = published(2.5, 3000, 17.0, 5.5)
    weights = np.arange(20, 320)
    together = price_bounds(law, weights)
    for place in (0, 7, 255, 256, 299):
        assert together[place] == pytest.approx(price_bounds(law, weights[[place]])[0], rel=1e-9)
    forged = np.array([30, 300, 10**12, 2**62])
    found = price_bounds(law, forged)
    assert found.tolist() == [*price_bounds(law, forged[:2]), math.inf, math.inf]
    assert within(law, forged, np.full(4, found[1])).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("scale", "spacing"), [(20, 120), (60, 900), (500, 3000)])
def test_a_list_that_charges_too_little_is_refused(scale, spacing):
    noise, weight = ExponentialPower(2.5, scale), scale // 15
    needed = math.ceil(level_price(noise, 17.0, weight, spacing) / 5.0 * BUDGET_UNITS * (1 + 1e-9))
    enough = needed + needed // 5000  # as close as the bounds are
    check_prices(PriceList(noise, 17.0, 5.0, (weight,), (enough,), spacing))
    with pytest.raises(ValueError, match="Use make_price_list"):
        check_prices(PriceList(noise, 17.0, 5.0, (weight,), (needed - needed // 10**6,), spacing))
