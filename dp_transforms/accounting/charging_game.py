"""The game accountant: the tight privacy cost of target charging, and how much of it is spent after each hit.

Guarantee: let a data holder be called any number of times, adaptively, each call epsilon_per_query-DP with a q-target
for one user, and let the user be excluded after `hits` results in the target. Then the whole interaction is
(epsilon, delta)-DP for that user, for the delta returned here. No accountant that knows only this can return a smaller
one. Proof, and the dynamic program: docs/guarantee.md, "The game".

Every such call is a post-processing of randomized response [KOV15], so the interaction is a walk of the privacy loss l
in steps of +-epsilon_per_query, up with probability ``p = e^eps / (1 + e^eps)``, in which an adversary picks the
probability of a hit after either step, h1 (up) and h0 (down), from the hits left k and from l:

    V_0(l) = (1 - exp(epsilon - l))_+
    V_k(l) = max(V_0(l), max over (h0, h1) of p [h1 V_{k-1}(l+eps) + (1-h1) V_k(l+eps)]
                                       + (1-p) [h0 V_{k-1}(l-eps) + (1-h0) V_k(l-eps)])

subject to ``p h1 + (1-p) h0 >= q`` and ``(1-p) h1 + p h0 >= q``; then ``delta = V_hits(0)``. Each level k is solved by
policy iteration: a policy is a choice of vertex for each l, and its value solves one tridiagonal system.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.accountants import (
    ROUNDING,
    check_delta,
    check_epsilon,
    running_figure,
    smallest_safe_argument,
)
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.checks import check_positive, check_whole, is_number

Values = npt.NDArray[np.float64]

_MARGIN = 14.0  # losses are followed from -margin to epsilon + margin; beyond, truncation costs a factor 1 + e^-14
_MARGIN_DEVIATIONS = 10.0  # or, where that is less, this many standard deviations of the loss of many calls
_MOST_IMPROVEMENTS = 60  # of one level's policy; 3 or 4 are usual, and what is left is added as a residual
_NEGLIGIBLE = 1e-290  # values below it have lost their digits to underflow; their rounding is counted absolutely
_SLOPE = 2e-15  # relative, per step of the lattice
_LONGEST = 2**20  # entries above loss 0; a lattice that is cut there only raises delta
_EPSILONS = 32  # at which the running figure is computed; between them it is interpolated
_STOP = -1  # index of the policy "stop here" among the vertices


@dataclasses.dataclass(frozen=True)
class _Lattice:
    """The walk on losses ``epsilon_per_query * j``, j from -below to above; index `origin` is loss 0."""

    up: float
    down: float
    vertices: tuple[tuple[float, float], ...]  # (h0, h1)
    stop_value: Values
    origin: int


def check_target(epsilon_per_query: float, target_probability: float) -> None:
    """Raises ValueError unless ``0 < q <= 1 / (e^eps + 1)``: beyond it the polygon of (h0, h1) has other vertices."""
    largest = not_prior_probability(check_positive("epsilon_per_query", epsilon_per_query))
    if not is_number(target_probability) or not 0 < target_probability <= largest * (1 + 1e-12):
        raise ValueError(
            f"target_probability must lie in (0, 1 / (e^epsilon_per_query + 1)] = (0, {largest:.6g}], "
            f"got {target_probability!r}. A target with a larger q is also one with this largest q: use that."
        )


def _lattice(epsilon_per_query: float, target_probability: float, hits: int, epsilon: float) -> _Lattice:
    a = math.exp(-epsilon_per_query)
    up, down = 1 / (1 + a), a / (1 + a)
    # However short the lattice is, truncation only raises delta; this is long enough that it does not show.
    many_calls = (hits + 10 * math.sqrt(hits) + 40) / target_probability
    margin = min(_MARGIN / epsilon_per_query, _MARGIN_DEVIATIONS * math.sqrt(many_calls))
    below = math.ceil(margin)
    above = math.ceil(min(epsilon / epsilon_per_query + margin, _LONGEST))
    loss = epsilon_per_query * np.arange(-below, above + 1)
    edge = min(1.0, target_probability / down)
    # (h0, h1) at the corners of the lower left boundary: more hits never help, since V_{k-1} <= V_k.
    vertices = ((edge, 0.0), (0.0, edge), (target_probability, target_probability))
    stop_value = -np.expm1(np.minimum(epsilon - loss, 0.0))
    return _Lattice(up, down, vertices, stop_value, below)


def _shift_up(values: Values) -> Values:
    """values at l + eps; V = 1 above the top, which can only raise delta."""
    return np.append(values[1:], 1.0)


def _shift_down(values: Values) -> Values:
    """values at l - eps; reflected at the bottom (V grows with l), which can only raise delta."""
    return np.append(values[:1], values[:-1])


def _evaluate(lattice: _Lattice, policy: npt.NDArray[np.int64], hit: list[Values]) -> Values:
    """The value of one policy: at each l either stop, or the vertex chosen there. One tridiagonal system."""
    size = len(policy)
    walk_up, walk_down, right = np.zeros(size), np.zeros(size), lattice.stop_value.copy()
    for index, (h0, h1) in enumerate(lattice.vertices):
        chosen = policy == index
        walk_up[chosen] = lattice.up * (1 - h1)
        walk_down[chosen] = lattice.down * (1 - h0)
        right[chosen] = hit[index][chosen]
    right[-1] += walk_up[-1]  # V = 1 above
    up, down, values = walk_up.tolist(), walk_down.tolist(), right.tolist()
    diagonal = [1.0 - down[0], *(1.0 for _ in range(size - 1))]  # V(-N-1) = V(-N)
    # Elimination without exchanges, as in LAPACK: the walk loses something at each step, so the diagonal dominates.
    for i in range(1, size):
        factor = -down[i] / diagonal[i - 1]
        diagonal[i] += factor * up[i - 1]
        values[i] -= factor * values[i - 1]
    values[-1] /= diagonal[-1]
    for i in range(size - 2, -1, -1):
        values[i] = (values[i] + up[i] * values[i + 1]) / diagonal[i]
    return np.asarray(np.clip(values, lattice.stop_value, 1.0))


@dataclasses.dataclass(frozen=True)
class _Level:
    """One level k: the values of the best policy found; ``factor * values + extra`` bounds the true ones from above."""

    values: Values
    policy: npt.NDArray[np.int64]
    factor: float
    extra: float


def _improve(lattice: _Lattice, values: Values, hit: list[Values]) -> tuple[Values, npt.NDArray[np.int64], Values]:
    """One step of the maximum over the vertices: its values, its policy, and the most that stays in this level."""
    up, down = _shift_up(values), _shift_down(values)
    best, policy = lattice.stop_value, np.full(len(values), _STOP, dtype=np.int64)
    most_stays = np.zeros(len(values))
    for index, (h0, h1) in enumerate(lattice.vertices):
        stays = lattice.up * (1 - h1) * up + lattice.down * (1 - h0) * down
        candidate = hit[index] + stays
        better = candidate > best
        best = np.where(better, candidate, best)
        policy[better] = index
        most_stays = np.maximum(most_stays, stays)
    return best, policy, most_stays


def _solve_level(lattice: _Lattice, previous: _Level, first: bool) -> _Level:
    """V_k from V_{k-1} by policy iteration, and what rounding may have hidden.

    Let gain be what one more improvement would still add, and A_v V the part of vertex v that stays in level k. Where
    ``gain <= b (V - A_v V)`` for every v, the bound ``(1 + b) V`` absorbs it: a relative error, which is what a delta
    of 1e-12 needs. Elsewhere a constant gain / q does, since each step is a hit with probability at least q. Both
    satisfy ``F >= max over v of (F under v)``, so F bounds the true values from above.
    """
    previous_up, previous_down = _shift_up(previous.values), _shift_down(previous.values)
    hit = [lattice.up * h1 * previous_up + lattice.down * h0 * previous_down for h0, h1 in lattice.vertices]
    policy = previous.policy
    for _ in range(_MOST_IMPROVEMENTS):
        values = _evaluate(lattice, policy, hit)
        best, best_policy, stays = _improve(lattice, values, hit)
        improved = best - values > 1e-13 * values + _NEGLIGIBLE
        if not improved.any():
            break
        policy = np.where(improved, best_policy, policy)
    if first:
        # The last hit is worthless below epsilon, so V = A_v V there, and rounding would cost the constant. Raising
        # the values by a few roundings per step down leaves room, since most of A_v V comes from the step up.
        values = np.minimum(values * (1 + _SLOPE * np.arange(len(values), 0, -1)), 1.0)
        best, _, stays = _improve(lattice, values, hit)
    residual, room = np.maximum(best - values, 0.0), values - stays
    relative = (room > 1e-6 * values) & (values > 1e20 * _NEGLIGIBLE)
    growth = float((residual[relative] / room[relative]).max(initial=0.0))
    constant = previous.factor * float(residual[~relative].max(initial=0.0)) / lattice.vertices[-1][0]
    return _Level(values, policy, previous.factor * (1 + growth), previous.extra + constant)


@functools.lru_cache(maxsize=512)
def charging_game_deltas(
    epsilon_per_query: float, target_probability: float, hits: int, epsilon: float, enough: float = 1.0
) -> tuple[float, ...]:
    """delta at this epsilon with an exclusion after 1, 2, ..., `hits` hits: V_k(0) for all k from one pass.

    Each is rounded up by less than one part in 10^5. `GameAccountant` checks the numbers.

    Stops early, with fewer entries, after the first entry that exceeds `enough`.
    """
    lattice = _lattice(epsilon_per_query, target_probability, hits, epsilon)
    policy = np.where(lattice.stop_value > 0.5, _STOP, len(lattice.vertices) - 1).astype(np.int64)
    level = _Level(lattice.stop_value, policy, factor=1.0, extra=0.0)
    deltas: list[float] = []
    for k in range(1, hits + 1):
        level = _solve_level(lattice, level, first=k == 1)
        deltas.append(min(1.0, (float(level.values[lattice.origin]) * level.factor + level.extra) * (1 + ROUNDING)))
        if deltas[-1] > enough:
            break
    return tuple(deltas)


def between_probability(epsilon_per_query: float, zone_width: int) -> float:
    """q of the target "in a zone of zone_width integers" for discrete Laplace noise; labels are charged by it.

    ``(1 - e^(-W eps)) / (e^eps + 1)``: [CL23] Lemma G.1 for the integers, docs/guarantee.md, "Lemma (the zone)".
    """
    check_whole("zone_width", zone_width, 1)
    return -math.expm1(-zone_width * epsilon_per_query) * not_prior_probability(epsilon_per_query)


@dataclasses.dataclass(frozen=True)
class GameAccountant:
    """Guarantee: the interaction is (epsilon, delta(epsilon))-DP for one user, and tight for what is known of it.

    Condition: each call is epsilon_per_query-DP with a target of probability target_probability for that user, who is
    excluded after `hits` results in the target. The number of calls is not limited; data and queries may be chosen
    adaptively. Unit of privacy: one user, with all of its events. Source: docs/guarantee.md, "The
    game", from [CL23] Algorithm 1 and [KOV15].

    >>> game = GameAccountant(epsilon_per_query=0.1, target_probability=0.475, hits=5)
    >>> print(f"{game.epsilon(1e-8):.3f}, {game.delta(3.0):.2e}")
    3.450, 1.16e-07
    """

    epsilon_per_query: float
    target_probability: float
    hits: int

    def __post_init__(self) -> None:
        check_target(self.epsilon_per_query, self.target_probability)
        for name in ("epsilon_per_query", "target_probability"):
            object.__setattr__(self, name, float(getattr(self, name)))
        check_whole("hits", self.hits, 1)

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)  # before the cache below, for which True and 1.0 are equal
        return charging_game_deltas(self.epsilon_per_query, self.target_probability, self.hits, epsilon)[-1]

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        calls = math.ceil((self.hits + 2 * math.sqrt(self.hits)) / self.target_probability)
        each = self.epsilon_per_query
        composed = min(calls * each, calls * each**2 / 2 + each * math.sqrt(2 * calls * math.log(1 / delta)))
        return smallest_safe_argument(self.delta, delta, guess=0.9 * composed, lowest=0.0, highest=math.inf)

    def epsilon_after_hits(self, epsilon: float, delta: float) -> tuple[float, ...]:
        """For j = 1 .. hits an epsilon, rounded up but at most `epsilon`, at which the game cut at j hits has this
        delta (docs/guarantee.md, "Claim (running figure)").

        epsilon: here the game of all hits is known to have at most this delta. One pass of the game gives all j for
        one epsilon. Between two values of epsilon, delta lies below its chord in e^epsilon: it is a supremum of
        functions ``P(S) - e^epsilon Q(S)``, hence convex.
        """
        solved = (dataclasses.replace(self, hits=cut).epsilon(delta) for cut in (1, self.hits))
        # At least a thousandth of the total: a generous delta alone may cover the first hits, at epsilon 0.
        first, last = (min(max(one, epsilon / 1000), epsilon) for one in solved)
        found = np.full(self.hits, last, dtype=np.float64)
        before: tuple[float, tuple[float, ...]] = (first, ())
        done = 0  # entries found; they are found in order, since delta grows with j
        for at in np.geomspace(first, last, _EPSILONS + 1).tolist():
            # Also some of the entries that are not safe yet, for the chord to the next value.
            deltas = charging_game_deltas(self.epsilon_per_query, self.target_probability, self.hits, at, 20 * delta)
            while done < min(self.hits, len(deltas)) and deltas[done] <= delta:
                found[done] = min(last, at, _chord(before, (at, deltas), done, delta))
                done += 1
            before = (at, deltas)
        return running_figure(found, epsilon)


def _chord(
    left: tuple[float, tuple[float, ...]], right: tuple[float, tuple[float, ...]], entry: int, delta: float
) -> float:
    """Where the chord between two values of epsilon meets delta; the right value if the left has no such entry."""
    (low, low_deltas), (high, high_deltas) = left, right
    if entry >= len(low_deltas) or not low_deltas[entry] > delta:
        return high
    share = (low_deltas[entry] - delta) / (low_deltas[entry] - high_deltas[entry])
    return min(high, (low + math.log1p(share * math.expm1(high - low))) * (1 + 1e-9))
