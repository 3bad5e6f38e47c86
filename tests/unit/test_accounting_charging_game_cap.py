"""The game with a participation cap: against every policy there is, composition, the game without one, and old code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest

from dp_transforms.accounting.charging_game import (
    GameAccountant,
    capped_game_delta,
    charging_game_delta,
    not_prior_probability,
)
from dp_transforms.accounting.composition import OptimalComposition, optimal_composition_delta
from tests.helpers.charging_game_oracle import game_by_iteration, vertices

History = tuple[tuple[int, int], ...]  # of each call: went up, was a hit


def _histories(participations: int, hits: int) -> list[History]:
    """All states of the adversary in which there is a call left to make, the empty one first."""
    found: list[History] = []
    for length in range(participations):
        for history in itertools.product(itertools.product((0, 1), repeat=2), repeat=length):
            if sum(hit for _, hit in history) < hits:
                found.append(history)
    return found


def _attained(
    epsilon_per_query: float, hits: int, epsilon: float, participations: int, plays: dict[History, tuple[float, float]]
) -> float:
    """delta of one policy: the sum of ``(P - e^epsilon Q)_+`` over all transcripts; a state without a play stops."""
    p = math.exp(epsilon_per_query) / (1 + math.exp(epsilon_per_query))

    def ends(history: History, first: float, second: float) -> Iterator[float]:
        over = len(history) == participations or sum(hit for _, hit in history) == hits
        if over or history not in plays:
            yield max(0.0, first - math.exp(epsilon) * second)
            return
        for up, hit in itertools.product((0, 1), repeat=2):
            share = plays[history][up] if hit else 1 - plays[history][up]
            if share > 0:
                rises, falls = (p, 1 - p) if up else (1 - p, p)
                yield from ends((*history, (up, hit)), first * rises * share, second * falls * share)

    return math.fsum(ends((), 1.0, 1.0))


@pytest.mark.parametrize(
    ("epsilon_per_query", "share", "hits", "participations", "epsilon"),
    [(0.7, 1.0, 1, 2, 0.5), (0.7, 0.6, 1, 2, 0.3), (0.5, 0.6, 2, 2, 0.2), (1.5, 0.4, 1, 2, 0.9)],
)
def test_against_every_policy(
    epsilon_per_query: float, share: float, hits: int, participations: int, epsilon: float
) -> None:
    """Policies that remember everything, may stop anywhere, and play one of the corners elsewhere: 1024 and more."""
    q = share / (math.exp(epsilon_per_query) + 1)
    choices = [None, *vertices(epsilon_per_query, q)]
    states = _histories(participations, hits)
    best = 0.0
    for chosen in itertools.product(choices, repeat=len(states)):
        plays = {state: play for state, play in zip(states, chosen, strict=True) if play is not None}
        best = max(best, _attained(epsilon_per_query, hits, epsilon, participations, plays))
    assert best > 0
    value = capped_game_delta(epsilon_per_query, q, hits, participations, epsilon)
    assert best <= value <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("epsilon_per_query", "share", "hits", "participations", "epsilon"),
    [
        (0.7, 1.0, 1, 5, 1.0),
        (0.5, 0.86, 3, 9, 1.5),
        (0.3, 0.7, 4, 30, 2.0),
        (2.0, 0.8, 2, 7, 3.0),
        (0.2, 0.05, 2, 60, 2),
    ],
)
def test_against_dumb_value_iteration(
    epsilon_per_query: float, share: float, hits: int, participations: int, epsilon: float
) -> None:
    q = share / (math.exp(epsilon_per_query) + 1)
    oracle = game_by_iteration(epsilon_per_query, q, hits, epsilon, participations, vertices(epsilon_per_query, q))
    value = capped_game_delta(epsilon_per_query, q, hits, participations, epsilon)
    assert oracle <= value <= oracle * (1 + 1e-6)  # the lattice is cut at 14 units of loss
    without_a_corner = vertices(epsilon_per_query, q)[:1]
    if share < 1:
        assert game_by_iteration(epsilon_per_query, q, hits, epsilon, participations, without_a_corner) < oracle


def test_equals_optimal_composition_where_the_hits_suffice() -> None:
    q = not_prior_probability(0.3)
    for participations in (1, 2, 10, 40):
        for epsilon in (0.0, 0.1, 0.7 * participations * 0.3, participations * 0.3):
            composed = optimal_composition_delta(0.3, participations, epsilon)
            for hits in (participations, participations + 1, 10**6):
                assert capped_game_delta(0.3, q, hits, participations, epsilon) == pytest.approx(composed, rel=1e-9)
    # The walk itself, one hit short: those who lose all by hits would have had the loss against them anyway.
    for participations in (10, 40):
        walked = capped_game_delta(0.3, q, participations - 1, participations, 1.2)
        assert walked == pytest.approx(optimal_composition_delta(0.3, participations, 1.2), rel=1e-9)


@pytest.mark.parametrize(("epsilon_per_query", "share", "hits"), [(0.3, 1.0, 1), (0.1, 0.86, 4), (0.05, 0.86, 30)])
def test_converges_to_the_game(epsilon_per_query: float, share: float, hits: int) -> None:
    q = share * not_prior_probability(epsilon_per_query)
    epsilon = GameAccountant(epsilon_per_query, q, hits).epsilon(1e-7)
    game = charging_game_delta(epsilon_per_query, q, hits, epsilon)
    many = math.ceil((hits + 4 * math.sqrt(hits) + 10) / q)  # a few of which hardly anybody still has hits
    assert capped_game_delta(epsilon_per_query, q, hits, 2**62, epsilon) == game
    assert capped_game_delta(epsilon_per_query, q, hits, many, epsilon) == pytest.approx(game, rel=5e-3)
    few = math.ceil(1.05 * epsilon / epsilon_per_query)  # hardly enough to reach such a loss at all
    assert 0 < capped_game_delta(epsilon_per_query, q, hits, few, epsilon) < 0.9 * game


def test_epsilon_is_below_both_limits_and_safe() -> None:
    for hits, participations in ((3, 8), (3, 30), (10, 30), (10, 10_000)):
        accountant = GameAccountant(0.1, 0.45, hits, participations)
        epsilon = accountant.epsilon(1e-8)
        assert accountant.delta(epsilon) <= 1e-8
        assert accountant.delta(epsilon * (1 - 1e-5)) > 1e-8
        assert epsilon <= GameAccountant(0.1, 0.45, hits).epsilon(1e-8) * (1 + 1e-6)
        assert epsilon <= OptimalComposition(0.1, participations).epsilon(1e-8) * (1 + 1e-6)
    # The two limits help one another, if only where they cost about the same.
    both = GameAccountant(0.05, 0.2, 10, 128).epsilon(1e-9)
    alone = [GameAccountant(0.05, 0.2, 10).epsilon(1e-9), OptimalComposition(0.05, 128).epsilon(1e-9)]
    assert both < 0.97 * min(alone)
