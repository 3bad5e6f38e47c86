"""The search for the streams that show most about one user, and what each of them attains.

Nothing here is random or sampled. docs/audit.md says which streams are tried, and why.
"""

from __future__ import annotations

import functools
import math

from dp_transforms.audit.adversary import best_adversary, kernel_of_law
from dp_transforms.audit.attack_streams import AttackStream, StreamLaw, law_of_stream
from dp_transforms.audit.claim import Mechanism
from dp_transforms.audit.query_law import QueryLaw

LARGEST_PASS = 1.5e8  # hits x rounds^2, the work for one stream: some seconds
_ROUNDING = 1e-12


def rounds_until_excluded(mechanism: Mechanism) -> int:
    """The number of items near the threshold that exclude the user, except with a probability far below any delta."""
    results = mechanism.law.results(mechanism.law.near)
    least = min(
        math.fsum(result[world] for result in results if result.charged)
        for world in (0, 1)  # with the user and without
    )
    hits = mechanism.hits_per_user
    return math.ceil((hits + 10 * math.sqrt(hits) + 40) / least)


def default_rounds(mechanism: Mechanism) -> int:
    """The same, or fewer: what can be followed within a minute."""
    return min(rounds_until_excluded(mechanism), math.isqrt(round(LARGEST_PASS / mechanism.hits_per_user)))


def worst_stream(
    mechanism: Mechanism, epsilon: float, rounds: int, adds_user: bool, *, items_per_window: int = 1
) -> AttackStream:
    """The worst stream at this epsilon among the adaptive ones, which look at what was published.

    Until the loss exceeds epsilon, hits should fall only on results that lower it; from then on, on those that raise it
    (docs/audit.md). With several items in a window it looks back less often, and need not be the worst.
    """
    near, far = mechanism.law.near, mechanism.law.far
    items = min(rounds, mechanism.horizon * items_per_window)
    if far is None:
        return AttackStream.static(adds_user, near, items, items_per_window)
    first, later = (far, near) if adds_user else (near, far)
    return AttackStream(adds_user, first, later, epsilon, items, items_per_window)


def law_of(mechanism: Mechanism, stream: AttackStream) -> StreamLaw:
    """Its exact law, without rows for hits that cannot be reached in its rounds."""
    return law_of_stream(mechanism.law, min(mechanism.hits_per_user, stream.rounds + 1), stream)


def lone_delta(mechanism: Mechanism, items: int) -> float:
    """The probability that one of `items` items is published although the user is its only holder, rounded down.

    Without the user none of them can be, so this is the delta of such a stream at every epsilon.
    """
    if not mechanism.tests_lone_items or items <= 0:
        return 0.0
    each = mechanism.law.alone(mechanism.threshold)
    return -math.expm1(items * math.log1p(-each)) * (1 - _ROUNDING)


def fewest_items_per_window(mechanism: Mechanism, rounds: int) -> tuple[int, int]:
    """Windows, and items in each of them, for `rounds` items, or for all that the run has room for."""
    windows = min(rounds, mechanism.horizon)
    return windows, min(mechanism.max_items_per_user, math.ceil(rounds / windows))


def static_streams(mechanism: Mechanism, rounds: int, adds_user: bool) -> list[AttackStream]:
    """Streams that do not look back, so a window may contain as many items as the plan allows."""
    per_window = mechanism.max_items_per_user
    items = min(rounds, mechanism.horizon * per_window)
    return [AttackStream.static(adds_user, distance, items, per_window) for distance in mechanism.law.distances]


def adaptive_streams(mechanism: Mechanism, epsilon: float, rounds: int, adds_user: bool) -> list[AttackStream]:
    """The worst adaptive stream with one item in a window, and with more if the run is short; none without a zone."""
    if mechanism.law.far is None:
        return []
    most = fewest_items_per_window(mechanism, rounds)[1]
    return [
        worst_stream(mechanism, epsilon, rounds, adds_user, items_per_window=per_window)
        for per_window in sorted({1, (1 + most) // 2, most})
    ]


def best_deltas(
    mechanism: Mechanism, epsilon: float, windows: int, items_per_window: int, adds_user: bool
) -> tuple[float, float] | None:
    """What the best adversary attains, and in half the windows. With one item in each, no stream on as many items
    attains more, by the theorem of docs/audit.md.

    None unless every loss is a whole step: otherwise rounding would leave nothing. The two directions of a zone are
    mirror images, so both attain the same.
    """
    law = mechanism.law
    hits = min(mechanism.hits_per_user, windows * items_per_window + 1)
    return _best_of_law(law, hits, epsilon, windows, items_per_window, adds_user and law.far is None)


@functools.lru_cache(maxsize=4)
def _best_of_law(
    law: QueryLaw, hits: int, epsilon: float, windows: int, items_per_window: int, adds_user: bool
) -> tuple[float, float] | None:
    losses = [abs(result.log_ratio) for distance in law.distances for result in law.results(distance)]
    if not math.isclose(min(losses), max(losses), rel_tol=1e-9):
        return None
    curve = best_adversary(
        kernel_of_law(law, law.distances, hits),
        step=losses[0],
        rounds=windows,
        items_per_window=items_per_window,
        epsilons=[epsilon],
        adds_target=adds_user,
    )
    return float(curve.deltas[0]), float(curve.deltas_of_half[0])
