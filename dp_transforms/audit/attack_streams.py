"""Concrete input streams, simple enough to be run, and the exact law of everything that is published about one user.

The user holds one item in each window, or several. The other holders of these items appear in no other window. The
adversary decides only how many they are, that is, the distance of their number from the threshold.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.audit.query_law import QueryLaw

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
    They are tested one after the other, and the adversary knows the order (docs/audit.md).
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
    def is_static(self) -> bool:
        return self.distance == self.later_distance

    @property
    def windows(self) -> int:
        return math.ceil(self.rounds / self.items_per_window)

    def is_late(self, log_ratio: Values) -> npt.NDArray[np.bool_]:
        """Where the later distance is used. log_ratio: ``ln(with / without)`` of what was published so far."""
        loss = log_ratio if self.adds_user else -log_ratio
        return loss > self.switch_loss * (1 + _TOLERANCE)


class Move(NamedTuple):
    """One result of one call. up: it is likelier with the user."""

    up: bool
    charged: bool
    with_user: float
    without_user: float


@dataclasses.dataclass(frozen=True)
class Steps:
    """How the privacy loss moves: up by one amount, or down by one, whatever the result was.

    moves: by distance. up, down: the two amounts. The loss ``ln(with / without)`` after some calls is then a
    function of the hits paid and of the *level*, the number of moves up minus that of moves down.
    """

    moves: dict[int, tuple[Move, ...]]
    up: float
    down: float
    only_ups_are_charged: bool

    @classmethod
    def of_law(cls, law: QueryLaw, distances: tuple[int, ...]) -> Steps:
        moves = {}
        ups, downs = [], []
        for distance in distances:
            results = law.results(distance)
            moves[distance] = tuple(
                Move(result.log_ratio > 0, result.charged, result.with_user, result.without_user) for result in results
            )
            ups += [result.log_ratio for result in results if result.log_ratio > 0]
            downs += [-result.log_ratio for result in results if result.log_ratio <= 0]
        charged = all(move.up == move.charged for by_distance in moves.values() for move in by_distance)
        steps = cls(moves, ups[0], downs[0], charged)
        if not all(
            math.isclose(amount, amounts[0], rel_tol=_TOLERANCE) for amounts in (ups, downs) for amount in amounts
        ) or not (steps.is_even or (charged and len(distances) == 1)):
            raise ValueError(f"at the distances {distances} the loss does not move by one amount up and one down.")
        return steps

    @property
    def is_even(self) -> bool:
        """Up and down by the same amount: the loss is a function of the level alone."""
        return math.isclose(self.up, self.down, rel_tol=_TOLERANCE)

    def log_ratio(self, paid: npt.NDArray[np.int64], levels: npt.NDArray[np.int64]) -> Values:
        """``ln(with / without)`` by hits paid and level."""
        if self.is_even:
            return np.asarray(self.up * levels + 0.0 * paid)
        return np.asarray(paid * self.up - (paid - levels) * self.down)


@dataclasses.dataclass(frozen=True, eq=False)
class StreamLaw:
    """What the adversary has seen at the end, as (hits paid, level), with its probability in both worlds.

    with_user, without_user, log_ratio: float[hits + 1, levels]. What is published in between shows no more, since the
    loss is a function of the two. levels: int64[levels].
    """

    with_user: Values
    without_user: Values
    log_ratio: Values
    levels: npt.NDArray[np.int64]

    def delta(self, epsilon: float, adds_user: bool) -> float:
        """``sup over S of P(S) - e^epsilon Q(S)``, exact except for a rounding down by one part in 10^9."""
        mass, loss = (self.with_user, self.log_ratio) if adds_user else (self.without_user, -self.log_ratio)
        return float(np.sum(mass * -np.expm1(np.minimum(0.0, epsilon - loss)))) * (1 - _ROUNDING)

    def epsilon(self, delta: float, adds_user: bool) -> float:
        """The smallest epsilon at which the two worlds are (epsilon, delta)-indistinguishable, rounded down."""
        largest = float(np.abs(self.log_ratio).max())
        return largest_argument(lambda epsilon: self.delta(epsilon, adds_user) > delta, largest)


def largest_argument(holds: Callable[[float], bool], highest: float) -> float:
    """The largest x in [0, highest] where a condition that fails from some x on still holds; 0 if it never does."""
    if not holds(0.0):
        return 0.0
    if holds(highest):
        return highest
    low, high = 0.0, highest
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@functools.lru_cache(maxsize=16)
def law_of_stream(law: QueryLaw, hits_per_user: int, stream: AttackStream) -> StreamLaw:
    """The exact law, by following both worlds from window to window."""
    if stream.is_static and (not stream.adds_user or stream.items_per_window > 1):
        # Both directions have one law, and a static stream does not depend on where a window ends.
        return law_of_stream(law, hits_per_user, AttackStream.static(True, stream.distance, stream.rounds))
    steps = Steps.of_law(law, tuple(dict.fromkeys((stream.distance, stream.later_distance))))
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
                part = _after_call(part, steps.moves[distance], ends, rounds - call - 1 + 2 * ups.start)
            following[:, :, ups.start : ups.start + part.shape[2]] += part
        playing = following
    ends[:, :hits, ::2] += playing
    levels = np.arange(-rounds, rounds + 1)
    return StreamLaw(ends[0], ends[1], steps.log_ratio(np.arange(hits + 1)[:, None], levels), levels)


def _after_call(playing: Values, moves: tuple[Move, ...], ends: Values, lowest: int) -> Values:
    """Who still plays after one call, by number of moves up (one more is possible). Adds the excluded to the ends."""
    width = playing.shape[2]
    following = np.zeros((*playing.shape[:2], width + 1))
    for move in moves:
        probabilities = np.array([move.with_user, move.without_user])[:, None, None]
        target = slice(int(move.up), width + move.up)
        if not move.charged:
            following[:, :, target] += probabilities * playing
            continue
        following[:, 1:, target] += probabilities * playing[:, :-1]
        excluded = slice(lowest + 2 * target.start, lowest + 2 * target.stop, 2)
        ends[:, -1, excluded] += probabilities[:, 0] * playing[:, -1]
    return following


def _split(stream: AttackStream, steps: Steps, done: int) -> list[tuple[int, slice]]:
    """After `done` calls: each distance, and the numbers of moves up, of 0 .. done, at which it is used."""
    everything = slice(0, done + 1)
    if stream.is_static:
        return [(stream.distance, everything)]
    ups = np.arange(done + 1)
    # Not static, so the loss is a function of the level alone.
    is_late = stream.is_late(steps.log_ratio(np.zeros_like(ups), 2 * ups - done))
    late = int(is_late.sum())
    if stream.adds_user:  # the loss grows with the number of moves up
        parts = [
            (stream.distance, slice(0, done + 1 - late)),
            (stream.later_distance, slice(done + 1 - late, done + 1)),
        ]
    else:
        parts = [(stream.later_distance, slice(0, late)), (stream.distance, slice(late, done + 1))]
    return [part for part in parts if part[1].start < part[1].stop]
