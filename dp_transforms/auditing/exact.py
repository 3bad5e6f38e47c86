"""What a run attains at the worst, exactly, against what its plan claims. No randomness and no sampling.

Everything computed here is attained by a stream, so it is a lower bound on the true privacy loss, rounded down: where
it exceeds the claim, the claim is wrong. The one exception is a *ceiling*, which no stream exceeds: it says how much
could have been missed. docs/audit.md says which streams are tried and has the proof of the ceiling.
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
_SAME = 1e-4  # relative; the programs that are compared round to about 1e-5

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
    best_delta: what the best adaptive adversary that chooses one distance for each window attains at the claimed
    epsilon, and best_delta_of_half in half the windows. ceiling_delta: no adversary exceeds this, whatever it does, if
    the user is shown on no more items than `items`. All three are None in kms21, where there is no such theorem.
    static_distance, static_delta: the worst stream that keeps its distance.
    curve: pairs (epsilon, delta) of the worst stream.
    """

    stream: Stream
    delta: float
    epsilon: float
    best_delta: float | None
    best_delta_of_half: float | None
    ceiling_delta: float | None
    items: int
    static_distance: int
    static_delta: float
    curve: tuple[tuple[float, float], ...]

    @property
    def attained(self) -> float:
        """The largest delta at the claimed epsilon of all that was tried."""
        return max(self.delta, self.best_delta or 0.0)

    @property
    def is_settled(self) -> bool:
        """Whether it was computed that no stream on so many items attains more, up to one part in 10^4."""
        return self.ceiling_delta is not None and self.ceiling_delta <= self.attained * (1 + _SAME)


@dataclasses.dataclass(frozen=True)
class RunningFigure:
    """The claim for an exclusion after so many hits, and the delta attained at that epsilon, in either direction."""

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
        return max(self.removing, self.adding, key=lambda side: (side.attained, side.epsilon))


def rounds_until_excluded(mechanism: Mechanism) -> int:
    """So many items near the threshold exclude the user but with a probability far below any delta."""
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
    """Tries the worst streams on about so many items (None: `default_rounds`) against the claim.

    They are one in a window, and several where the run is too short for that.
    """
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


def worst_stream(
    mechanism: Mechanism, epsilon: float, rounds: int, adds_user: bool, *, items_per_window: int = 1
) -> Stream:
    """The stream that is worst at this epsilon among those that look at what was published.

    Until the loss exceeds epsilon, hits should fall only on results that lower it; from then on, on those that raise it
    (docs/audit.md). With several items in a window it looks back less often, and nothing says that it is the worst.
    """
    near, far = mechanism.law.near, mechanism.law.far
    items = min(rounds, mechanism.horizon * items_per_window)
    if far is None:
        return Stream.static(adds_user, near, items, items_per_window)
    first, later = (far, near) if adds_user else (near, far)
    return Stream(adds_user, first, later, epsilon, items, items_per_window)


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

    def laws(streams: list[Stream]) -> list[tuple[Stream, StreamLaw]]:
        return [(stream, law_of(mechanism, stream)) for stream in streams]

    static = max(laws(_static_streams(mechanism, rounds, adds_user)), key=merit)
    adaptive = laws(_adaptive_streams(mechanism, claim.epsilon, rounds, adds_user))
    # In a short run a static stream may be worse: it loses nothing by several items in a window.
    stream, law = max([*adaptive, static], key=merit)
    epsilon = max(merit(tried)[1] for tried in (*adaptive, static))
    # Once more, with the streams that are worst at that epsilon.
    for _, tuned in laws(_adaptive_streams(mechanism, epsilon, rounds, adds_user)):
        epsilon = max(epsilon, tuned.epsilon(claim.delta_accounting, adds_user))
    windows, per_window = _fewest_items_per_window(mechanism, rounds)
    best = _best_deltas(mechanism, claim.epsilon, windows, per_window, adds_user)
    ceiling = best
    if best is not None and per_window > 1:
        ceiling = _best_deltas(mechanism, claim.epsilon, windows * per_window, 1, adds_user)
    points = [1.5 * claim.epsilon * index / (_CURVE_POINTS - 1) for index in range(_CURVE_POINTS)]
    return ChargedAudit(
        stream=stream,
        delta=merit((stream, law))[0],
        epsilon=epsilon,
        best_delta=None if best is None else best[0],
        best_delta_of_half=None if best is None else best[1],
        ceiling_delta=None if ceiling is None else ceiling[0],
        items=windows * per_window,
        static_distance=static[0].distance,
        static_delta=merit(static)[0],
        curve=tuple((point, law.delta(point, adds_user)) for point in points),
    )


