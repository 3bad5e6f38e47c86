"""The budget of an order, price lists, the smallest safe threshold, and from how many users on items are found."""

import functools
import itertools
import math

import numpy as np
import pytest

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_bounds import Published
from dp_transforms.accounting.price_list import found_from, make_price_list, order_budget, smallest_open_threshold
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from tests.reference import prices as price_oracle
from tests.reference.prices import REFERENCE, delta_of_budget, tail_of


def price_list(noise, order, budget, most_tests, deviations=29.0):
    """By default with boundaries so far apart that a level costs what one bit does."""
    spacing = math.floor(deviations * noise.standard_deviation)
    return make_price_list(Published(noise, order, spacing), budget, most_tests)


@pytest.mark.parametrize("order", [1.1, 2, 17, 80.5])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-15])
def test_budget_and_delta_are_inverse_and_those_of_dp_accounting(order, epsilon, delta):
    budget = order_budget(order, epsilon, delta)
    if budget < 0:
        return
    proved = delta_of_budget(order, budget, epsilon)
    assert delta * (1 - 1e-6) < proved <= delta
    assert delta_of_budget(order, budget * 1.001 + 1e-6, epsilon) > delta
    from dp_accounting.rdp import rdp_privacy_accountant  # slow to load: here, not for all tests

    theirs, _ = rdp_privacy_accountant.compute_delta([order], [budget], epsilon)
    assert proved == pytest.approx(theirs, rel=1e-6)


SCALE = 10_000


@functools.cache
def reference_list(shape, order, most_tests=1152):
    budget = order_budget(order, REFERENCE["epsilon"], REFERENCE["delta_tests"])
    return price_list(ExponentialPower(shape, SCALE), order, budget, most_tests)


@pytest.mark.parametrize(
    "row", REFERENCE["thresholds_if_all_have_N_tests"], ids=lambda row: f"{row['p']}-{row['alpha']}"
)
def test_reference_weights(row):
    """The grid has 10^-4 of the scale, and beyond 32 tests rungs are at most 1 % apart."""
    prices = reference_list(row["p"], row["alpha"])
    for tests, entry in row["tests"].items():
        wanted = entry["weight"]
        found = prices.replay_weight(int(tests)) / SCALE
        slack = 0.002 if int(tests) <= 32 or tests == "1152" else 0.012
        assert wanted * (1 - slack) - 1 / SCALE < found < wanted * 1.001


EPSILON, DELTA = 1.0, 1e-4  # of the small lists that adversaries attack


def list_of_few_tests(most_tests, shape=2.5, scale=40, order=13.0):
    return price_list(ExponentialPower(shape, scale), order, order_budget(order, EPSILON, DELTA), most_tests)


def adversary(prices, counts):
    """Over all counts within so many scales."""
    noise, reach = prices.noise, counts * prices.noise.scale
    options = []
    for weight, units in zip(prices.weights, prices.units, strict=True):
        worlds = []
        for moved in (weight, 0):
            bits = [price_oracle.bit(noise.shape, noise.scale, m - moved) for m in range(-reach, reach + 1)]
            worlds.append(np.array([[float(one) for one in outcomes] for outcomes in bits]).T)
        options.append((units, *worlds))
    return price_oracle.Adversary(options, EPSILON)


@pytest.mark.parametrize(("shape", "scale", "order"), [(1.0, 12, 14.0), (2.5, 16, 13.0), (3.0, 20, 12.0)])
@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize(("tests", "counts"), [(1, 4), (2, 4), (3, 2)])
def test_no_adaptive_adversary_gets_more_than_delta(shape, scale, order, removed, tests, counts):
    """Any counts and any payable weights, chosen by the bits so far. It gets a part of what is promised, but for
    Laplace noise so wide that a test or two are (epsilon, 0)-DP."""
    prices = list_of_few_tests(tests, shape, scale, order)
    attained = adversary(prices, counts).delta(tests, BUDGET_UNITS, removed=removed)
    assert (0.0 if shape == 1 else DELTA * 0.03) <= attained <= DELTA


FINE_SCALE = 16_000


def fine_reference_list(shape, most_tests):
    budget = order_budget(17, REFERENCE["epsilon"], REFERENCE["delta_tests"])
    return price_list(ExponentialPower(shape, FINE_SCALE), 17, budget, most_tests, 20.0)


def likeliest_report(prices, threshold):
    """The largest sum of ``Pr[Z >= T - weight]`` over tests that one user budget pays for: all multisets."""
    noise = prices.noise
    risks = [float(tail_of(noise, threshold - weight)) for weight in prices.weights]
    best = 0.0
    for tests in range(1, prices.most_tests + 1):
        for chosen in itertools.combinations_with_replacement(range(len(risks)), tests):
            if sum(prices.units[index] for index in chosen) <= BUDGET_UNITS:
                best = max(best, sum(risks[index] for index in chosen))
    return best


@pytest.mark.parametrize("most_tests", [1, 2, 4])
@pytest.mark.parametrize("delta_open", [1e-2, 1e-5, 1e-12])
def test_a_lone_item_is_named_at_most_with_delta_open(most_tests, delta_open):
    """However the budget is spent. One integer lower, one of its weights risks more than its share of the budget."""
    prices = list_of_few_tests(most_tests)
    threshold = smallest_open_threshold(prices, delta_open)
    assert likeliest_report(prices, threshold) <= delta_open
    noise = prices.noise
    risks = [float(tail_of(noise, threshold - 1 - w)) for w in prices.weights]
    assert max(risk * BUDGET_UNITS / units for risk, units in zip(risks, prices.units, strict=True)) > delta_open
    if (most_tests, delta_open) == (2, 1e-5):  # where the smallest weight binds
        assert likeliest_report(prices, threshold - 1) > delta_open


def test_found_from_is_the_smallest_number_of_users():
    prices = fine_reference_list(2.5, 100)
    threshold = smallest_open_threshold(prices, 5e-10)
    for tests, probability in ((1, 0.95), (7, 0.5), (100, 0.99), (100, 0.9)):
        users, weight = found_from(prices, threshold, tests, probability), prices.replay_weight(tests)
        passes = [float(tail_of(prices.noise, threshold - n * weight)) for n in (users - 1, users)]
        assert passes[0] < probability <= passes[1]
