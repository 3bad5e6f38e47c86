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
from tests.helpers import looks_game
from tests.helpers.looks_game import looks_delta
from tests.unit import purse_oracle
from tests.unit.purse_oracle import REFERENCE

(SCALES,) = (value for name, value in REFERENCE.items() if name.startswith("exact_game"))
EPSILON, DELTA = REFERENCE["epsilon"], REFERENCE["delta_looks"]
STEPS = 40  # integers a scale, where an adversary has exact probabilities
SHAPES = [1.5, 2.0, 2.5, 3.0]


@pytest.mark.parametrize(
    ("shape", "looks", "wanted"),
    [
        (float(name.removeprefix("p=")), int(n), s)
        for name, row in SCALES.items()
        for n, s in row.items()
        if int(n) <= 10
    ],
)
def test_reference_scales(shape: float, looks: int, wanted: float) -> None:
    """The reference is low by up to 0.5 %; this is an upper bound, and high by up to 0.7 %."""
    assert looks_delta(shape, 1 / (wanted * 1.012), looks, EPSILON) < DELTA
    assert looks_delta(shape, 1 / (wanted * 0.998), looks, EPSILON) > DELTA


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("weight", "epsilon"), [(0.1, 0.1), (0.3, 0.5), (0.15, 2.0)])
def test_one_look_is_exact(shape: float, weight: float, epsilon: float) -> None:
    """``P - e^epsilon Q`` at the best of all real counts: never more than the bound, which is at most 10 % above."""
    thresholds = np.linspace(-2, 12, 200_001)
    noise = ExponentialPower(shape, 1)
    p, q = (np.exp(noise.log_upper_tail_at(thresholds - moved)) for moved in (weight, 0.0))
    exact = float(np.max(p - np.exp(epsilon) * q))
    assert exact <= looks_delta(shape, weight, 1, epsilon) <= max(exact * 1.1, 1e-20)


@pytest.mark.parametrize("factor", [1.0, 1.003, 0.7, 1e-3, 1e-9, 40.0, 1e9])
def test_values_between_grid_points_are_bounds(factor: float) -> None:
    """Of a convex falling function that is 1 at 0: never below it, and inside of the grid close to it."""
    logs = np.arange(-8.0, 4.0, 0.01)
    ratios = np.exp(logs)
    values, exact = (1 + ratios) ** -3.0, (1 + ratios * factor) ** -3.0
    found = looks_game._moved(factor, 0.01, ratios, values)
    assert np.all(found >= exact * (1 - 1e-13))
    inside = (ratios * factor >= ratios[0]) & (ratios * factor < ratios[-2])
    assert np.all(found[inside] <= exact[inside] * (1 + 2e-4))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bit_of_the_game_dominates_each_count(shape: float) -> None:
    """For each threshold up to where tails are 1e-17 one bit has both ratios at least as far from 1."""
    noise, bits = ExponentialPower(shape, 1), looks_game._dominating_bits(shape, 0.2)
    assert bits.p + bits.not_p == pytest.approx(1, abs=1e-9)
    assert bits.q + bits.not_q == pytest.approx(1, abs=1e-9)
    for threshold in np.linspace(-2, 3.4, 211):
        logs = [noise.log_upper_tail_at(np.array([threshold - moved, moved - threshold])) for moved in (0.2, 0.0)]
        up, down = np.exp(logs[0] - logs[1])
        with np.errstate(divide="ignore"):
            assert np.any((bits.p / bits.q >= up) & (bits.not_p / bits.not_q <= down))


@functools.cache
def worlds(shape: float, weight: int) -> tuple[np.ndarray, np.ndarray]:
    """Both bits, with the user and without: float64[2, counts] each."""
    margins = range(-STEPS, 4 * STEPS + weight)
    with_user = [[float(p) for p in purse_oracle.bit(shape, STEPS, margin - weight)] for margin in margins]
    without = [[float(p) for p in purse_oracle.bit(shape, STEPS, margin)] for margin in margins]
    return np.array(with_user).T, np.array(without).T


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("looks", "weight"), [(1, 12), (2, 7)])
def test_no_adaptive_adversary_gets_more(shape: float, looks: int, weight: int) -> None:
    """All integer counts near the threshold, chosen by the bits so far, both ways; the bound is within 12 %."""
    adversary = purse_oracle.Adversary([(0, *worlds(shape, weight))], epsilon=0.5)
    attained = max(adversary.delta(looks, 0, removed=removed) for removed in (False, True))
    proved = looks_delta(shape, weight / STEPS, looks, 0.5)
    assert attained <= proved <= attained * 1.12


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("looks", "weight"), [(5, 10), (20, 5)])
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


@pytest.mark.parametrize("shape", [2.0, 3.0])
@pytest.mark.parametrize("looks", [3, 10])
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


def test_delta_moves_with_each_argument() -> None:
    delta = looks_delta(2.5, 0.1, 4, 1.0)
    assert looks_delta(2.5, 0.1, 5, 1.0) > delta * 1.05
    assert looks_delta(2.5, 0.101, 4, 1.0) > delta * 1.05
    assert looks_delta(2.5, 0.1, 4, 1.01) < delta * 0.95
    assert looks_delta(2.0, 3.0, 5, 0.1) == pytest.approx(1.0, abs=1e-3)
    assert looks_delta(1.0, 0.2, 4, 0.85) < 1e-12  # Laplace noise: 0.2 each, 4 looks, and a step of the grid each


@pytest.mark.parametrize(
    ("shape", "weight", "looks", "epsilon"),
    [(0.9, 0.1, 1, 1.0), (2.0, 0.0, 1, 1.0), (2.0, 0.1, 0, 1.0), (2.0, 0.1, 1001, 1.0), (2.0, 0.1, 1, -1.0)],
)
def test_wrong_numbers_are_refused(shape: float, weight: float, looks: int, epsilon: float) -> None:
    with pytest.raises(ValueError, match="must"):
        looks_delta(shape, weight, looks, epsilon)