def _fewest_items_per_window(mechanism: Mechanism, rounds: int) -> tuple[int, int]:
    """Windows, and items in each of them, to show so many items or all that the run has room for."""
    windows = min(rounds, mechanism.horizon)
    return windows, min(mechanism.max_items_per_user, math.ceil(rounds / windows))


def _static_streams(mechanism: Mechanism, rounds: int, adds_user: bool) -> list[Stream]:
    """Streams that need not look back, so that a window may hold as many items as it can."""
    per_window = mechanism.max_items_per_user
    items = min(rounds, mechanism.horizon * per_window)
    return [Stream.static(adds_user, distance, items, per_window) for distance in mechanism.law.distances]


def _adaptive_streams(mechanism: Mechanism, epsilon: float, rounds: int, adds_user: bool) -> list[Stream]:
    """The worst stream with one item in a window, and with more where the run is short: none if none looks back."""
    if mechanism.law.far is None:
        return []
    most = _fewest_items_per_window(mechanism, rounds)[1]
    return [
        worst_stream(mechanism, epsilon, rounds, adds_user, items_per_window=per_window)
        for per_window in sorted({1, (1 + most) // 2, most})
    ]


def _best_deltas(
    mechanism: Mechanism, epsilon: float, windows: int, items_per_window: int, adds_user: bool
) -> tuple[float, float] | None:
    """What the best adversary attains, and in half the windows. With one item in each, no stream on so many items does
    better, by the theorem of docs/audit.md.

    Only where every loss is a whole step: elsewhere rounding would leave nothing. The two directions of a zone are
    mirror images, so that both attain the same.
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


def _audit_together(
    mechanism: Mechanism, claim: Claim, adding: ChargedAudit, removing: ChargedAudit
) -> tuple[float, float]:
    """Lone items in the windows that the worst stream leaves over, and then the stream.

    With the user one of them is published with probability p, never without; given that none is, what follows is the
    stream itself, with a loss that is lower by ``-ln(1 - p)``. So delta is ``p + (1 - p) delta_stream(epsilon -
    ln(1 - p))``; in the other direction the stream alone attains what it attains.
    """
    items = mechanism.max_items_per_user
    p = lone_delta(mechanism, items * (mechanism.horizon - adding.stream.windows))
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
    """The figure that every report carries, for exclusions after fewer hits.

    Streams that look back are tried with the user removed: in `labels` the other direction is their mirror image.
    """
    total = len(claim.epsilon_after_hits)
    chosen = sorted({1 + round((total - 1) * part / (_MOST_FIGURES - 1)) for part in range(_MOST_FIGURES)})
    figures = []
    for hits in chosen if total else []:
        shorter = dataclasses.replace(mechanism, hits_per_user=hits)
        items = min(rounds, rounds_until_excluded(shorter))
        epsilon = claim.epsilon_after_hits[hits - 1]
        streams = _adaptive_streams(shorter, epsilon, items, False)
        attained = [law_of(shorter, stream).delta(epsilon, False) for stream in streams]
        if items > shorter.horizon or not streams:
            for stream in _static_streams(shorter, items, False):
                attained += [law_of(shorter, stream).delta(epsilon, adds_user) for adds_user in (True, False)]
        windows, per_window = _fewest_items_per_window(shorter, items)
        if streams and per_window > 1 and hits * items**2 < _LARGEST_PASS / 10:
            best = _best_deltas(shorter, epsilon, windows, per_window, False)
            attained.append(best[0] if best else 0.0)
        figures.append(RunningFigure(hits, epsilon, max(attained)))
    return tuple(figures)


def _violations(audit: ExactAudit, claim: Claim) -> list[str]:
    found = []
    for side, name in ((audit.adding, "adding"), (audit.removing, "removing")):
        if side.attained > claim.delta_accounting:
            found.append(
                f"{name} one user attains delta {side.attained:.3g} at epsilon {claim.epsilon:g} on charged results, "
                f"but only {claim.delta_accounting:.3g} is set aside for them"
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
