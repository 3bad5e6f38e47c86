"""Prices of looks and of levels: references, the definition with 50 digits, faults."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant

from dp_transforms.accounting.purse import look_prices
from dp_transforms.accounting.purse.look_prices import SMALLEST_PRICE, level_price, look_price
from dp_transforms.mechanisms.exponential_power import LOG_TAIL_ERROR, ExponentialPower
from tests.unit import purse_oracle
from tests.unit.purse_oracle import REFERENCE

SCALE = 10_000  # fine enough that the spacing of integers does not show in six digits
CASES = [
    (entry["p"], entry["alpha"], round(float(weight) * SCALE), price)
    for entry in REFERENCE["prices"]
    for weight, price in entry["price_of_weight"].items()
]
SMALL = [(1.0, 6, 2.0, 1), (1.5, 5, 9.0, 2), (2.0, 6, 17.0, 1), (2.5, 7, 4.0, 3), (3.0, 6, 17.0, 1), (4.0, 9, 1.5, 4)]


@pytest.mark.parametrize(("shape", "order", "weight", "price"), CASES)
def test_reference_prices(shape, order, weight, price):
    """Six digits are given, and all are met: the supremum at p = 3, weight .2, is where the tail is e^-303."""
    assert look_price(ExponentialPower(shape, SCALE), order, weight) == pytest.approx(price, rel=6e-6)


@pytest.mark.parametrize(("shape", "scale", "order", "weight"), SMALL)
def test_prices_are_those_of_the_definition(shape, scale, order, weight):
    """Over counts to 12 scales on both sides, with 50 digits; rounded up, and by less than 1e-8."""
    found = look_price(ExponentialPower(shape, scale), order, weight)
    exact = purse_oracle.price(shape, scale, order, weight, range(-12 * scale, 12 * scale))
    assert exact <= found <= max(exact * (1 + 1e-8), 3 * SMALLEST_PRICE)


@pytest.mark.parametrize("shape", [1.0, 2.5, 4.0])
def test_a_weight_costs_more_than_a_smaller_one(shape):
    noise = ExponentialPower(shape, 50)
    prices = [look_price(noise, 12.0, weight) for weight in (1, 2, 3, 5, 8, 13, 21)]
    assert prices == sorted(prices)
    assert prices[0] < prices[-1]


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


def test_orders_beyond_floats_have_an_infinite_price():
    assert look_price(ExponentialPower(4.0, 100), 900.0, 80) == math.inf
    assert math.isfinite(look_price(ExponentialPower(4.0, 100), 100.0, 1))


# --- Planted faults


@pytest.mark.parametrize(("shape", "scale", "order", "weight"), SMALL)
def test_the_bound_beyond_the_reach_holds(shape, scale, order, weight):
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
def test_an_outcome_is_rounded_up_for_all_errors_of_its_logarithms(order):
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


def test_the_price_of_another_order_is_another_price():
    noise = ExponentialPower(2.5, 1000)
    assert look_price(noise, 16.0, 50) < look_price(noise, 17.0, 50) * 0.97


# --- Prices of levels: reference ratios, the definition with 50 digits, and what closer boundaries cost.

SCALE_OF_LEVELS = 4000
RATIOS = REFERENCE["joint_price_of_levels_over_single (worst over N)"]
WEIGHTS = {
    f"p={entry['p']:g}": [row["weight"] for row in entry["looks"].values()]
    for entry in REFERENCE["thresholds_if_all_have_N_looks"]
    if entry["alpha"] == 17
}


def worst_ratio(shape, deviations):
    noise = ExponentialPower(shape, SCALE_OF_LEVELS)
    spacing = math.ceil(deviations * noise.standard_deviation)
    weights = [round(weight * SCALE_OF_LEVELS) for weight in WEIGHTS[f"p={shape:g}"]]
    return max(level_price(noise, 17, w, spacing) / look_price(noise, 17, w) for w in weights)


@pytest.mark.parametrize("shape", [2.0, 2.5, 3.0])
def test_reference_ratios(shape):
    """Worst over 1 to 1,152 looks, to the digits that are given."""
    for deviations in (4, 3):
        wanted = RATIOS[f"{deviations} sd"][f"p={shape:g}"]
        digits = len(str(wanted).partition(".")[2])
        assert round(worst_ratio(shape, deviations), digits) == wanted
    assert 1 <= worst_ratio(shape, 5.5) <= RATIOS["5.5 sd"]


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
                ends = [purse_oracle.tail(shape, scale, edge) for edge in (1 - intervals[0][0], intervals[-1][1])]
                worlds.append(
                    [ends[0], *(purse_oracle.between(shape, scale, *interval) for interval in intervals), ends[1]]
                )
            largest = max(largest, purse_oracle.excess(*worlds, order), purse_oracle.excess(*worlds[::-1], order))
        exact = float(mpmath.log1p(largest) / (order - 1))
        assert exact <= found <= exact * (1 + 1e-5)


@pytest.mark.parametrize("shape", [2.0, 2.5, 3.0])
def test_boundaries_at_the_known_threshold_and_at_the_open_one_are_too_close(shape):
    """A fault: levels of known items at T_known, T, 2 T. They cost more than what equal steps of 5.5 deviations do."""
    noise = ExponentialPower(shape, 40)
    spacing = math.ceil(5.5 * noise.standard_deviation)
    charged = level_price(noise, 17.0, 1, spacing)
    known, usual = noise.smallest_margin(1.26e-6), noise.smallest_margin(5e-13)
    largest = mpmath.mpf(0)
    for count in range(2 * usual):
        edges = [known - count, usual - count, 2 * usual - count]
        worlds = [
            [
                purse_oracle.tail(shape, 40, 1 - edges[0] + moved),
                *(
                    purse_oracle.between(shape, 40, low - moved, high - moved)
                    for low, high in itertools.pairwise(edges)
                ),
                purse_oracle.tail(shape, 40, edges[-1] - moved),
            ]
            for moved in (1, 0)
        ]
        largest = max(largest, purse_oracle.excess(*worlds, 17.0), purse_oracle.excess(*worlds[::-1], 17.0))
    assert float(mpmath.log1p(largest) / 16) > 1.05 * charged


def test_levels_cost_more_than_one_bit_and_less_with_more_space():
    noise = ExponentialPower(3.0, 1000)
    prices = [level_price(noise, 17.0, 24, round(d * noise.standard_deviation)) for d in (2, 3, 4, 5.5, 8)]
    assert prices == sorted(prices, reverse=True)
    assert prices[0] > 1.3 * prices[-1]
    assert prices[-1] >= look_price(noise, 17.0, 24)


def test_infinite_where_one_bit_is():
    assert level_price(ExponentialPower(4.0, 100), 900.0, 80, 300) == math.inf
