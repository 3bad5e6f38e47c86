"""The charging game by plain value iteration: bounds from below."""

from __future__ import annotations

import math


def game_by_iteration(
    epsilon_per_query: float, q: float, hits: int, epsilon: float, calls: int, corners: list[tuple[float, float]]
) -> float:
    """V_hits(0) with at most `calls` calls, by dynamic programming over plain Python floats and dicts.

    corners: the (h0, h1) that the adversary may choose from. Grows with `calls` towards the value of the game.
    """
    p = math.exp(epsilon_per_query) / (1 + math.exp(epsilon_per_query))

    def stop(step: int) -> float:
        return max(0.0, 1 - math.exp(epsilon - step * epsilon_per_query))

    values = {(k, step): stop(step) for k in range(hits + 1) for step in range(-calls - 1, calls + 2)}
    for left in range(calls):
        reach = calls - left - 1  # steps away from 0 that still matter
        updated = {}
        for step in range(-reach, reach + 1):
            updated[0, step] = stop(step)
            for k in range(1, hits + 1):
                best = stop(step)
                for h0, h1 in corners:
                    up = h1 * values[k - 1, step + 1] + (1 - h1) * values[k, step + 1]
                    down = h0 * values[k - 1, step - 1] + (1 - h0) * values[k, step - 1]
                    best = max(best, p * up + (1 - p) * down)
                updated[k, step] = best
        values = updated
    return values[hits, 0]


def vertices(epsilon_per_query: float, q: float) -> list[tuple[float, float]]:
    """The three corners (h0, h1) among which the adversary of the game chooses."""
    edge = min(1.0, q * (math.exp(epsilon_per_query) + 1))
    return [(0.0, edge), (edge, 0.0), (q, q)]


def capped_game_delta(epsilon_per_query: float, q: float, hits: int, calls: int, epsilon: float) -> float:
    """The game in which a user takes part in at most so many calls, hit or not: what an adversary can attain in a
    short test. Proved as the game is, with the calls that are left beside the hits that are left."""
    return game_by_iteration(epsilon_per_query, q, hits, epsilon, calls, vertices(epsilon_per_query, q))
