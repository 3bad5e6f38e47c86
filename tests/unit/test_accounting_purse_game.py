"""The game of a fixed number of looks: reference scales, adversaries of every kind, and the purse."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq

from dp_transforms.accounting.purse.look_prices import look_price
from dp_transforms.accounting.purse.price_list import delta_of_budget
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from tests.helpers.looks_game import looks_delta
from tests.unit import purse_oracle
from tests.unit.purse_oracle import REFERENCE

(SCALES,) = (value for name, value in REFERENCE.items() if name.startswith("exact_game"))
EPSILON, DELTA = REFERENCE["epsilon"], REFERENCE["delta_looks"]
STEPS = 40  # integers a scale, where an adversary has exact probabilities


@pytest.mark.parametrize(
    ("shape", "looks", "wanted"),
    [
        (float(name.removeprefix("p=")), int(n), s)
        for name, row in SCALES.items()
        for n, s in row.items()
        if (name, n) in {("p=2.0", "1"), ("p=2.5", "10"), ("p=3.0", "1")}
    ],
)
def test_reference_scales(shape: float, looks: int, wanted: float) -> None:
    """The reference is low by up to 0.5 %; this is an upper bound, and high by up to 0.7 %."""
    assert looks_delta(shape, 1 / (wanted * 1.012), looks, EPSILON) < DELTA
    assert looks_delta(shape, 1 / (wanted * 0.998), looks, EPSILON) > DELTA


@functools.cache
def worlds(shape: float, weight: int) -> tuple[np.ndarray, np.ndarray]:
    """Both bits, with the user and without: float64[2, counts] each."""
    margins = range(-STEPS, 4 * STEPS + weight)
    with_user = [[float(p) for p in purse_oracle.bit(shape, STEPS, margin - weight)] for margin in margins]
    without = [[float(p) for p in purse_oracle.bit(shape, STEPS, margin)] for margin in margins]
    return np.array(with_user).T, np.array(without).T


@pytest.mark.parametrize(("looks", "weight", "shape"), [(5, 10, 1.5), (20, 5, 3.0)])
def test_no_static_adversary_gets_more(shape: float, looks: int, weight: int) -> None:
    """One count for all looks, composed by dp_accounting: the best of some counts gets a fifth of the bound or more."""
    with_user, without = worlds(shape, weight)
    best = 0.0
    for column in range(STEPS, len(with_user[0]), STEPS // 4):
        p, q = ({0: float(side[0, column]), 1: float(side[1, column])} for side in (with_user, without))
        logs_p, logs_q = ({key: math.log(value) for key, value in side.items()} for side in (p, q))
        loss = privacy_loss_distribution.from_two_probability_mass_functions(
            logs_p, logs_q, pessimistic_estimate=False, value_discretization_interval=1e-3
        )
        best = max(best, loss.self_compose(looks).get_delta_for_epsilon(0.8))
    proved = looks_delta(shape, weight / STEPS, looks, 0.8)
    assert best <= proved < 5 * best


@pytest.mark.parametrize(("shape", "looks"), [(2.0, 3), (3.0, 10)])
def test_it_needs_less_noise_than_the_purse_by_a_few_percent(shape: float, looks: int) -> None:
    def purse_delta(scale: int) -> float:
        noise = ExponentialPower(shape, scale)
        return min(
            delta_of_budget(order, looks * look_price(noise, order, 100), EPSILON) for order in (12, 14, 16, 18, 20)
        )

    def excess(delta: float) -> float:
        return math.log(delta / DELTA)

    wanted = SCALES[f"p={shape}"][str(looks)]
    by_purse = brentq(lambda s: excess(purse_delta(round(100 * s))), 0.8 * wanted, 1.3 * wanted, xtol=0.01 * wanted)
    assert looks_delta(shape, 1.08 / by_purse, looks, EPSILON) > DELTA, "the game needs more than that less 8 %"
    assert looks_delta(shape, 0.993 / by_purse, looks, EPSILON) < DELTA, "and no more than that and 0.7 %"
