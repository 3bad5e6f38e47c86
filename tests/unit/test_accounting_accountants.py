"""What all accountants have in common: the interface, and the order among them and those of the benchmarks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.charging_bounds import (
    ClosedFormAccountant,
    ExactTailAccountant,
    RenyiAccountant,
    static_adversary_delta,
)
from dp_transforms.accounting.charging_game import GameAccountant, not_prior_probability
from dp_transforms.accounting.composition import Accountant, OptimalComposition, optimal_composition_delta

TARGET_CHARGING: tuple[Callable[..., Any], ...] = (
    GameAccountant,
    ExactTailAccountant,
    ClosedFormAccountant,
    RenyiAccountant,
)
GAME = GameAccountant(0.1, 0.45, 4)


@pytest.mark.parametrize(
    "accountant",
    [GAME, GameAccountant(0.1, 0.45, 4, participations=25), OptimalComposition(0.1, 25)],
    ids=["game", "capped game", "composition"],
)
def test_a_curve_that_falls_and_its_inverse(accountant: Accountant) -> None:
    deltas = [accountant.delta(epsilon) for epsilon in (0.0, 0.3, 1.0, 2.0, 4.0, 8.0)]
    assert all(1 >= a >= b >= 0 for a, b in itertools.pairwise(deltas))
    assert deltas[0] > deltas[3] > deltas[5]
    epsilons = []
    for delta in (0.5, 1e-2, 1e-6, 1e-12, 1e-100):
        epsilon = accountant.epsilon(delta)
        epsilons.append(epsilon)
        assert 0 <= epsilon < math.inf
        assert accountant.delta(epsilon) <= delta
        if epsilon > 0:
            assert accountant.delta(epsilon * (1 - 1e-5)) > delta
    assert epsilons == sorted(epsilons)


@pytest.mark.parametrize(
    ("epsilon_per_query", "hits", "share"), [(0.01, 1, 1.0), (0.01, 40, 0.3), (0.3, 40, 1.0), (1.5, 1, 0.3)]
)
def test_the_order_of_the_bounds(epsilon_per_query: float, hits: int, share: float) -> None:
    """static adversary <= game <= exact tail <= closed form, and game <= Renyi; a cap lowers the game further."""
    q = share * not_prior_probability(epsilon_per_query)
    game = GameAccountant(epsilon_per_query, q, hits)
    capped = GameAccountant(epsilon_per_query, q, hits, participations=2 * hits + 3)
    for delta in (1e-3, 1e-9):
        epsilon = game.epsilon(delta)
        deltas = [make(epsilon_per_query, q, hits).delta(epsilon) for make in TARGET_CHARGING]
        assert capped.delta(epsilon) <= deltas[0] * (1 + 1e-9)
        attained = static_adversary_delta(epsilon_per_query, q, hits, epsilon)
        assert 0 < attained <= deltas[0] <= delta
        assert deltas[0] <= deltas[1] <= deltas[2] * (1 + 1e-9)
        assert deltas[0] <= deltas[3]
        epsilons = [epsilon, *(make(epsilon_per_query, q, hits).epsilon(delta) for make in TARGET_CHARGING[1:])]
        assert epsilons[0] <= epsilons[1] <= epsilons[2]
        assert epsilons[0] <= epsilons[3]


def test_numbers_of_numpy_are_numbers() -> None:
    numpys = GameAccountant(np.float64(0.1), np.float64(0.45), np.int64(4))
    assert numpys.delta(np.float32(2.0)) == GAME.delta(2.0)
    assert GAME.delta(2) == GAME.delta(2.0)


def test_extreme_numbers_neither_hang_nor_overflow() -> None:
    assert 0 <= GameAccountant(1e-9, 0.4, 1).delta(1.0) < 1e-100
    assert GameAccountant(1e-3, 0.4, 2).delta(1e6) < 1e-100
    assert 0.9 < GameAccountant(30.0, not_prior_probability(30.0), 1).delta(0.5) <= 1.0
    assert optimal_composition_delta(700.0, 3, 1.0) == pytest.approx(1.0)
    assert OptimalComposition(1e-6, 10**6).delta(0.01) < 1e-15
