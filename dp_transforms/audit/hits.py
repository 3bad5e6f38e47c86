"""Users who pay for hits: what the best adversary attains, exactly, against what the plan claims.

Nothing is random or sampled. `Mechanism` is what a plan runs, as plain numbers, so that tests can change one of them
and leave the claim as it was. Everything computed here is attained by some stream and rounded down, so it is a lower
bound on the true privacy loss: if it exceeds the claim, the claim is wrong. The one exception is a *ceiling*, which no
stream exceeds: it says how much could have been missed. docs/proofs.md, "The audit of
hits", says which streams are tried and proves the ceiling.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.plan.plan import Plan

Values = npt.NDArray[np.float64]
OnStep = Callable[[str], None]

LARGEST_PASS = 1.5e8  # hits x rounds^2, the work for one adversary: some seconds
_MOST_FIGURES = 6  # entries of the running figure that are checked
_SAME = 1e-4  # relative; the programs that are compared round to about 1e-5
_ROUNDING_OF_LONE_ITEMS = 1e-12
_SLACK = 1e-9  # of a lattice step: a loss of exactly j steps must not be rounded to j - 1
_ENOUGH = 12.0  # losses that exceed epsilon by more than this count as this: within 1e-5


# --- One query: every possible result, with its exact probability with the user and without
#
# A query counts the active holders of an item: `f` without the user and `f + 1` with it. Only the *distance*
# ``f - threshold`` matters, for the mechanism compares a noisy count with fixed edges. Results with the same
# ratio of probabilities and the same charge are one result here: merging them changes no privacy loss (docs/proofs.md).


class Result(NamedTuple):
    """with_user, without_user: its probabilities. log_ratio: ``ln(with_user / without_user)``, without cancellation.

    charged: how many hits every active holder pays for it, 0 or 1.
    """

    with_user: float
    without_user: float
    log_ratio: float
    charged: int


@dataclasses.dataclass(frozen=True)
class ThresholdLaw:
    """Modes ``hits`` (zone_width >= 1) and ``hits-with-counts`` (zone_width 0: all from the threshold on is charged).

    Discrete Laplace noise of scale ``1 / epsilon_per_query``. A noisy count v has ratio e^epsilon_per_query where
    ``v > f`` and its inverse where ``v <= f``. Only "below" and "above", which lump values, may lie between.

    >>> law = ThresholdLaw(epsilon_per_query=0.5, zone_width=4)
    >>> [(round(result.log_ratio, 3), result.charged) for result in law.results(-1)]
    [(-0.5, 0), (0.5, 1), (0.5, 0)]
    """

    epsilon_per_query: float
    zone_width: int
    near: ClassVar[int] = -1  # the distance at which, if it is kept, the loss can grow most while the user pays least

    def results(self, distance: int) -> tuple[Result, ...]:
        """All possible results, at this distance of the count without the user from the threshold."""
        last_of_zone = self.zone_width - 1 if self.zone_width else None
        # Single values keep their own ratio, so the zone is cut at the count. "below" and "above" are lumps.
        charged = [(*part, 1) for part in _cut(0, last_of_zone, distance)]
        above = [(self.zone_width, None, 0)] if self.zone_width else []
        found: dict[tuple[float, int], Result] = {}
        for first, last, hits in [(None, -1, 0), *charged, *above]:
            with_user, without_user, log_ratio = self._range(first, last, distance)
            key = (log_ratio, hits)
            before = found.get(key, Result(0.0, 0.0, *key))
            found[key] = Result(before.with_user + with_user, before.without_user + without_user, *key)
        return tuple(result for result in found.values() if result.with_user > 0 or result.without_user > 0)

    def _range(self, first: int | None, last: int | None, distance: int) -> tuple[float, float, float]:
        """Two probabilities and the log ratio of noisy counts ``threshold + first .. threshold + last``."""
        epsilon = self.epsilon_per_query
        with_user = laplace_mass(epsilon, first, last, distance + 1)
        without_user = laplace_mass(epsilon, first, last, distance)
        if first is not None and first > distance:
            log_ratio = epsilon
        elif last is not None and last <= distance:
            log_ratio = -epsilon
        else:
            log_ratio = math.log(with_user / without_user)
        return with_user, without_user, log_ratio

    @property
    def far(self) -> int | None:
        """The mirror image of `near`, at the other edge of a charged zone; None without a zone."""
        return self.zone_width - 1 if self.zone_width else None

    @property
    def distances(self) -> tuple[int, ...]:
        """A few distances to try, `near` and `far` among them."""
        last = self.zone_width - 1 if self.zone_width else math.ceil(1 / self.epsilon_per_query)
        return tuple(sorted({-1, last // 2, last}))

    def alone(self, threshold: int) -> float:
        """The probability that an item whose only holder is the user is published."""
        return laplace_mass(self.epsilon_per_query, threshold, None, 1)


def laplace_mass(epsilon: float, first: int | None, last: int | None, center: int) -> float:
    """``Pr[first <= center + Z <= last]`` for discrete Laplace Z, with all digits; None: without end."""
    a = math.exp(-epsilon)
    low = -math.inf if first is None else first - center
    high = math.inf if last is None else last - center
    if low > high:
        return 0.0
    if low > 0:
        return -math.exp(-epsilon * low) * math.expm1(-epsilon * (high - low + 1)) / (1 + a)
    if high < 0:
        return -math.exp(epsilon * high) * math.expm1(-epsilon * (high - low + 1)) / (1 + a)
    return 1 - (math.exp(-epsilon * (1 - low)) + math.exp(-epsilon * (high + 1))) / (1 + a)


def _cut(low: int | None, high: int | None, distance: int) -> list[tuple[int | None, int | None]]:
    """The range in two: up to the count, and above it."""
    if (low is not None and low > distance) or (high is not None and high <= distance):
        return [(low, high)]
    return [(low, distance), (distance + 1, high)]


# --- What is run, and what is claimed


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """What is run, as plain numbers: the law of one query, the smallest count that is published, and the limits.

    hits_per_user: charged results after which a user is excluded, in all of its keys together: a user who is excluded
    under one key goes on under the next. horizon: windows. max_items_per_user: in one window, under one key.
    tests_lone_items: whether an item is tested only if somebody holds it (an open domain).
    """

    law: ThresholdLaw
    threshold: int
    hits_per_user: int
    horizon: int
    max_items_per_user: int
    tests_lone_items: bool = True
    keys: int = 1

    @classmethod
    def of_plan(cls, plan: Plan) -> Mechanism:
        hits = plan.charged_hits
        if hits.wide is not None:
            raise ValueError("there is no audit of plans with printed noise.")
        return cls(
            law=ThresholdLaw(hits.epsilon_per_query, hits.zone_width),
            threshold=plan.threshold,
            hits_per_user=hits.in_all,
            horizon=plan.schedule.horizon,
            max_items_per_user=hits.max_items_per_user,
            tests_lone_items=plan.public_items is None,
            keys=hits.keys,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HitsClaim:
    """What is promised: (epsilon, delta) for the run. Of delta, delta_accounting is for charged results and delta_open
    for items that one user holds alone. epsilon_after_hits: entry j - 1 is the epsilon promised, at delta_accounting,
    for an exclusion after j hits."""

    epsilon: float
    delta: float
    delta_open: float
    delta_accounting: float
    epsilon_after_hits: tuple[float, ...] = ()

    @classmethod
    def of_plan(cls, plan: Plan) -> HitsClaim:
        return cls(
            epsilon=plan.epsilon,
            delta=plan.delta,
            delta_open=plan.delta_open,
            delta_accounting=plan.shares.paid,
            epsilon_after_hits=plan.epsilon_after_hits,
        )


# --- The best adversary


def rounds_until_excluded(mechanism: Mechanism) -> int:
    """The number of items near the threshold that exclude the user, except with a probability far below any delta."""
    charged = [result for result in mechanism.law.results(mechanism.law.near) if result.charged]
    least = min(math.fsum(result.with_user for result in charged), math.fsum(result.without_user for result in charged))
    hits = mechanism.hits_per_user
    return math.ceil((hits + 10 * math.sqrt(hits) + 40) / least)


def default_rounds(mechanism: Mechanism) -> int:
    """The same, or fewer: what can be followed within a minute."""
    return min(rounds_until_excluded(mechanism), math.isqrt(round(LARGEST_PASS / mechanism.hits_per_user)))


def windows_and_items(mechanism: Mechanism, rounds: int) -> tuple[int, int]:
    """Windows, and items in each of them, for `rounds` items, or for all that the run has room for."""
    windows = min(rounds, mechanism.horizon)
    return windows, min(mechanism.max_items_per_user, math.ceil(rounds / windows))


def best_delta(mechanism: Mechanism, epsilon: float, windows: int, items_per_window: int, adds_user: bool) -> float:
    """What the best adversary attains, by a dynamic program over (hits paid, privacy loss).

    In each window it makes up to so many calls, all at one distance, and learns their results at its end. With one item
    in each, no stream on as many items attains more, by the theorem of docs/proofs.md. All rounding is downward.
    The two directions of a zone are mirror images, so both attain the same.
    """
    hits = min(mechanism.hits_per_user, windows * items_per_window + 1)
    is_mirrored = mechanism.law.far is not None
    return _best_of_law(mechanism.law, hits, epsilon, windows, items_per_window, adds_user and not is_mirrored)


@functools.lru_cache(maxsize=16)
def _best_of_law(
    law: ThresholdLaw, hits: int, epsilon: float, windows: int, items_per_window: int, adds_user: bool
) -> float:
    by_distance = [law.results(distance) for distance in law.distances]
    step, calls = law.epsilon_per_query, windows * items_per_window  # each result moves the loss by one step
    whole_steps = math.floor(epsilon / step + _SLACK)
    # Losses less epsilon. Every call may have rounded up by _SLACK of a step: charge the adversary for all of them.
    below = whole_steps + min(calls, math.ceil(6 * math.sqrt(calls)) + 20)
    above = min(math.ceil(_ENOUGH / step), calls)
    excess = step * np.arange(-below, above + 1) - (epsilon - step * whole_steps) - calls * _SLACK * step
    stop = np.maximum(0.0, -np.expm1(np.minimum(0.0, -excess)))
    values = np.tile(stop, (hits + 1, 1))
    for _ in range(windows):
        best = np.tile(stop, (hits + 1, 1))
        for results in by_distance:
            of_window = values
            for _ in range(items_per_window):
                of_window = _before_call(of_window, results, adds_user)
                np.maximum(best, of_window, out=best)
        values = best
    shrink = 1 - 1e-15 * calls * 8  # the rounding of the sums
    return float(values[0, below - whole_steps] * shrink)


def _before_call(values: Values, results: Iterable[Result], adds_user: bool) -> Values:
    """The value before a call, from the values after it: 0 below the lattice, that of its top above.

    values: float64[hits + 1, losses]. A user that has paid all its hits changes nothing any more.
    """
    padded = np.concatenate([np.zeros((len(values), 1)), values, values[:, -1:]], axis=1)
    total = values.copy()
    total[:-1] = 0.0
    for is_loss, moved in ((True, padded[:, 2:]), (False, padded[:, :-2])):
        part = np.zeros_like(values[:-1])
        for result in results:
            if ((result.log_ratio > 0) == adds_user) == is_loss:
                probability = result.with_user if adds_user else result.without_user
                part += probability * (moved[1:] if result.charged else moved[:-1])
        total[:-1] += part
    return total


def lone_delta(mechanism: Mechanism, items: int) -> float:
    """The probability that one of `items` items is published although the user is its only holder, rounded down.

    Without the user none of them can be, so this is the delta of such a stream at every epsilon.
    """
    if not mechanism.tests_lone_items or items <= 0:
        return 0.0
    each = mechanism.law.alone(mechanism.threshold)
    return -math.expm1(items * math.log1p(-each)) * (1 - _ROUNDING_OF_LONE_ITEMS)


# --- The audit


@dataclasses.dataclass(frozen=True)
class ChargedAudit:
    """One direction of the charged interaction, on items that others hold too.

    attained: the delta of the best adversary that chooses one distance for each window, at the claimed epsilon.
    ceiling: no adversary exceeds this, whatever it does, if the user holds at most `items` items.
    """

    attained: float
    ceiling: float
    items: int

    @property
    def is_settled(self) -> bool:
        """Whether the ceiling shows that no stream on `items` items attains more, up to one part in 10^4."""
        return self.ceiling <= self.attained * (1 + _SAME)


@dataclasses.dataclass(frozen=True)
class RunningFigure:
    """The claim for an exclusion after `hits` hits, and the delta attained at that epsilon, in either direction."""

    hits: int
    epsilon: float
    delta: float


@dataclasses.dataclass(frozen=True)
class HitsAudit:
    """All that is attained at the claimed epsilon. adding, removing: the user. lone_delta: by items that the user holds
    alone. together_delta: by these, and then by the best adversary. violations: a sentence for each claim that is
    exceeded.
    """

    adding: ChargedAudit
    removing: ChargedAudit
    lone_delta: float
    together_delta: float
    running: tuple[RunningFigure, ...]
    violations: tuple[str, ...]

    @property
    def worst(self) -> ChargedAudit:
        return max(self.removing, self.adding, key=lambda side: side.attained)


def audit_hits(mechanism: Mechanism, claim: HitsClaim, *, on_step: OnStep = lambda step: None) -> HitsAudit:
    """There is one item in a window, or several if the run is too short for that."""
    on_step("charged results")
    adding, removing = (_audit_charged(mechanism, claim, adds_user) for adds_user in (True, False))
    on_step("items of one user alone")
    each_window = mechanism.keys * mechanism.max_items_per_user
    lone = lone_delta(mechanism, each_window * mechanism.horizon)
    together = max(lone, adding.attained, removing.attained, _after_lone_items(mechanism, claim, each_window))
    on_step("running figure")
    audit = HitsAudit(adding, removing, lone, together, _audit_running(mechanism, claim), ())
    return dataclasses.replace(audit, violations=tuple(_violations(audit, claim)))


def _audit_charged(mechanism: Mechanism, claim: HitsClaim, adds_user: bool) -> ChargedAudit:
    windows, per_window = windows_and_items(mechanism, default_rounds(mechanism))
    attained = ceiling = best_delta(mechanism, claim.epsilon, windows, per_window, adds_user)
    if per_window > 1:
        ceiling = best_delta(mechanism, claim.epsilon, windows * per_window, 1, adds_user)
    return ChargedAudit(attained, ceiling, windows * per_window)


def _after_lone_items(mechanism: Mechanism, claim: HitsClaim, each_window: int) -> float:
    """Lone items in the windows that the best adversary does not need, and then what it does, with the user added.

    Without the user no lone item can be published. If none is, the loss of what follows is lower by
    ``-ln(1 - published)``.
    """
    windows, per_window = windows_and_items(mechanism, default_rounds(mechanism))
    published = lone_delta(mechanism, each_window * (mechanism.horizon - windows))
    if published >= 1:
        return 1.0
    epsilon = claim.epsilon - math.log1p(-published)
    return published + (1 - published) * best_delta(mechanism, epsilon, windows, per_window, True)


def _audit_running(mechanism: Mechanism, claim: HitsClaim) -> tuple[RunningFigure, ...]:
    """The figure that every report carries, for exclusions after fewer hits."""
    total = len(claim.epsilon_after_hits)
    chosen = {1 + round((total - 1) * part / (_MOST_FIGURES - 1)) for part in range(_MOST_FIGURES)} if total else set()
    figures = []
    for hits in sorted(chosen):
        shorter = dataclasses.replace(mechanism, hits_per_user=hits)
        windows, per_window = windows_and_items(shorter, default_rounds(shorter))
        epsilon = claim.epsilon_after_hits[hits - 1]
        delta = max(best_delta(shorter, epsilon, windows, per_window, adds_user) for adds_user in (True, False))
        figures.append(RunningFigure(hits, epsilon, delta))
    return tuple(figures)


def _violations(audit: HitsAudit, claim: HitsClaim) -> list[str]:
    found = []
    for side, name in ((audit.adding, "adding"), (audit.removing, "removing")):
        if side.attained > claim.delta_accounting:
            found.append(
                f"{name} one user attains delta {side.attained:.3g} at epsilon {claim.epsilon:g} on charged results, "
                f"but only {claim.delta_accounting:.3g} is set aside for them"
            )
    if audit.lone_delta > claim.delta_open:
        found.append(
            f"items that one user holds alone are published with probability {audit.lone_delta:.4g}, but only "
            f"{claim.delta_open:.4g} is set aside for them"
        )
    if audit.together_delta > claim.delta:
        found.append(f"together they attain delta {audit.together_delta:.4g} at epsilon {claim.epsilon:g}")
    for figure in audit.running:
        if figure.delta > claim.delta_accounting:
            found.append(
                f"cut at {figure.hits} hits, the run attains delta {figure.delta:.3g} at the {figure.epsilon:.4g} that "
                "reports show as spent"
            )
    return found
