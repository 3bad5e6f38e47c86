"""What a run attains at the worst, exactly, against what its plan claims. Nothing is random or sampled.

A stream attains everything computed here, so it is a lower bound on the true privacy loss, rounded down: if it exceeds
the claim, the claim is wrong. The one exception is a *ceiling*, which no stream exceeds: it says how much could have
been missed. docs/audit.md says which streams are tried and proves the ceiling.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from dp_transforms.audit.mechanism import HitsClaim, Mechanism, violations_of_delta, with_lone_items
from dp_transforms.audit.streams import (
    LARGEST_PASS,
    AttackStream,
    StreamLaw,
    adaptive_streams,
    best_deltas,
    default_rounds,
    fewest_items_per_window,
    largest_argument,
    law_of,
    lone_delta,
    rounds_until_excluded,
    static_streams,
)

_MOST_FIGURES = 6  # entries of the running figure that are checked
_CURVE_POINTS = 33
_SAME = 1e-4  # relative; the programs that are compared round to about 1e-5

OnStep = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class ChargedAudit:
    """One direction of the charged interaction, on items that others hold too.

    stream: the worst one. delta: what it attains at the claimed epsilon. epsilon: what it attains at delta_accounting.
    best_delta: what the best adaptive adversary that chooses one distance for each window attains at the claimed
    epsilon, and best_delta_of_half in half the windows. ceiling_delta: no adversary exceeds this, whatever it does, if
    the user holds at most `items` items.
    static_distance, static_delta: of the worst stream that keeps its distance.
    curve: pairs (epsilon, delta) of the worst stream.
    """

    stream: AttackStream
    delta: float
    epsilon: float
    best_delta: float
    best_delta_of_half: float
    ceiling_delta: float
    items: int
    static_distance: int
    static_delta: float
    curve: tuple[tuple[float, float], ...]

    @property
    def attained(self) -> float:
        """The largest delta that was found at the claimed epsilon."""
        return max(self.delta, self.best_delta)

    @property
    def is_settled(self) -> bool:
        """Whether the ceiling shows that no stream on `items` items attains more, up to one part in 10^4."""
        return self.ceiling_delta <= self.attained * (1 + _SAME)


@dataclasses.dataclass(frozen=True)
class RunningFigure:
    """The claim for an exclusion after `hits` hits, and the delta attained at that epsilon, in either direction."""

    hits: int
    epsilon: float
    delta: float


@dataclasses.dataclass(frozen=True)
class ExactAudit:
    """All that is attained. adding, removing: the two directions. lone_delta: from items that the user holds alone.

    together_delta: by the worst direction with lone items before it, at the claimed epsilon. together_epsilon: the
    epsilon that this attains at the claimed delta (infinite if no epsilon is enough). violations: a sentence for each
    claim that is exceeded.
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


def audit_exactly(
    mechanism: Mechanism,
    claim: HitsClaim,
    *,
    rounds: int | None = None,
    on_step: OnStep = lambda step: None,
) -> ExactAudit:
    """Tries the worst streams on about `rounds` items (None: `default_rounds`) against the claim.

    There is one item in a window, or several if the run is too short for that.
    """
    wanted = default_rounds(mechanism) if rounds is None else rounds
    on_step("adding the user")
    adding = _audit_charged(mechanism, claim, wanted, True)
    on_step("removing the user")
    removing = _audit_charged(mechanism, claim, wanted, False)
    on_step("items of one user alone")
    lone = lone_delta(mechanism, mechanism.keys * mechanism.max_items_per_user * mechanism.horizon)
    together_delta, together_epsilon = _audit_together(mechanism, claim, adding, removing)
    on_step("running figure")
    running = _audit_running(mechanism, claim, wanted)
    audit = ExactAudit(adding, removing, lone, together_delta, together_epsilon, running, ())
    return dataclasses.replace(audit, violations=tuple(_violations(audit, claim)))


