"""Prices of looks and of levels, and bounds on many: references, the definition with 50 digits, their work."""

import contextlib
import itertools
import math
import time

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dp_transforms.accounting.exponential_power import LOG_TAIL_ERROR, ExponentialPower
from dp_transforms.accounting.price_bounds import SMALLEST_PRICE, Published, price_bounds, within
from dp_transforms.accounting.price_list import PriceList, check_prices
from dp_transforms.plan.plan import Plan
from tests.helpers import exact_prices as exact_prices_of
from tests.helpers.exact_prices import level_price, look_price
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.plan_files import changed_plan
from tests.reference import prices as price_oracle

SMALL = [(1.0, 6, 2.0, 1), (1.5, 5, 9.0, 2), (2.0, 6, 17.0, 1), (2.5, 7, 4.0, 3), (3.0, 6, 17.0, 1), (4.0, 9, 1.5, 4)]


@pytest.mark.parametrize(("shape", "scale", "order", "weight"), SMALL)
def test_prices_are_those_of_the_definition(shape, scale, order, weight):
    """Over counts to 12 scales on both sides, with 50 digits; rounded up, and by less than 1e-8."""
    found = look_price(ExponentialPower(shape, scale), order, weight)
    exact = price_oracle.price(shape, scale, order, weight, range(-12 * scale, 12 * scale))
    assert exact <= found <= max(exact * (1 + 1e-8), 3 * SMALLEST_PRICE)


@pytest.mark.parametrize("order", [2, 8, 17, 64])
@pytest.mark.parametrize("weight", [10, 100])
def test_a_bit_costs_less_than_the_noisy_count_itself(order, weight):
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


@pytest.mark.parametrize(("shape", "scale", "order", "weight"), SMALL)
def test_the_bound_beyond_the_reach_holds(shape, scale, order, weight):
    """At every reach at which it is finite, for the counts beyond it, both ways and with both outcomes."""
    noise, finite = ExponentialPower(shape, scale), 0
    for reach in range(weight + 1, 9 * scale, 3):
        bound = exact_prices_of.beyond_reach(noise, order, weight, reach)
        if bound == math.inf:
            continue
        finite += 1
        with_user = price_oracle.tail(shape, scale, reach - weight)
        assert bound >= (1 - with_user) ** (1 - order) - 1  # "far below" in docs/guarantee.md
        for margin in (reach + 1, reach + 2, reach + scale, weight - reach, weight - reach - scale):
            worlds = [price_oracle.bit(shape, scale, margin - weight), price_oracle.bit(shape, scale, margin)]
            assert price_oracle.excess(*worlds, order) <= bound
            assert price_oracle.excess(*worlds[::-1], order) <= bound
    assert finite > 5


@pytest.mark.parametrize("order", [1.5, 17.0, 200.0])
def test_an_outcome_is_rounded_up_for_all_errors_of_its_logarithms(order):
    """P too small and Q too large by as much as is stated: still no less than the exact part of the sum."""
    for margin in (1, 30, 250, 500):
        p, q = price_oracle.tail(2.5, 100, margin - 1), price_oracle.tail(2.5, 100, margin)
        for first, second in ((p, q), (q, p), (1 - q, 1 - p)):
            with mpmath.workdps(50):
                exact = first * ((first / second) ** (mpmath.mpf(order) - 1) - 1)
                logs = [mpmath.log(first), mpmath.log(second)]
                errors = [LOG_TAIL_ERROR * max(1, abs(log)) for log in logs]
                low, high = float(logs[0] - errors[0]), float(logs[1] + errors[1])
            found = float(exact_prices_of.outcome_excess(np.array([low]), np.array([high]), order)[0])
            assert exact <= found <= exact + 1e-8 * (abs(exact) + first)


@pytest.mark.parametrize(("shape", "scale", "order", "weight"), [(1.0, 5, 3.0, 2), (2.0, 6, 17.0, 1), (2.5, 8, 9.0, 2)])
def test_levels_cost_what_the_definition_says(shape, scale, order, weight):
    """All boundaries from far below the count to far above it, with 50 digits, both ways."""
    noise = ExponentialPower(shape, scale)
    for deviations in (2, 3, 5):
        spacing = math.ceil(deviations * noise.standard_deviation)
        found = level_price(noise, order, weight, spacing)
        largest = mpmath.mpf(0)
        for offset in range(spacing):
            boundaries = [offset + j * spacing for j in range(-9, 10)]
            worlds = []
            for moved in (weight, 0):
                intervals = [(low - moved, high - moved) for low, high in itertools.pairwise(boundaries)]
                ends = [price_oracle.tail(shape, scale, edge) for edge in (1 - intervals[0][0], intervals[-1][1])]
                worlds.append(
                    [ends[0], *(price_oracle.between(shape, scale, *interval) for interval in intervals), ends[1]]
                )
            largest = max(largest, price_oracle.excess(*worlds, order), price_oracle.excess(*worlds[::-1], order))
        exact = float(mpmath.log1p(largest) / (order - 1))
        assert exact <= found <= exact * (1 + 1e-5)


