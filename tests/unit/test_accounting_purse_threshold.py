"""The smallest safe threshold: reference values, all ways to spend a purse, and two neighbouring runs to the end."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from dp_transforms.accounting.purse.open_threshold import found_from, smallest_open_threshold
from dp_transforms.accounting.purse.price_list import PriceList, make_price_list, order_budget
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from tests.unit import purse_oracle
from tests.unit.purse_oracle import REFERENCE

SCALE = 16_000


def reference_list(shape: float, most_looks: int) -> PriceList:
    budget = order_budget(17, REFERENCE["epsilon"], REFERENCE["delta_looks"])
    return make_price_list(ExponentialPower(shape, SCALE), 17, budget, most_looks)


@pytest.mark.parametrize(
    ("shape", "most_looks", "wanted"),
    [
        (float(shape.removeprefix("p=")), int(looks), wanted)
        for shape, row in REFERENCE["joint_T_in_scales"].items()
        for looks, wanted in row.items()
        if int(looks) <= 10_000  # more looks need a finer grid than a test has time for
    ],
)
def test_reference_thresholds(shape: float, most_looks: int, wanted: float) -> None:
    """Three digits after the point are given. T can be a little larger: the smallest weight is rounded to the grid."""
    found = smallest_open_threshold(reference_list(shape, most_looks), REFERENCE["delta_open"]) / SCALE
    assert wanted - 0.0006 < found < wanted + 0.0025


def small_list(most_looks: int = 3) -> PriceList:
    return make_price_list(ExponentialPower(2.5, 40), 13.0, order_budget(13.0, 1.0, 1e-4), most_looks)


def likeliest_report(prices: PriceList, threshold: int) -> float:
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
def test_a_lone_item_is_named_at_most_with_delta_open(most_looks: int, delta_open: float) -> None:
    """However the purse is spent. One integer lower, one of its weights risks more than its share of the purse."""
    prices = small_list(most_looks)
    threshold = smallest_open_threshold(prices, delta_open)
    assert likeliest_report(prices, threshold) <= delta_open
    noise = prices.noise
    risks = [float(purse_oracle.tail(noise.shape, noise.scale, threshold - 1 - w)) for w in prices.weights]
    assert max(risk * PURSE_UNITS / units for risk, units in zip(risks, prices.units, strict=True)) > delta_open


def test_one_lower_is_not_safe_where_the_smallest_weight_binds() -> None:
    prices = small_list(2)
    threshold = smallest_open_threshold(prices, 1e-5)
    assert likeliest_report(prices, threshold) <= 1e-5 < likeliest_report(prices, threshold - 1)


def test_a_threshold_for_the_smallest_weight_alone_can_be_too_low() -> None:
    """A fault: where few looks of different weights are payable, a large one can bind."""
    prices = small_list(2)
    heavy = dataclasses.replace(prices, units=(PURSE_UNITS - 1, PURSE_UNITS), budget=2.0)
    only_small = prices.weights[0] + prices.noise.smallest_margin(1e-3)
    assert smallest_open_threshold(heavy, 1e-3) > only_small
    assert likeliest_report(heavy, only_small) > 1e-3


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("lone", [(0, 1), (1, 0), (1, 1)])
def test_neighbouring_runs_with_lone_items(removed: bool, lone: tuple[int, int]) -> None:
    """Two looks after each other, some at items that nobody else holds: without the user these are not drawn for.

    All counts and weights, chosen by the first bit: at most delta_looks + delta_open, and more than delta_looks alone
    pays for if the threshold is half as high.
    """
    epsilon, delta_looks, delta_open = 1.0, 1e-4, 1e-5
    prices = small_list(2)
    safe = smallest_open_threshold(prices, delta_open)
    assert _runs_with_lone_items(prices, safe, lone, removed, epsilon) <= delta_looks + delta_open
    if not removed:
        assert _runs_with_lone_items(prices, safe // 2, lone, removed, epsilon) > delta_looks + delta_open


def _runs_with_lone_items(
    prices: PriceList, threshold: int, lone: tuple[int, int], removed: bool, epsilon: float
) -> float:
    """The largest ``P(S) - e^epsilon Q(S)`` of the real runs: exact, with the probabilities of the four outcomes."""
    noise = prices.noise

    def options(is_lone: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
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


def test_found_from_is_the_smallest_number_of_users() -> None:
    prices = reference_list(2.5, 100)
    threshold = smallest_open_threshold(prices, 5e-10)
    for looks, probability in ((1, 0.95), (7, 0.5), (100, 0.99), (100, 0.9)):
        users, weight = found_from(prices, threshold, looks, probability), prices.replay_weight(looks)
        passes = [float(purse_oracle.tail(2.5, SCALE, threshold - n * weight)) for n in (users - 1, users)]
        assert passes[0] < probability <= passes[1]


def test_found_from_with_hits() -> None:
    noise = ExponentialPower(2.5, 5000)
    prices = make_price_list(noise, 17.0, 0.9, 500, spacing=20_000)
    hit_prices = make_price_list(noise, 17.0, 0.9, 500, hit_units=PURSE_UNITS // 20, hits=4, spacing=20_000)
    assert found_from(prices, 20_000, 500, hit_prices=hit_prices) == found_from(hit_prices, 20_000, 500)
    assert found_from(prices, 20_000, 500, hit_prices=hit_prices) < found_from(prices, 20_000, 500)
    assert found_from(prices, 20_000, 1, hit_prices=hit_prices) == found_from(prices, 20_000, 1)
    with pytest.raises(ValueError, match="probability must lie in"):
        found_from(prices, 20_000, 50, 0.4)
