"""From a budget to the numbers of a plan: the noise of target charging, and the shares of delta.

`release_modes` and `release_plan` put them together. Every rounding goes toward more noise and a larger share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dp_transforms.accounting.charging_game import charging_game_deltas, charging_game_epsilon
from dp_transforms.accounting.composition import smallest_safe_argument
from dp_transforms.accounting.noise_parameters import NoiseParameters, smallest_safe_threshold
from dp_transforms.noise_distribution import MAX_EPSILON, MIN_EPSILON, zero_items_total_variation

# In a known domain the threshold guards no guarantee, only against items that nobody holds: by default at most one run
# in twenty publishes any.
DEFAULT_FALSE_REPORTS = 0.05
_GRID = 32  # values of epsilon at which the running figure is computed; between them it is interpolated


def hash_delta(queries: int, max_users: int, max_items: int) -> float:
    """Another user with the same 64-bit hash, or a foreign item with the 128-bit hash of one of the user's items."""
    return (max_users + queries * max_items / 2.0**64) / 2.0**64


def sampling_delta(epsilon: float, queries: int, total_variation: float, horizon: int, domain_size: int) -> float:
    """Both directions of ``P' <= P + d <= e^eps Q + delta + d <= e^eps (Q' + d) + delta + d``.

    d: two draws a query, each within total_variation of its exact distribution; in a known domain also one draw a
    window, of the items that nobody holds.
    """
    distance = 2 * queries * total_variation
    if domain_size:
        distance += horizon * zero_items_total_variation(domain_size)
    return (1 + math.exp(epsilon)) * distance


class NoiseAndThreshold(NamedTuple):
    """The noise of one count, the threshold that goes with it, and what of delta the threshold takes."""

    noise: NoiseParameters
    threshold: int
    delta_open: float


def choose_for_known_domain(
    solve: Callable[[float], NoiseParameters], shared: float, tests: int, threshold: int | None
) -> NoiseAndThreshold:
    """All of delta for the noise, and any threshold.

    solve: the least noise for a delta. shared: what is left of delta. tests: so many items that nobody holds may be
        tested in the whole run. threshold: None for the smallest that keeps the expected false reports at most 0.05.
    """
    noise = solve(shared)
    if threshold is None:
        # The item of one more holder would be at T - 1; the item of none is at T.
        threshold = max(1, smallest_safe_threshold(noise, tests, DEFAULT_FALSE_REPORTS) - 1)
    return NoiseAndThreshold(noise, threshold, 0.0)


def choose_for_open_domain(
    solve: Callable[[float], NoiseParameters], shared: float, queries: int, threshold: int | None
) -> NoiseAndThreshold:
    """Half of delta for the noise, or more where the threshold needs less than the other half.

    solve, shared: as above. queries: of one user in the whole run. threshold: None for the smallest safe one. Raises
        ValueError for one below it.
    """
    delta_open = shared / 2
    noise = solve(shared - delta_open)
    smallest = smallest_safe_threshold(noise, queries, delta_open)
    if threshold is None or threshold == smallest:
        return NoiseAndThreshold(noise, smallest, delta_open)
    if threshold < smallest:
        raise threshold_error(threshold, smallest)
    # What the open domain no longer needs goes to the accountant: less noise, and with it a smaller tail.
    delta_open = max(queries * noise.upper_tail(threshold - 1), shared * 1e-6)
    return NoiseAndThreshold(solve(shared - delta_open), threshold, delta_open)


def threshold_error(threshold: int, safe: int) -> ValueError:
    return ValueError(
        f"threshold must be >= {safe}, the smallest one at which an item of a single user stays hidden under this "
        f"budget, got {threshold}. Use {safe} or leave it out."
    )


def solve_target_charging(delta_at: Callable[[float], float], hits: int, epsilon: float, delta: float) -> float:
    """The largest epsilon_per_query, rounded down to six digits, with ``delta_at(epsilon_per_query) <= delta``."""
    # A first guess from advanced composition of about as many calls as such an interaction makes.
    calls = 2 * (hits + 3 * math.sqrt(hits) + 4)
    spread = math.sqrt(2 * calls * math.log(1 / delta))
    # calls / (sqrt(spread^2 + 2 calls epsilon) - spread), with nothing that cancels where epsilon is tiny.
    guess = (math.sqrt(spread**2 + 2 * calls * epsilon) + spread) / (2 * epsilon)
    limits = {"lowest": 1 / MAX_EPSILON, "highest": 1 / MIN_EPSILON}
    try:
        noise_scale = smallest_safe_argument(
            lambda scale: delta_at(1 / scale), delta, guess=guess, tolerance=1e-6, **limits
        )
    except ValueError:
        raise noise_error(epsilon, hits, 1 / MIN_EPSILON) from None
    unit = 10.0 ** (math.floor(math.log10(1 / noise_scale)) - 5)
    steps = math.floor(1 / noise_scale / unit)
    while True:
        # Through text, so that the plan shows the six digits. A margin, so that another machine's libm agrees.
        epsilon_per_query = float(f"{steps * unit:.6g}")
        if delta_at(epsilon_per_query) * (1 + 1e-9) <= delta:
            return epsilon_per_query
        steps -= 1


def noise_error(epsilon: float, hits: int, largest_scale: float) -> ValueError:
    return ValueError(
        f"epsilon = {epsilon:g} with hits_per_user = {hits} needs noise of scale over {largest_scale:g}. "
        "Raise epsilon or delta, or lower hits_per_user."
    )


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
        # Some of the entries that are not safe yet are wanted as well, for the chord to the next value.
        deltas = charging_game_deltas(epsilon_per_query, target_probability, hits, at, 20 * delta)
        while done < min(hits, len(deltas)) and deltas[done] <= delta:
            found[done] = min(last, at, _chord(before, (at, deltas), done, delta))
            done += 1
        before = (at, deltas)
    return tuple(np.maximum.accumulate(found).tolist())


def _chord(
    left: tuple[float, tuple[float, ...]], right: tuple[float, tuple[float, ...]], entry: int, delta: float
) -> float:
    """Where the chord between two values of epsilon meets delta; the right one where the left has no such entry."""
    (low, low_deltas), (high, high_deltas) = left, right
    if entry >= len(low_deltas) or not low_deltas[entry] > delta:
        return high
    share = (low_deltas[entry] - delta) / (low_deltas[entry] - high_deltas[entry])
    return min(high, (low + math.log1p(share * math.expm1(high - low))) * (1 + 1e-9))
