"""A run of a plan, and a part of it, as workers get them: its windows, and what users and items carry into them.

Nothing is carried into a whole run; `dp_transforms.runs.state_file` has parts with a state before them.
"""

from __future__ import annotations

import dataclasses
import secrets
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from dp_transforms.core.columns import Packed, check_unpacked
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.state_chunks import (
    BUCKETS,
    Kind,
    buckets_of_shard,
    entries_of_chunk,
    hashes_of,
    hit_bound_of_chunk,
)
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule


def fresh_run_id() -> str:
    """A name that no run had before. Draw it when a pipeline is built: noise is a function of the key and this name,
    so two runs of one name over different data would show what differs."""
    return uuid.uuid4().hex


def fresh_nonce() -> str:
    """What tells a part of a run from every other one: 128 random bits of the operating system, in hex. Draw it
    when the part begins, whatever the data: which parts have equal noise must not depend on these."""
    return secrets.token_hex(16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One stream of one run of a plan; contains no secret. part: as in `StreamKeys`."""

    plan: Plan
    stream: str
    run_id: str
    part: str = ""

    def __post_init__(self) -> None:
        if type(self.plan) is not Plan:  # one of a trial promises nothing, and was not checked
            raise ValueError(f"plan must be a Plan, got a {type(self.plan).__name__}. Use Plan.for_hits(...).")
        # What all windows share of accounting is computed here, once, and travels with the plan. Workers compute what
        # depends on how many candidates a round draws for.
        _ = self.plan.fingerprint
        _ = self.plan.epsilon_after_hits if self.plan.contributions is None else self.plan.terms_of_tests

    def of_key(self, key: str) -> PlannedRun:
        """The same run for one key of many, which takes the place of the stream."""
        return dataclasses.replace(self, stream=key)

    def stream_keys(self, secret: bytes) -> StreamKeys:
        """All keyed functions of the run."""
        return StreamKeys(
            secret,
            run_id=self.run_id,
            plan_fingerprint=self.plan.fingerprint,
            stream=self.stream,
            threshold=self.plan.threshold,
            part=self.part,
        )


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

    def chunks(self, kind: Kind, buckets: Sequence[int]) -> Sequence[Packed]:
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
