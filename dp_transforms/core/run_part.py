"""A part of a run, as workers need it: its windows, and what users and items carry into them.

Nothing is carried into a run; `dp_transforms.runs.state_file` has parts with a state before them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from dp_transforms.core.messages import check_unpacked
from dp_transforms.core.state_chunks import (
    BUCKETS,
    Kind,
    buckets_of_shard,
    entries_of_chunk,
    hashes_of,
    hit_bound_of_chunk,
)
from dp_transforms.plan.window_schedule import WindowSchedule


@dataclasses.dataclass(frozen=True)
class RunPart:
    """The windows ``first .. end - 1`` of a run, into which nothing is carried.

    draws_as: by what its noise differs from that of another part with these windows: a nonce (`fresh_nonce`), which is
        in the ledger before anything is drawn; "" of a whole run, and of a stream.
    """

    first: int
    end: int
    draws_as: str = ""

    @classmethod
    def whole(cls, schedule: WindowSchedule) -> RunPart:
        """All windows of a run, before which nothing is carried."""
        return cls(0, schedule.horizon)

    @property
    def windows(self) -> int:
        """How many windows the part has."""
        return self.end - self.first

    def chunks(self, kind: Kind, buckets: Sequence[int]) -> Sequence[memoryview]:
        """What is carried of this kind, in these buckets."""
        return ()

    def entries(self, kind: Kind, shard: int = 0, shards: int = 1) -> list[Any]:
        """What the users or items of a shard carry into the part, in several tables. Raises ValueError for an entry
        that is in the bucket of another one."""
        found = []
        for bucket in buckets_of_shard(shard, shards):
            for chunk in self.chunks(kind, [bucket]):
                entries = entries_of_chunk(kind, chunk)
                hashes = hashes_of(entries)
                check_unpacked(bool((hashes % np.uint64(BUCKETS) == bucket).all()))
                found.append(entries.select(hashes % np.uint64(shards) == shard))
        return found

    @property
    def hit_bound(self) -> int:
        return max((hit_bound_of_chunk(chunk) for chunk in self.chunks(Kind.HIT_BOUND, [0])), default=0)
