"""Distinct counts by a sketch, an example of target charging: what hides a user is the sketch's own hash.

[CL23] section 2.2 (iv), with [SST20] (Smith, Song, Thakurta, *The Flajolet-Martin sketch itself preserves differential
privacy*, 2020). A direct use of the sparse vector technique would add noise a second time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from dp_transforms.accounting.discrete_laplace_law import ROUNDING, smallest_whole
from dp_transforms.checks import check_positive, check_whole
from dp_transforms.papers.noise_source import NoiseSource


@dataclasses.dataclass(frozen=True)
class DistinctCount:
    """How many different ids there are, estimated by a Flajolet-Martin sketch that is private by its randomness.

    A random hash, drawn anew in each run, gives each id a bucket, and a level above i with probability 2^-i; a bucket
    keeps the highest level of its ids. Two things make that private, as in [SST20]: each bucket also holds `phantoms`
    ids that nobody has, and keeps at least the level `floor`.

    Guarantee: epsilon-DP for one id (neighbours: with and without it). Proof: docs/proofs.md, "Theorem of
    sketches". Condition: a user has one id.

    ids(data): as often as they come. buckets: the estimate is off by some ``1.3 / sqrt(buckets)`` of all ids (Durand,
    Flajolet, *Loglog counting*, 2003), phantoms included. levels: the highest. The draws of the ideal hash are
    remembered in a set of all ids; with a keyed hash in their place the registers would be all that is kept.

    >>> from dp_transforms.papers.target_charging import ConditionalRelease, HitLimit, TargetCharging
    >>> limit = HitLimit(1, epsilon=1.0)
    >>> charging = TargetCharging([user % 4000 for user in range(9000)], limit)
    >>> quiet = ConditionalRelease(charging, DistinctCount(lambda users: users[:9], epsilon=1.0))
    >>> busy = ConditionalRelease(charging, DistinctCount(lambda users: users, epsilon=1.0))
    >>> quiet.ask(lambda count: count >= 1000), 1000 <= busy.ask(lambda count: count >= 1000), limit.used
    (None, True, 1)
    """

    ids: Callable[[Any], Iterable[Hashable]]
    epsilon: float
    buckets: int = 64
    levels: int = 64
    delta: float = dataclasses.field(default=0.0, init=False)

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_whole("buckets", self.buckets, 1)
        check_whole("levels", self.levels, self.floor + 1)

    @property
    def phantoms(self) -> int:
        """In each bucket: the fewest k, 1 or more, with ``1 + 1/k <= e^epsilon``."""
        return max(1, math.ceil(math.exp(-self.epsilon) / -math.expm1(-self.epsilon) * (1 + ROUNDING)))

    @property
    def floor(self) -> int:
        """The lowest level L, 1 or above, with ``Pr[level <= L] = 1 - 2^-L >= e^-epsilon``."""
        return max(1, math.ceil(-math.log2(-math.expm1(-self.epsilon)) + ROUNDING))

    def registers(self, data: Any, noise: NoiseSource) -> tuple[int, ...]:
        """The sketch: the level of each bucket. As private as the estimate."""
        floor, unit = self.floor, 1 << (self.levels - 1)
        weights = [unit - (unit >> floor), *(unit >> level for level in range(floor + 1, self.levels)), 1]
        kept = [floor] * self.buckets
        phantoms = [bucket for bucket in range(self.buckets) for _ in range(self.phantoms)]
        for bucket in [*phantoms, *(noise.choose([1] * self.buckets) for _ in set(self.ids(data)))]:
            kept[bucket] = max(kept[bucket], floor + noise.choose(weights))
        return tuple(kept)

    def estimate(self, registers: Sequence[int]) -> int:
        """The number of ids with which these registers would add up to what they do on average, or just more."""

        def average(ids: int) -> float:
            """``sum of Pr[register > v]``; at most v are a phantom with probability 1 - 2^-v, an id with more."""
            return sum(
                1 - math.exp(self.phantoms * math.log1p(-(2.0**-v)) + ids * math.log1p(-(2.0**-v) / self.buckets))
                for v in range(self.floor, self.levels)
            )

        excess = sum(registers) / self.buckets - self.floor
        return smallest_whole(lambda ids: average(ids) >= excess, -1, 1)

    def run(self, data: Any, noise: NoiseSource) -> int:
        return self.estimate(self.registers(data, noise))
