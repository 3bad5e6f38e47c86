"""The running figure of target charging: how much of epsilon is spent after each hit (docs/guarantee.md section 7)."""

from __future__ import annotations

import math

import numpy as np

from dp_transforms.accounting.charging_game import charging_game_deltas, charging_game_epsilon

_GRID = 32  # values of epsilon at which the figure is computed; between them it is interpolated


def epsilon_after_each_hit(
    epsilon_per_query: float, target_probability: float, hits: int, epsilon: float, delta: float
) -> tuple[float, ...]:
    """For j = 1 .. hits an epsilon, rounded up but at most `epsilon`, at which the game cut at j hits has this delta.

    epsilon: here the game of all hits is known to have at most this delta. One pass of the game gives all j for one
    epsilon. Between two values of epsilon, delta lies below its chord in e^epsilon: it is a supremum of functions
    ``P(S) - e^epsilon Q(S)``, hence convex.
    """
    solved = (charging_game_epsilon(epsilon_per_query, target_probability, k, delta) for k in (1, hits))
    # At least a thousandth of the total: a generous delta alone may cover the first hits, at epsilon 0.
    first, last = (min(max(one, epsilon / 1000), epsilon) for one in solved)
    found = np.full(hits, last)
    before: tuple[float, tuple[float, ...]] = (first, ())
    done = 0  # entries found; they are found in order, since delta grows with j
    for at in np.geomspace(first, last, _GRID + 1).tolist():
        # Also some of the entries that are not safe yet, for the chord to the next value.
        deltas = charging_game_deltas(epsilon_per_query, target_probability, hits, at, 20 * delta)
        while done < min(hits, len(deltas)) and deltas[done] <= delta:
            found[done] = min(last, at, _chord(before, (at, deltas), done, delta))
            done += 1
        before = (at, deltas)
    return tuple(np.maximum.accumulate(found).tolist())


def _chord(
    left: tuple[float, tuple[float, ...]], right: tuple[float, tuple[float, ...]], entry: int, delta: float
) -> float:
    """Where the chord between two values of epsilon meets delta; the right value if the left has no such entry."""
    (low, low_deltas), (high, high_deltas) = left, right
    if entry >= len(low_deltas) or not low_deltas[entry] > delta:
        return high
    share = (low_deltas[entry] - delta) / (low_deltas[entry] - high_deltas[entry])
    return min(high, (low + math.log1p(share * math.expm1(high - low))) * (1 + 1e-9))