def _audit_charged(mechanism: Mechanism, claim: HitsClaim, rounds: int, adds_user: bool) -> ChargedAudit:
    def merit(tried: tuple[AttackStream, StreamLaw]) -> tuple[float, float]:
        law = tried[1]
        return law.delta(claim.epsilon, adds_user), law.epsilon(claim.delta_accounting, adds_user)

    def laws(streams: list[AttackStream]) -> list[tuple[AttackStream, StreamLaw]]:
        return [(stream, law_of(mechanism, stream)) for stream in streams]

    static = max(laws(static_streams(mechanism, rounds, adds_user)), key=merit)
    adaptive = laws(adaptive_streams(mechanism, claim.epsilon, rounds, adds_user))
    # In a short run a static stream may be worse: several items in a window cost it nothing.
    stream, law = max([*adaptive, static], key=merit)
    epsilon = max(merit(tried)[1] for tried in (*adaptive, static))
    # Once more, with the streams that are worst at that epsilon.
    for _, tuned in laws(adaptive_streams(mechanism, epsilon, rounds, adds_user)):
        epsilon = max(epsilon, tuned.epsilon(claim.delta_accounting, adds_user))
    windows, per_window = fewest_items_per_window(mechanism, rounds)
    best = best_deltas(mechanism, claim.epsilon, windows, per_window, adds_user)
    ceiling = best
    if per_window > 1:
        ceiling = best_deltas(mechanism, claim.epsilon, windows * per_window, 1, adds_user)
    points = [1.5 * claim.epsilon * index / (_CURVE_POINTS - 1) for index in range(_CURVE_POINTS)]
    return ChargedAudit(
        stream=stream,
        delta=merit((stream, law))[0],
        epsilon=epsilon,
        best_delta=best[0],
        best_delta_of_half=best[1],
        ceiling_delta=ceiling[0],
        items=windows * per_window,
        static_distance=static[0].distance,
        static_delta=merit(static)[0],
        curve=tuple((point, law.delta(point, adds_user)) for point in points),
    )


def _audit_together(
    mechanism: Mechanism, claim: HitsClaim, adding: ChargedAudit, removing: ChargedAudit
) -> tuple[float, float]:
    """Lone items in the windows that the worst stream does not need, and then the stream. In the other direction the
    stream alone attains what it attains."""
    items = mechanism.keys * mechanism.max_items_per_user
    before = lone_delta(mechanism, items * (mechanism.horizon - adding.stream.windows))
    alone = lone_delta(mechanism, items * mechanism.horizon)

    def delta(stream: AttackStream, epsilon: float) -> float:
        law = law_of(mechanism, stream)
        if not stream.adds_user:
            return law.delta(epsilon, False)
        return max(alone, with_lone_items(before, epsilon, lambda left: law.delta(left, True)))

    def epsilon_of(stream: AttackStream) -> float:
        if stream.adds_user and alone > claim.delta:
            return math.inf
        highest = float(abs(law_of(mechanism, stream).log_ratio).max())
        return largest_argument(lambda epsilon: delta(stream, epsilon) > claim.delta, highest)

    streams = [side.stream for side in (adding, removing)]
    tuned = [
        dataclasses.replace(side.stream, switch_loss=side.epsilon)
        for side in (adding, removing)
        if not side.stream.is_static
    ]
    return max(delta(stream, claim.epsilon) for stream in streams), max(map(epsilon_of, (*streams, *tuned)))


def _audit_running(mechanism: Mechanism, claim: HitsClaim, rounds: int) -> tuple[RunningFigure, ...]:
    """The figure that every report carries, for exclusions after fewer hits.

    Adaptive streams are tried with the user removed: in `hits` the other direction is their mirror image.
    """
    total = len(claim.epsilon_after_hits)
    chosen = sorted({1 + round((total - 1) * part / (_MOST_FIGURES - 1)) for part in range(_MOST_FIGURES)})
    figures = []
    for hits in chosen if total else []:
        shorter = dataclasses.replace(mechanism, hits_per_user=hits)
        items = min(rounds, rounds_until_excluded(shorter))
        epsilon = claim.epsilon_after_hits[hits - 1]
        streams = adaptive_streams(shorter, epsilon, items, False)
        attained = [law_of(shorter, stream).delta(epsilon, False) for stream in streams]
        if items > shorter.horizon or not streams:
            for stream in static_streams(shorter, items, False):
                attained += [law_of(shorter, stream).delta(epsilon, adds_user) for adds_user in (True, False)]
        windows, per_window = fewest_items_per_window(shorter, items)
        if streams and per_window > 1 and hits * items**2 < LARGEST_PASS / 10:
            attained.append(best_deltas(shorter, epsilon, windows, per_window, False)[0])
        figures.append(RunningFigure(hits, epsilon, max(attained)))
    return tuple(figures)


def _violations(audit: ExactAudit, claim: HitsClaim) -> list[str]:
    found = []
    for side, name in ((audit.adding, "adding"), (audit.removing, "removing")):
        if side.attained > claim.delta_accounting:
            found.append(
                f"{name} one user attains delta {side.attained:.3g} at epsilon {claim.epsilon:g} on charged results, "
                f"but only {claim.delta_accounting:.3g} is set aside for them"
            )
    found += violations_of_delta(audit.lone_delta, audit.together_delta, claim)
    for figure in audit.running:
        if figure.delta > claim.delta_accounting:
            found.append(
                f"cut at {figure.hits} hits, the run attains delta {figure.delta:.3g} at the {figure.epsilon:.4g} that "
                "reports show as spent"
            )
    return found