def exact_prices(published, weights):
    noise, order, spacing = published
    return np.array([level_price(noise, order, int(weight), spacing) for weight in weights])


def published(shape, scale, order, deviations):
    noise = ExponentialPower(shape, scale)
    return Published(noise, order, math.ceil(deviations * noise.standard_deviation))


@pytest.mark.parametrize("deviations", [5.5, 29.0])
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
    deviations=st.sampled_from([2.0, 2.2, 3.0, 5.5, 9.0]),
    weight=st.integers(1, 12),
)
@example(shape=2.5, scale=20, order=3.0, deviations=2.0, weight=5)  # boundaries beyond the reach show most
def test_a_bound_is_never_below_the_price(shape, scale, order, deviations, weight):
    looks = published(shape, scale, order, deviations)
    if weight > looks.spacing:
        return
    weights = np.array([weight])
    exact = exact_prices(looks, weights)
    assert price_bounds(looks, weights)[0] >= exact[0] * (1 - 1e-9)
    assert not within(looks, weights, exact * (1 - 1e-6) - 1e-10)[0]


def test_bounds_hold_by_the_definition_with_50_digits():
    for shape, scale, order, weight in ((1.0, 6, 2.0, 1), (2.0, 6, 17.0, 1), (2.5, 7, 4.0, 3)):
        exact = price_oracle.price(shape, scale, order, weight, range(-12 * scale, 12 * scale))
        found = price_bounds(published(shape, scale, order, 29.0), np.array([weight]))[0]
        assert exact <= found <= exact * 1.0002 + 1e-12


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
    assert price_bounds(published(4.0, 100, 900.0, 5.5), np.array([80]))[0] == math.inf


def test_tails_that_no_float_holds_are_bounded_as_well():
    """Levels are so far apart that tails of other boundaries underflow; some maxima are where a tail is e^-300."""
    for shape, order, weight in ((4.0, 17.0, 5), (4.0, 17.0, 20), (3.0, 17.0, 40), (2.0, 40.0, 60)):
        looks = published(shape, 400, order, 29.0)
        exact = exact_prices(looks, np.array([weight]))[0]
        assert exact <= price_bounds(looks, np.array([weight]))[0] <= exact * 1.0002 + 1e-9


def test_forged_weights_that_no_memory_holds_have_no_bound_and_leave_the_others_alone():
    looks = published(2.5, 3000, 17.0, 5.5)
    weights = np.array([30, 300, 10**12, 2**62])
    found = price_bounds(looks, weights)
    assert found[:2].tolist() == price_bounds(looks, weights[:2]).tolist()
    assert np.isinf(found[2:]).all()
    assert within(looks, weights, np.full(4, found[1])).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("scale", "spacing"), [(20, 120), (60, 900), (500, 3000)])
def test_a_list_that_charges_too_little_is_refused(scale, spacing):
    noise, weight = ExponentialPower(2.5, scale), scale // 15
    needed = math.ceil(level_price(noise, 17.0, weight, spacing) / 5.0 * 10**12 * (1 + 1e-9))
    enough = needed + needed // 5000  # as close as the bounds are
    check_prices(PriceList(noise, 17.0, 5.0, (weight,), (enough,), spacing))
    with pytest.raises(ValueError, match="Use make_price_list"):
        check_prices(PriceList(noise, 17.0, 5.0, (weight,), (needed - needed // 10**8 - 2,), spacing))


MANY = {"contributions.weights": list(range(1, 1001)), "contributions.units": [10**12 // 20 + n for n in range(1000)]}
HIGH = {"threshold": 10**7, "followed.threshold": 10**7, "shares.sampling": 1e-15}
WIDE = {**HIGH, "contributions.scale": 50_000, "contributions.spacing": 200_000}
FEW = {"contributions.weights": list(range(50_000, 50_100)), "contributions.units": MANY["contributions.units"][:100]}


@pytest.mark.parametrize(
    "changes",
    [
        {**MANY, **WIDE},
        {**MANY, **WIDE, "contributions.spacing": 800_000},  # 29 standard deviations
        {**WIDE, "contributions.order": 1000.0, "contributions.shape": 4.0, **FEW},
        {**WIDE, "contributions.order": 1000.0, "contributions.shape": 1.0, **MANY},
    ],
)
def test_a_forged_plan_is_judged_at_once(changes):
    """Its exact prices would take minutes."""
    text = changed_plan(small_looks_plan(), changes)
    started = time.process_time()
    with contextlib.suppress(ValueError):
        assert Plan.from_json(text).contributions is not None
    assert time.process_time() - started < 3
