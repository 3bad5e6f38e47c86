"""The budget of an order, price lists, and the smallest safe threshold."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.stats import norm

from dp_transforms.accounting.purse.look_prices import level_price, look_price
from dp_transforms.accounting.purse.open_threshold import found_from, smallest_open_threshold
from dp_transforms.accounting.purse.price_list import make_price_list, order_budget
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from tests.unit import purse_oracle
from tests.unit.purse_oracle import REFERENCE, delta_of_budget


def test_reference_budget():
    found = order_budget(REFERENCE["alpha"], REFERENCE["epsilon"], REFERENCE["delta_looks"])
    assert found == pytest.approx(REFERENCE["budget"], abs=5e-7)


@pytest.mark.parametrize("order", [1.1, 2, 17, 80.5])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-15])
def test_budget_and_delta_are_inverse_and_those_of_dp_accounting(order, epsilon, delta):
    budget = order_budget(order, epsilon, delta)
    if budget < 0:
        return
    proved = delta_of_budget(order, budget, epsilon)
    assert delta * (1 - 1e-6) < proved < delta * (1 + 1e-8)
    assert delta_of_budget(order, budget * 1.001 + 1e-6, epsilon) > delta
    theirs, _ = rdp_privacy_accountant.compute_delta([order], [budget], epsilon)
    assert proved == pytest.approx(theirs, rel=1e-6)


def test_some_budgets_are_negative():
    assert order_budget(2, 1.0, 1e-9) < 0


def test_another_order_is_another_budget():
    """A fault: prices of order 17 paid from the budget of order 18 prove less than was promised."""
    assert delta_of_budget(17, order_budget(18, 2.0, 1e-9), 2.0) > 2e-9


@pytest.mark.parametrize("deviation", [2.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_no_less_than_the_exact_delta_of_gaussian_noise(deviation, epsilon):
    """[Balle, Wang 2018]: its divergence at each order is order / (2 deviation^2)."""
    centre = 1 / (2 * deviation)
    exact = norm.cdf(centre - epsilon * deviation) - math.exp(epsilon) * norm.cdf(-centre - epsilon * deviation)
    proved = [delta_of_budget(order, order / (2 * deviation**2), epsilon) for order in (1.5, 3, 6, 12, 25, 36, 50)]
    assert exact < min(proved) < 30 * exact


# --- Price lists: reference weights, exact sums, and the best adaptive adversary of two and three looks.

SCALE = 10_000
EPSILON, DELTA = 1.0, 1e-4  # of the small lists that adversaries attack


@functools.cache
def reference_list(shape, order, most_looks=1152):
    budget = order_budget(order, REFERENCE["epsilon"], REFERENCE["delta_looks"])
    return make_price_list(ExponentialPower(shape, SCALE), order, budget, most_looks)


@pytest.mark.parametrize(
    "row", REFERENCE["thresholds_if_all_have_N_looks"], ids=lambda row: f"{row['p']}-{row['alpha']}"
)
def test_reference_weights(row):
    """The grid has 10^-4 of the scale, and beyond 32 looks rungs are at most 1 % apart."""
    prices = reference_list(row["p"], row["alpha"])
    for looks, entry in row["looks"].items():
        wanted = entry["weight"]
        found = prices.replay_weight(int(looks)) / SCALE
        slack = 0.002 if int(looks) <= 32 or looks == "1152" else 0.012
        assert wanted * (1 - slack) - 1 / SCALE < found < wanted * 1.001


@pytest.mark.parametrize("spacing", [0, 4000])
def test_every_price_pays_for_its_look(spacing):
    noise = ExponentialPower(2.5, 2000)
    prices = make_price_list(noise, 17.0, 0.9, 40, spacing=spacing)
    assert prices.weights[0] > 50
    assert prices.most_looks == 40
    for weight, units in zip(prices.weights, prices.units, strict=True):
        price = units * 0.9 / PURSE_UNITS
        assert price >= look_price(noise, 17.0, weight)
        if spacing:
            assert price >= level_price(noise, 17.0, weight, spacing)
    for looks in (1, 7, 32, 40, 10_000):
        weight = prices.replay_weight(looks)
        paid = min(looks, 40) * prices.units[prices.weights.index(weight)]
        assert weight > 0
        assert paid <= PURSE_UNITS


def test_a_purse_pays_for_no_more_looks_than_declared():
    assert [reference_list(2.5, 17.0, looks).most_looks for looks in (1, 2, 33, 1000)] == [1, 2, 33, 1000]


# --- The best adaptive adversary


def small_list(shape, scale, order, looks):
    return make_price_list(ExponentialPower(shape, scale), order, order_budget(order, EPSILON, DELTA), looks)


def adversary(prices, *, weights_times=1, counts=4):
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
def test_no_adaptive_adversary_gets_more_than_delta(shape, scale, order, removed, looks, counts):
    """Any counts and any payable weights, chosen by the bits so far. It gets a part of what is promised, but for
    Laplace noise so wide that a look or two are (epsilon, 0)-DP."""
    prices = small_list(shape, scale, order, looks)
    attained = adversary(prices, counts=counts).delta(looks, PURSE_UNITS, removed=removed)
    assert (0.0 if shape == 1 else DELTA * 0.03) <= attained <= DELTA


@pytest.mark.parametrize("looks", [1, 2])
def test_the_price_of_a_smaller_weight_is_seen(looks):
    """A fault: looks of twice the weight that is paid for."""
    prices = small_list(2.5, 16, 13.0, looks)
    assert adversary(prices, weights_times=2).delta(looks, PURSE_UNITS) > DELTA


@pytest.mark.parametrize("looks", [1, 2])
def test_prices_of_another_order_are_seen(looks):
    """A fault: prices of order 3, less by far, paid from the budget of order 13."""
    mixed = make_price_list(ExponentialPower(2.5, 16), 3.0, order_budget(13.0, EPSILON, DELTA), looks)
    assert adversary(mixed).delta(looks, PURSE_UNITS) > DELTA


def test_a_purse_checked_after_a_look_is_seen():
    """A fault: a second look is begun whenever anything is left."""
    prices = small_list(2.5, 16, 13.0, 1)
    assert adversary(prices).delta(2, PURSE_UNITS) <= DELTA
    assert adversary(prices).delta(2, 2 * PURSE_UNITS - 1) <= DELTA  # one look, since each takes a full purse
    assert adversary(prices, counts=2).delta(3, 3 * PURSE_UNITS) > DELTA


# --- Wrong lists


def test_a_list_with_too_low_a_price_cannot_be_built():
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


# --- The smallest safe threshold: reference values, all ways to spend a purse, and two neighbouring runs to the end.

FINE_SCALE = 16_000


def fine_reference_list(shape, most_looks):
    budget = order_budget(17, REFERENCE["epsilon"], REFERENCE["delta_looks"])
    return make_price_list(ExponentialPower(shape, FINE_SCALE), 17, budget, most_looks)


@pytest.mark.parametrize(
    ("shape", "most_looks", "wanted"),
    [
        (float(shape.removeprefix("p=")), int(looks), wanted)
        for shape, row in REFERENCE["joint_T_in_scales"].items()
        for looks, wanted in row.items()
        if int(looks) <= 10_000  # more looks need a finer grid than a test has time for
    ],
)
def test_reference_thresholds(shape, most_looks, wanted):
    """Three digits after the point are given. T can be a little larger: the smallest weight is rounded to the grid."""
    found = smallest_open_threshold(fine_reference_list(shape, most_looks), REFERENCE["delta_open"]) / FINE_SCALE
    assert wanted - 0.0006 < found < wanted + 0.0025


def list_of_few_looks(most_looks=3):
    return make_price_list(ExponentialPower(2.5, 40), 13.0, order_budget(13.0, 1.0, 1e-4), most_looks)


def likeliest_report(prices, threshold):
    """The largest sum of ``Pr[Z >= T - weight]`` over looks that one purse pays for: all multisets."""
    noise = prices.noise
    risks = [float(purse_oracle.tail(noise.shape, noise.scale, threshold - weight)) for weight in prices.weights]
    best = 0.0
    for looks in range(1, prices.most_looks + 1):
        for chosen in itertools.combinations_with_replacement(range(len(risks)), looks):
            if sum(prices.units[index] for index in chosen) <= PURSE_UNITS:
                best = max(best, sum(risks[index] for index in chosen))
    return best


@pytest.mark.parametrize("most_looks", [1, 2, 4])
@pytest.mark.parametrize("delta_open", [1e-2, 1e-5, 1e-12])
def test_a_lone_item_is_named_at_most_with_delta_open(most_looks, delta_open):
    """However the purse is spent. One integer lower, one of its weights risks more than its share of the purse."""
    prices = list_of_few_looks(most_looks)
    threshold = smallest_open_threshold(prices, delta_open)
    assert likeliest_report(prices, threshold) <= delta_open
    noise = prices.noise
    risks = [float(purse_oracle.tail(noise.shape, noise.scale, threshold - 1 - w)) for w in prices.weights]
    assert max(risk * PURSE_UNITS / units for risk, units in zip(risks, prices.units, strict=True)) > delta_open


def test_one_lower_is_not_safe_where_the_smallest_weight_binds():
    prices = list_of_few_looks(2)
    threshold = smallest_open_threshold(prices, 1e-5)
    assert likeliest_report(prices, threshold) <= 1e-5 < likeliest_report(prices, threshold - 1)


def test_a_threshold_for_the_smallest_weight_alone_can_be_too_low():
    """A fault: where few looks of different weights are payable, a large one can bind."""
    prices = list_of_few_looks(2)
    heavy = dataclasses.replace(prices, units=(PURSE_UNITS - 1, PURSE_UNITS), budget=2.0)
    only_small = prices.weights[0] + prices.noise.smallest_margin(1e-3)
    assert smallest_open_threshold(heavy, 1e-3) > only_small
    assert likeliest_report(heavy, only_small) > 1e-3


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("lone", [(0, 1), (1, 0), (1, 1)])
def test_neighbouring_runs_with_lone_items(removed, lone):
    """Two looks after each other, some at items that nobody else holds: without the user these are not drawn for.

    All counts and weights, chosen by the first bit: at most delta_looks + delta_open, and more than delta_looks alone
    pays for if the threshold is half as high.
    """
    epsilon, delta_looks, delta_open = 1.0, 1e-4, 1e-5
    prices = list_of_few_looks(2)
    safe = smallest_open_threshold(prices, delta_open)
    assert _runs_with_lone_items(prices, safe, lone, removed, epsilon) <= delta_looks + delta_open
    if not removed:
        assert _runs_with_lone_items(prices, safe // 2, lone, removed, epsilon) > delta_looks + delta_open


def _runs_with_lone_items(prices, threshold, lone, removed, epsilon):
    """The largest ``P(S) - e^epsilon Q(S)`` of the real runs: exact, with the probabilities of the four outcomes."""
    noise = prices.noise

    def options(is_lone):
        found = []
        for weight, units in zip(prices.weights, prices.units, strict=True):
            margins = [threshold] if is_lone else range(-2 * noise.scale, 2 * noise.scale + 1, 2)
            for margin in margins:
                with_user = np.array([float(p) for p in purse_oracle.bit(noise.shape, noise.scale, margin - weight)])
                without = np.array([float(p) for p in purse_oracle.bit(noise.shape, noise.scale, margin)])
                found.append((units, with_user, np.array([0.0, 1.0]) if is_lone else without))
        return found

    first, second = (options(is_lone) for is_lone in lone)
    left = {units: [o for o in second if o[0] <= PURSE_UNITS - units] for units in prices.units}
    best = 0.0
    for units, *worlds in first:
        p, q = worlds[::-1] if removed else worlds
        total = 0.0
        for hit in (0, 1):
            gain = max(0.0, p[hit] - math.exp(epsilon) * q[hit])
            if left[units]:
                then = np.array([[o[2], o[1]] if removed else [o[1], o[2]] for o in left[units]])
                gains = np.maximum(0.0, p[hit] * then[:, 0] - math.exp(epsilon) * q[hit] * then[:, 1])
                gain = max(gain, float(gains.sum(axis=1).max()))
            total += gain
        best = max(best, total)
    return best


def test_found_from_is_the_smallest_number_of_users():
    prices = fine_reference_list(2.5, 100)
    threshold = smallest_open_threshold(prices, 5e-10)
    for looks, probability in ((1, 0.95), (7, 0.5), (100, 0.99), (100, 0.9)):
        users, weight = found_from(prices, threshold, looks, probability), prices.replay_weight(looks)
        passes = [float(purse_oracle.tail(2.5, FINE_SCALE, threshold - n * weight)) for n in (users - 1, users)]
        assert passes[0] < probability <= passes[1]


def test_what_is_found_less_often_than_not_is_not_asked_for():
    prices = make_price_list(ExponentialPower(2.5, 5000), 17.0, 0.9, 500, spacing=20_000)
    with pytest.raises(ValueError, match="probability must lie in"):
        found_from(prices, 20_000, 50, 0.4)
