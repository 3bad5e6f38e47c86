"""From a budget to the numbers of a plan: the noise, the threshold, the shares of delta.

`release_plan` puts them together. Every rounding goes toward more noise, a higher threshold, a larger share.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dp_transforms.accounting.charging_game import charging_game_delta, charging_game_deltas, charging_game_epsilon
from dp_transforms.accounting.composition import smallest_safe_argument
from dp_transforms.accounting.target_charging import (
    between_probability,
    closed_form_delta,
    exact_tail_delta,
    not_prior_probability,
)
from dp_transforms.noise_distribution import MAX_EPSILON, MIN_EPSILON, sampling_total_variation, upper_tail

_GRID = 32  # values of epsilon at which the running figure is computed; between them it is interpolated

ACCOUNTANTS: dict[str, Callable[[float, float, int, float], float]] = {
    "game": charging_game_delta,
    "exact_tail": exact_tail_delta,
    "closed_form": closed_form_delta,
}
RELEASES = ("labels", "counts")


def zone_width_for(release: str, epsilon_per_query: float) -> int:
    """Integers in the charged zone: ceil(2 / epsilon_per_query) in labels (6 % more noise), none in counts."""
    check_release(release)
    return math.ceil(2 / epsilon_per_query) if release == "labels" else 0


def target_probability_for(release: str, epsilon_per_query: float) -> float:
    """q of the results that are charged in this release mode (docs/guarantee.md section 3)."""
    if release == "labels":
        return between_probability(epsilon_per_query, zone_width_for(release, epsilon_per_query))
    check_release(release)
    return not_prior_probability(epsilon_per_query)


def accounting_delta(accountant: str, release: str, epsilon_per_query: float, hits: int, epsilon: float) -> float:
    """The delta that this accountant proves at this epsilon."""
    q = target_probability_for(release, epsilon_per_query)
    return ACCOUNTANTS[accountant](epsilon_per_query, q, hits, epsilon)


def smallest_safe_threshold(epsilon_per_query: float, queries_per_user: int, delta_open: float) -> int:
    """The smallest T >= 1 with ``queries_per_user * Pr[Z >= T - 1] <= delta_open`` (docs/guarantee.md section 8).

    An item is published although one user is its only holder with at most this probability over the whole run.
    """
    a = math.exp(-epsilon_per_query)
    threshold = max(1, 1 + math.ceil(math.log(queries_per_user / (delta_open * (1 + a))) / epsilon_per_query))
    while threshold > 1 and queries_per_user * upper_tail(epsilon_per_query, threshold - 2) <= delta_open:
        threshold -= 1
    while queries_per_user * upper_tail(epsilon_per_query, threshold - 1) > delta_open:
        threshold += 1
    return threshold


def check_release(release: str) -> None:
    if release not in RELEASES:
        raise ValueError(f"release must be one of {', '.join(RELEASES)}, got {release!r}.")


def hash_delta(queries: int, max_users: int, max_items: int) -> float:
    """Another user with the same 64-bit hash, or a foreign item with the 128-bit hash of one of the user's items."""
    return (max_users + queries * max_items / 2.0**64) / 2.0**64


def sampling_delta(epsilon: float, queries: int, epsilon_per_query: float) -> float:
    """Both directions of ``P' <= P + d <= e^eps Q + delta + d <= e^eps (Q' + d) + delta + d``, two draws a query."""
    return (1 + math.exp(epsilon)) * 2 * queries * sampling_total_variation(epsilon_per_query)


def solve_noise(accountant: str, release: str, hits: int, epsilon: float, delta: float) -> float:
    """The largest epsilon_per_query, rounded down to six digits, at which the accountant proves (epsilon, delta)."""

    def delta_at(noise_scale: float) -> float:
        return accounting_delta(accountant, release, 1 / noise_scale, hits, epsilon)

    # A first guess from advanced composition of about as many calls as such an interaction makes.
    calls = 2 * (hits + 3 * math.sqrt(hits) + 4)
    spread = math.sqrt(2 * calls * math.log(1 / delta))
    guess = calls / (math.sqrt(spread**2 + 2 * calls * epsilon) - spread)
    limits = {"lowest": 1 / MAX_EPSILON, "highest": 1 / MIN_EPSILON}
    try:
        noise_scale = smallest_safe_argument(delta_at, delta, guess=guess, tolerance=1e-6, **limits)
    except ValueError:
        raise ValueError(
            f"epsilon = {epsilon:g} with hits_per_user = {hits} needs noise of scale over {1 / MIN_EPSILON:g}. "
            "Raise epsilon or delta, or lower hits_per_user."
        ) from None
    unit = 10.0 ** (math.floor(math.log10(1 / noise_scale)) - 5)
    steps = math.floor(1 / noise_scale / unit)
    while True:
        # Through text, so that the plan shows the six digits. A margin, so that another machine's libm agrees.
        epsilon_per_query = float(f"{steps * unit:.6g}")
        if accounting_delta(accountant, release, epsilon_per_query, hits, epsilon) * (1 + 1e-9) <= delta:
            return epsilon_per_query
        steps -= 1


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
