"""The shares of delta of every plan; and the noise and the threshold of a charging plan from what is left of it.

Every rounding goes toward more noise and a larger share.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dp_transforms.accounting.discrete_laplace_law import empty_items_total_variation
from dp_transforms.accounting.release_modes import NoiseParameters, smallest_safe_threshold

# In a known domain the guarantee does not need a threshold. It only keeps out items that nobody holds: by default, at
# most one run in twenty publishes any.
DEFAULT_FALSE_REPORTS = 0.05


def hash_delta(max_users: int, max_items: int) -> float:
    """Another user with the same 64-bit hash, or two items of the run with the same 128-bit hash: of a user's items
    also those that do not count, since labels are read from all of them (docs/guarantee.md, "How delta is
    split for contributions")."""
    return (max_users + max_items**2 / 2.0**64) / 2.0**64


def sampling_delta(epsilon: float, distance_of_draws: float, horizon: int, domain_size: int) -> float:
    """Both directions of ``P' <= P + d <= e^eps Q + delta + d <= e^eps (Q' + d) + delta + d``.

    d: distance_of_draws, of all draws that one user is part of, from their exact distributions; in a known domain also
    of one draw a window, of the items that nobody holds.
    """
    distance = distance_of_draws
    if domain_size:
        distance += horizon * empty_items_total_variation(domain_size)
    return (1 + math.exp(epsilon)) * distance


def charged_sampling_delta(
    epsilon: float, queries: int, total_variation: float, horizon: int, domain_size: int
) -> float:
    """`sampling_delta` with two draws a query, each within total_variation of its exact distribution."""
    return sampling_delta(epsilon, 2 * queries * total_variation, horizon, domain_size)


def delta_left(delta: float, taken: float, max_users: int) -> float:
    """What is left for noise and threshold, rounded down. Raises ValueError if nothing is left.

    taken: the shares of hash collisions and sampling.
    """
    left = (delta - taken) * (1 - 1e-12)
    if not left > 0:
        raise ValueError(
            f"delta must be > {taken:.3g}, the share that hash collisions and sampling take, got {delta:g}. "
            f"Raise delta, or declare fewer users and items (max_users = {max_users})."
        )
    return left


def threshold_error(threshold: int, safe: int) -> ValueError:
    return ValueError(
        f"threshold must be >= {safe}, the smallest one at which an item of a single user stays hidden under this "
        f"budget, got {threshold}. Use {safe} or leave it out."
    )


def choose_for_known_domain(
    solve: Callable[[float], NoiseParameters], shared: float, tests: int, threshold: int | None
) -> tuple[NoiseParameters, int, float]:
    """All of delta for the noise, and any threshold; with the part of delta that the threshold takes, 0.

    solve: the least noise for a delta. shared: what is left of delta. tests: the most tests, in the whole run, of items
        that nobody holds. threshold: None for the smallest that keeps the expected false reports at most 0.05.
    """
    noise = solve(shared)
    if threshold is None:
        # The item of one more holder would be at T - 1; the item of none is at T.
        threshold = max(1, smallest_safe_threshold(noise, tests, DEFAULT_FALSE_REPORTS) - 1)
    return noise, threshold, 0.0


def choose_for_open_domain(
    solve: Callable[[float], NoiseParameters], shared: float, queries: int, threshold: int | None
) -> tuple[NoiseParameters, int, float]:
    """Half of delta for the noise, or more where the threshold needs less than the other half; and what it takes.

    solve, shared: as above. queries: of one user in the whole run. threshold: None for the smallest safe one. Raises
        ValueError for a smaller one.
    """
    delta_open = shared / 2
    noise = solve(shared - delta_open)
    smallest = smallest_safe_threshold(noise, queries, delta_open)
    if threshold is None or threshold == smallest:
        return noise, smallest, delta_open
    if threshold < smallest:
        raise threshold_error(threshold, smallest)
    # What the open domain no longer needs goes to the accountant: less noise, and with it a smaller tail.
    delta_open = max(queries * noise.upper_tail(threshold - 1), shared * 1e-6)
    return solve(shared - delta_open), threshold, delta_open
