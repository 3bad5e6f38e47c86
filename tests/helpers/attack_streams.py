"""Concrete input streams for `Mechanism`, simple enough to be run, and the exact law of all that is published of them.

The user holds one item in each window, or several. The other holders of these items appear in no other window. The
adversary decides only how many they are, that is, the distance of their number from the threshold.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dp_transforms.audit.hits import Mechanism, Result, ThresholdLaw

Values = npt.NDArray[np.float64]

_ROUNDING = 1e-9  # relative; far above the rounding of the sums below
_TOLERANCE = 1e-9  # two losses that differ by less than this share are equal


@dataclasses.dataclass(frozen=True)
class AttackStream:
    """Events that an adversary makes: the user holds one item after the other, until it is excluded or all rounds are
    over.

    adds_user: which world is P, the one that the stream makes look bad: the one with the user, or the one without.
    distance: others that hold the item, minus the threshold. later_distance: the same once the loss
    ``ln P(published so far) / Q(published so far)`` exceeds switch_loss; equal to `distance` for a static stream.
    rounds: items; each is tested once. items_per_window: the items of one window, at one distance, chosen before it.
    They are tested one after the other, and the adversary knows the order (docs/proofs.md).
    """

    adds_user: bool
    distance: int
    later_distance: int
    switch_loss: float
    rounds: int
    items_per_window: int = 1

    @classmethod
    def static(cls, adds_user: bool, distance: int, rounds: int, items_per_window: int = 1) -> AttackStream:
        return cls(adds_user, distance, distance, 0.0, rounds, items_per_window)

    @property
    def distances(self) -> tuple[int, ...]:
        return (self.distance,) if self.is_static else (self.distance, self.later_distance)

    @property
    def is_static(self) -> bool:
        return self.distance == self.later_distance

    @property
    def windows(self) -> int:
        return math.ceil(self.rounds / self.items_per_window)

    def is_late(self, log_ratio: Values) -> npt.NDArray[np.bool_]:
        """Where the later distance is used. log_ratio: ``ln(with / without)`` of what was published so far."""
        loss = log_ratio if self.adds_user else -log_ratio
        return loss > self.switch_loss * (1 + _TOLERANCE)


@dataclasses.dataclass(frozen=True)
class Steps:
    """How the privacy loss moves: up or down by one amount, whatever the result was.

    results: by distance. size: the amount. The loss ``ln(with / without)`` after some calls is then `size` times the
    *level*, the number of moves up minus that of moves down.
    """

    results: dict[int, tuple[Result, ...]]
    size: float

    @classmethod
    def of_law(cls, law: ThresholdLaw, distances: Iterable[int]) -> Steps:
        """Raises ValueError if the loss is no such function at these distances."""
        by_distance = {distance: law.results(distance) for distance in distances}
        sizes = [abs(result.log_ratio) for results in by_distance.values() for result in results]
        if not all(math.isclose(size, sizes[0], rel_tol=_TOLERANCE) for size in sizes):
            raise ValueError(f"at the distances {[*by_distance]} the loss does not move by one amount up and down.")
        return cls(by_distance, sizes[0])


def is_up(result: Result) -> bool:
    """Whether it is likelier with the user."""
    return result.log_ratio > 0


@dataclasses.dataclass(frozen=True, eq=False)
class StreamLaw:
    """What the adversary has seen at the end, as (hits paid, level), with its probability in both worlds.

    with_user, without_user, log_ratio: float[hits + 1, levels]. What is published in between shows no more, since the
    loss is a function of the two.
    """

    with_user: Values
    without_user: Values
    log_ratio: Values

    def delta(self, epsilon: float, adds_user: bool) -> float:
        """``sup over S of P(S) - e^epsilon Q(S)``, exact except for a rounding down by one part in 10^9."""
        mass, loss = (self.with_user, self.log_ratio) if adds_user else (self.without_user, -self.log_ratio)
        return float(np.sum(mass * -np.expm1(np.minimum(0.0, epsilon - loss)))) * (1 - _ROUNDING)


@functools.lru_cache(maxsize=16)
def law_of_stream(law: ThresholdLaw, hits_per_user: int, stream: AttackStream) -> StreamLaw:
    """The exact law, by following both worlds from window to window."""
    if stream.is_static and (not stream.adds_user or stream.items_per_window > 1):
        # Both directions have one law, and a static stream does not depend on where a window ends.
        return law_of_stream(law, hits_per_user, AttackStream.static(True, stream.distance, stream.rounds))
    steps = Steps.of_law(law, stream.distances)
    rounds, hits = stream.rounds, hits_per_user
    ends = np.zeros((2, hits + 1, 2 * rounds + 1))
    playing = np.zeros((2, hits, 1))  # by hits paid and number of moves up
    playing[:, 0] = 1.0
    for done in range(0, rounds, stream.items_per_window):
        calls = min(stream.items_per_window, rounds - done)
        following = np.zeros((2, hits, done + calls + 1))
        for distance, ups in _split(stream, steps, done):
            part = playing[:, :, ups]
            for call in range(done, done + calls):
                # In the ends, this is where the level of so few moves up is kept.
                part = _after_call(part, steps.results[distance], ends, rounds - call - 1 + 2 * ups.start)
            following[:, :, ups.start : ups.start + part.shape[2]] += part
        playing = following
    ends[:, :hits, ::2] += playing
    levels = np.arange(-rounds, rounds + 1)
    return StreamLaw(ends[0], ends[1], np.broadcast_to(steps.size * levels, ends[0].shape))


def _after_call(playing: Values, results: tuple[Result, ...], ends: Values, lowest: int) -> Values:
    """Who still plays after one call, by number of moves up (one more is possible). Adds the excluded to the ends."""
    width = playing.shape[2]
    following = np.zeros((*playing.shape[:2], width + 1))
    for result in results:
        probabilities = np.array([result.with_user, result.without_user])[:, None, None]
        up = is_up(result)
        target = slice(int(up), width + up)
        if not result.charged:
            following[:, :, target] += probabilities * playing
            continue
        following[:, 1:, target] += probabilities * playing[:, :-1]
        excluded = slice(lowest + 2 * target.start, lowest + 2 * target.stop, 2)
        ends[:, -1, excluded] += probabilities[:, 0] * playing[:, -1]
    return following


def _split(stream: AttackStream, steps: Steps, done: int) -> list[tuple[int, slice]]:
    """After `done` calls: each distance, and the numbers of moves up, of 0 .. done, at which it is used."""
    if stream.is_static:
        return [(stream.distance, slice(0, done + 1))]
    ups = np.arange(done + 1)
    late = int(stream.is_late(np.asarray(steps.size * (2 * ups - done))).sum())
    if stream.adds_user:  # the loss grows with the number of moves up
        below, cut, above = stream.distance, done + 1 - late, stream.later_distance
    else:
        below, cut, above = stream.later_distance, late, stream.distance
    parts = [(below, slice(0, cut)), (above, slice(cut, done + 1))]
    return [part for part in parts if part[1].start < part[1].stop]


def worst_stream(
    mechanism: Mechanism, epsilon: float, rounds: int, adds_user: bool, *, items_per_window: int = 1
) -> AttackStream:
    """The worst stream at this epsilon among those that look at what was published.

    Until the loss exceeds epsilon, hits should fall only on results that lower it; from then on, on those that raise it
    (docs/proofs.md). With several items in a window it looks back less often, and need not be the worst.
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
