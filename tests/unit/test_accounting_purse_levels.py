"""Prices of levels: reference ratios, the definition with 50 digits, and what closer boundaries cost."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest

from dp_transforms.accounting.purse.look_prices import level_price, look_price
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from tests.unit import purse_oracle
from tests.unit.purse_oracle import REFERENCE

SCALE = 4000
RATIOS = REFERENCE["joint_price_of_levels_over_single (worst over N)"]
WEIGHTS = {
    f"p={entry['p']:g}": [row["weight"] for row in entry["looks"].values()]
    for entry in REFERENCE["thresholds_if_all_have_N_looks"]
    if entry["alpha"] == 17
}


def worst_ratio(shape: float, deviations: float) -> float:
    noise = ExponentialPower(shape, SCALE)
    spacing = math.ceil(deviations * noise.standard_deviation)
    weights = [round(weight * SCALE) for weight in WEIGHTS[f"p={shape:g}"]]
    return max(level_price(noise, 17, w, spacing) / look_price(noise, 17, w) for w in weights)


@pytest.mark.parametrize("shape", [2.0, 2.5, 3.0])
def test_reference_ratios(shape: float) -> None:
    """Worst over 1 to 1,152 looks, to the digits that are given."""
    for deviations in (4, 3):
        wanted = RATIOS[f"{deviations} sd"][f"p={shape:g}"]
        digits = len(str(wanted).partition(".")[2])
        assert round(worst_ratio(shape, deviations), digits) == wanted
    assert 1 <= worst_ratio(shape, 5.5) <= RATIOS["5.5 sd"]


@pytest.mark.parametrize(("shape", "scale", "order", "weight"), [(1.0, 5, 3.0, 2), (2.0, 6, 17.0, 1), (2.5, 8, 9.0, 2)])
def test_levels_cost_what_the_definition_says(shape: float, scale: int, order: float, weight: int) -> None:
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
def test_boundaries_at_the_known_threshold_and_at_the_open_one_are_too_close(shape: float) -> None:
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


def test_levels_cost_more_than_one_bit_and_less_with_more_space() -> None:
    noise = ExponentialPower(3.0, 1000)
    prices = [level_price(noise, 17.0, 24, round(d * noise.standard_deviation)) for d in (2, 3, 4, 5.5, 8)]
    assert prices == sorted(prices, reverse=True)
    assert prices[0] > 1.3 * prices[-1]
    assert prices[-1] >= look_price(noise, 17.0, 24)


def test_infinite_where_one_bit_is() -> None:
    assert level_price(ExponentialPower(4.0, 100), 900.0, 80, 300) == math.inf
