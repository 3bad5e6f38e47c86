"""The charging game by plain value iteration, and one adversary whose delta can be summed: bounds from below."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, xlogy


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


def static_adversary_delta(epsilon_per_query: float, q: float, hits: int, epsilon: float) -> float:
    """What an adversary attains whose hits come only where the loss goes down.

    A legal play of the game: after each call, a hit with probability ``q / (1 - p)`` if the loss went down and none if
    it went up, until the hits are used up. Summed over finitely many calls, so it stays a lower bound.
    """
    a = math.exp(-epsilon_per_query)
    up, down = 1 / (1 + a), a / (1 + a)
    most = math.ceil((hits + 10 * math.sqrt(hits) + 40) / q)
    # Calls that are not hits: negative binomial. The share up / (1 - q) of them went up.
    other = np.arange(most + 1, dtype=np.float64)
    log_other = gammaln(other + hits) - gammaln(hits) - gammaln(other + 1)
    log_other += hits * math.log(q) + other * math.log1p(-q)
    stay_down = max(0.0, down - q) / (1 - q)
    total = 0.0
    for count, log_mass in zip(range(most + 1), log_other, strict=True):
        went_down = np.arange(count + 1, dtype=np.float64) if stay_down > 1e-12 else np.zeros(1)
        log_split = gammaln(count + 1) - gammaln(went_down + 1) - gammaln(count - went_down + 1)
        log_split += xlogy(went_down, stay_down) + xlogy(count - went_down, up / (1 - q))
        loss = epsilon_per_query * (count - 2 * went_down - hits)
        total += float(np.exp(log_mass + log_split) @ -np.expm1(np.minimum(epsilon - loss, 0.0)))
    return total * (1 - 1e-10)
