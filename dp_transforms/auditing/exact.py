"""What a run attains at the worst, exactly, against what its plan claims. No randomness and no sampling.

Everything computed here is attained by a stream, so it is a lower bound on the true privacy loss, rounded down: where
it exceeds the claim, the claim is wrong. docs/audit.md says which streams are tried and proves that, of streams of this
kind, no other number of holders is worse.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

from dp_transforms.accounting.release_plan import ReleasePlan
from dp_transforms.auditing.adversary import best_adversary, kernel_of_law
from dp_transforms.auditing.query_law import CappedSumLaw, QueryLaw, ThresholdLaw
from dp_transforms.auditing.streams import Stream, StreamLaw, largest_argument, law_of_stream

_LARGEST_PASS = 1.5e8  # hits x rounds^2, the work of following one stream: some seconds
_MOST_FIGURES = 6  # entries of the running figure that are checked
_CURVE_POINTS = 33
_ROUNDING = 1e-12

OnStep = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """What is run, as plain numbers: the law of one query, the lowest count that is published, and the limits.

    hits_per_user: charged results after which a user is excluded. horizon: windows. max_items_per_user: in one window.
    tests_lone_items: whether items are tested that one user alone holds, and not without it (an open domain).
    """

    law: QueryLaw
    threshold: int
    hits_per_user: int
    horizon: int
    max_items_per_user: int
    tests_lone_items: bool = True

    @classmethod
    def of_plan(cls, plan: ReleasePlan) -> Mechanism:
        law: QueryLaw = ThresholdLaw(plan.epsilon_per_query, plan.zone_width)
        if plan.release == "kms21":
            law = CappedSumLaw(plan.wide_epsilon_per_query, plan.epsilon_per_query, plan.noise_cap)
        return cls(
            law=law,
            threshold=plan.threshold,
            hits_per_user=plan.hits_per_user,
            horizon=plan.schedule.horizon,
            max_items_per_user=plan.max_items_per_user,
            tests_lone_items=not plan.domain_size,
        )


@dataclasses.dataclass(frozen=True)
class Claim:
    """What is promised: (epsilon, delta) for the run, and how delta was split.

    epsilon_after_hits: entry j - 1 is the epsilon promised, at delta_accounting, for an exclusion after j hits.
    """

    epsilon: float
    delta: float
    delta_accounting: float
    delta_open: float
    epsilon_after_hits: tuple[float, ...] = ()

    @classmethod
    def of_plan(cls, plan: ReleasePlan) -> Claim:
        return cls(plan.epsilon, plan.delta, plan.delta_accounting, plan.delta_open, plan.epsilon_after_hits)


@dataclasses.dataclass(frozen=True)
class ChargedAudit:
    """One direction of the charged interaction, on items that others hold as well.

    stream: the worst one. delta: what it attains at the claimed epsilon. epsilon: what it attains at delta_accounting.
    best_delta: what the best adaptive adversary attains at the claimed epsilon, and best_delta_of_half with half the
    rounds; None in kms21. static_distance, static_delta: the worst stream that keeps its distance.
    curve: pairs (epsilon, delta) of the worst stream.
    """

    stream: Stream
    delta: float
    epsilon: float
    best_delta: float | None
    best_delta_of_half: float | None
    static_distance: int
    static_delta: float
    curve: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class RunningFigure:
    """The claim for an exclusion after so many hits, and the delta attained at that epsilon."""

    hits: int
    epsilon: float
    delta: float


@dataclasses.dataclass(frozen=True)
class ExactAudit:
    """All that is attained. adding, removing: the two directions. lone_delta: by items that the user holds alone.

    together_delta: by the worst direction with lone items before it, at the claimed epsilon; together_epsilon: the
    epsilon that this attains at the claimed delta (infinite if no epsilon is enough).
    violations: a sentence for each claim that is exceeded.
    """

    adding: ChargedAudit
    removing: ChargedAudit
    lone_delta: float
    together_delta: float
    together_epsilon: float
    running: tuple[RunningFigure, ...]
    violations: tuple[str, ...]

    @property
    def worst(self) -> ChargedAudit:
        return max(self.removing, self.adding, key=lambda side: (side.delta, side.epsilon))


def rounds_until_excluded(mechanism: Mechanism) -> int:
    """So many windows near the threshold exclude the user but with a probability far below any delta."""
    results = mechanism.law.results(mechanism.law.near)
    least = min(
        math.fsum(result[world] for result in results if result.charged)
        for world in (0, 1)  # with the user and without
    )
    hits = mechanism.hits_per_user
    return math.ceil((hits + 10 * math.sqrt(hits) + 40) / least)


def default_rounds(mechanism: Mechanism) -> int:
    """The same, or as many as can be followed within a minute."""
    return min(rounds_until_excluded(mechanism), math.isqrt(round(_LARGEST_PASS / mechanism.hits_per_user)))


def audit_exactly(
    mechanism: Mechanism,
    claim: Claim,
    *,
    rounds: int | None = None,
    on_step: OnStep = lambda step: None,
) -> ExactAudit:
    """Tries the worst streams of at most so many rounds (None: `default_rounds`) against the claim."""
    wanted = default_rounds(mechanism) if rounds is None else rounds
    sides = []
    for adds_user, name in ((True, "adding the user"), (False, "removing the user")):
        on_step(name)
        sides.append(_audit_charged(mechanism, claim, wanted, adds_user))
    adding, removing = sides
    on_step("items of one user alone")
    lone = lone_delta(mechanism, mechanism.max_items_per_user * mechanism.horizon)
    together_delta, together_epsilon = _audit_together(mechanism, claim, adding, removing)
    on_step("running figure")
    running = _audit_running(mechanism, claim, wanted)
    audit = ExactAudit(adding, removing, lone, together_delta, together_epsilon, running, ())
    return dataclasses.replace(audit, violations=tuple(_violations(audit, claim)))


def worst_stream(mechanism: Mechanism, epsilon: float, rounds: int, adds_user: bool) -> Stream:
    """The stream that is worst at this epsilon among those that look at what was published.

    Until the loss exceeds epsilon, hits should fall only on results that lower it; from then on, on those that raise it
    (docs/audit.md).
    """
    near, far = mechanism.law.near, mechanism.law.far
    windows = min(rounds, mechanism.horizon)
    if far is None:
        return Stream.static(adds_user, near, windows)
    first, later = (far, near) if adds_user else (near, far)
    return Stream(adds_user, first, later, epsilon, windows)


def law_of(mechanism: Mechanism, stream: Stream) -> StreamLaw:
    """Its exact law; of hits that cannot be reached in its rounds there are no rows."""
    return law_of_stream(mechanism.law, min(mechanism.hits_per_user, stream.rounds + 1), stream)


def lone_delta(mechanism: Mechanism, items: int) -> float:
    """The probability that one of so many items is published although the user is its only holder, rounded down.

    Without the user none of them can be, so this is the delta of such a stream at every epsilon.
    """
    if not mechanism.tests_lone_items or items <= 0:
        return 0.0
    each = mechanism.law.alone(mechanism.threshold)
    return -math.expm1(items * math.log1p(-each)) * (1 - _ROUNDING)


def _audit_charged(mechanism: Mechanism, claim: Claim, rounds: int, adds_user: bool) -> ChargedAudit:

    def merit(tried: tuple[Stream, StreamLaw]) -> tuple[float, float]:
        law = tried[1]
        return law.delta(claim.epsilon, adds_user), law.epsilon(claim.delta_accounting, adds_user)

    static, static_law = max(_static_laws(mechanism, rounds, adds_user), key=merit)
    adaptive = worst_stream(mechanism, claim.epsilon, rounds, adds_user)
    # In a short run a static stream may be worse: all items of a window count, while nobody looks back within one.
    stream, law = max((adaptive, law_of(mechanism, adaptive)), (static, static_law), key=merit)
    epsilon = max(each.epsilon(claim.delta_accounting, adds_user) for each in (law, static_law))
    if not stream.is_static:  # once more, with the stream that is worst at that epsilon
        tuned = law_of(mechanism, worst_stream(mechanism, epsilon, rounds, adds_user))
        epsilon = max(epsilon, tuned.epsilon(claim.delta_accounting, adds_user))
    best, best_of_half = _best_delta(mechanism, claim.epsilon, min(rounds, mechanism.horizon), adds_user)
    points = [1.5 * claim.epsilon * index / (_CURVE_POINTS - 1) for index in range(_CURVE_POINTS)]
    return ChargedAudit(
        stream=stream,
        delta=law.delta(claim.epsilon, adds_user),
        epsilon=epsilon,
        best_delta=best,
        best_delta_of_half=best_of_half,
        static_distance=static.distance,
        static_delta=static_law.delta(claim.epsilon, adds_user),
        curve=tuple((point, law.delta(point, adds_user)) for point in points),
    )


def _static_laws(mechanism: Mechanism, rounds: int, adds_user: bool) -> list[tuple[Stream, StreamLaw]]:
    """Streams that need not look back, so that all items of a window count."""
    queries = min(rounds, mechanism.horizon * mechanism.max_items_per_user)
    streams = [Stream.static(adds_user, distance, queries) for distance in mechanism.law.distances]
    return [(stream, law_of(mechanism, stream)) for stream in streams]


def _best_delta(
    mechanism: Mechanism, epsilon: float, rounds: int, adds_user: bool
) -> tuple[float, float] | tuple[None, None]:
    """Only where every loss is a whole step: elsewhere rounding would leave nothing."""
    distances = mechanism.law.distances
    losses = [abs(result.log_ratio) for distance in distances for result in mechanism.law.results(distance)]
    if not math.isclose(min(losses), max(losses), rel_tol=1e-9):
        return None, None
    kernel = kernel_of_law(mechanism.law, distances, min(mechanism.hits_per_user, rounds + 1))
    curve = best_adversary(kernel, step=losses[0], rounds=rounds, epsilons=[epsilon], adds_target=adds_user)
    return float(curve.deltas[0]), float(curve.deltas_of_half[0])


def _audit_together(
    mechanism: Mechanism, claim: Claim, adding: ChargedAudit, removing: ChargedAudit
) -> tuple[float, float]:
    """Lone items in the windows that the worst stream leaves over, and then the stream.

    With the user one of them is published with probability p, never without; given that none is, what follows is the
    stream itself, with a loss that is lower by ``-ln(1 - p)``. So delta is ``p + (1 - p) delta_stream(epsilon -
    ln(1 - p))``; in the other direction the stream alone attains what it attains.
    """
    items = mechanism.max_items_per_user
    # A static stream packs a window full; an adaptive one has one item in each.
    used = adding.stream.rounds if not adding.stream.is_static else math.ceil(adding.stream.rounds / items)
    p = lone_delta(mechanism, items * (mechanism.horizon - used))
    alone = lone_delta(mechanism, items * mechanism.horizon)

    def delta(side: ChargedAudit, law: StreamLaw, epsilon: float) -> float:
        if not side.stream.adds_user:
            return law.delta(epsilon, False)
        return max(alone, p + (1 - p) * law.delta(epsilon - math.log1p(-p), True))

    at_epsilon, at_delta = 0.0, 0.0
    for side in (adding, removing):
        law = law_of(mechanism, side.stream)
        at_epsilon = max(at_epsilon, delta(side, law, claim.epsilon))
        laws = [law]
        if not side.stream.is_static:
            tuned = dataclasses.replace(side.stream, switch_loss=side.epsilon)
            laws.append(law_of(mechanism, tuned))
        if side.stream.adds_user and alone > claim.delta:
            at_delta = math.inf
            continue
        for each in laws:
            highest = float(abs(each.log_ratio).max())
            at_delta = max(at_delta, _epsilon_of(functools.partial(delta, side, each), claim.delta, highest))
    return at_epsilon, at_delta


def _epsilon_of(delta_at: Callable[[float], float], delta: float, highest: float) -> float:
    return largest_argument(lambda epsilon: delta_at(epsilon) > delta, highest)


def _audit_running(mechanism: Mechanism, claim: Claim, rounds: int) -> tuple[RunningFigure, ...]:
    """The figure that every report carries, for exclusions after fewer hits."""
    total = len(claim.epsilon_after_hits)
    chosen = sorted({1 + round((total - 1) * part / (_MOST_FIGURES - 1)) for part in range(_MOST_FIGURES)})
    figures = []
    for hits in chosen if total else []:
        shorter = dataclasses.replace(mechanism, hits_per_user=hits)
        epsilon = claim.epsilon_after_hits[hits - 1]
        law = law_of(shorter, worst_stream(shorter, epsilon, min(rounds, rounds_until_excluded(shorter)), False))
        figures.append(RunningFigure(hits, epsilon, law.delta(epsilon, False)))
    return tuple(figures)


def _violations(audit: ExactAudit, claim: Claim) -> list[str]:
    found = []
    for side, name in ((audit.adding, "adding"), (audit.removing, "removing")):
        attained = max(side.delta, side.best_delta or 0.0)
        if attained > claim.delta_accounting:
            found.append(
                f"{name} one user attains delta {attained:.3g} at epsilon {claim.epsilon:g} on charged results, but "
                f"only {claim.delta_accounting:.3g} is set aside for them"
            )
    if audit.lone_delta > claim.delta_open:
        found.append(
            f"items that one user holds alone are published with probability {audit.lone_delta:.3g}, but only "
            f"{claim.delta_open:.3g} is set aside for them"
        )
    if audit.together_delta > claim.delta:
        found.append(f"together they attain delta {audit.together_delta:.3g} at epsilon {claim.epsilon:g}")
    for figure in audit.running:
        if figure.delta > claim.delta_accounting:
            found.append(
                f"cut at {figure.hits} hits, the run attains delta {figure.delta:.3g} at the {figure.epsilon:.4g} that "
                "reports show as spent"
            )
    return found
