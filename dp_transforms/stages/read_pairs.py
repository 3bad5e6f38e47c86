"""Before the stages: events, or chunks of a log -> packed pairs (user, item) by window and shard of users.

From here on ids are keyed hashes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from dp_transforms.logs import EventFields, JoinedChunks, read_joined
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.mechanisms.randomness import IdKeys
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.item_domain import DomainFile, DomainTable
from dp_transforms.monitor.operator_counts import (
    EVENTS_OUTSIDE_DOMAIN,
    EVENTS_OUTSIDE_RANGE,
    EVENTS_READ,
    EVENTS_REJECTED,
    MOST_MESSAGE_BYTES,
)
from dp_transforms.monitor.pairs import ItemPairs, item_pairs_of_events, pairs_of_events
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.run_part import RunPart
from dp_transforms.stages.release_stages import Cuts
from dp_transforms.stages.stage import Sharding, SlabKey

ROWS, BYTES = "rows", "bytes"  # counted for a progress bar
Packed = tuple[SlabKey, bytes]  # slab of windows and shard of users; packed columns


@dataclasses.dataclass(frozen=True)
class PackPairs:
    """by_item: packed `ItemPairs`, in one slab, and not `UserPairs`. part: events outside of it are skipped, as those
    outside of the plan; None: the whole run."""

    schedule: WindowSchedule
    sharding: Sharding
    part: RunPart | None = None
    by_item: bool = False

    @property
    def run_part(self) -> RunPart:
        return self.part or RunPart.whole(self.schedule)

    def pack(
        self, batch: EventBatch, keys: IdKeys, domain: DomainTable | None, counts: Counter[str]
    ) -> Iterator[Packed]:
        """Events outside the declared range or domain are counted for the operator, and left out."""
        schedule, part = self.schedule, self.run_part
        counts[EVENTS_READ] += len(batch)
        first_window = schedule.first_window(batch.time_micros)
        is_inside = (first_window >= 0) & (first_window < part.end)
        is_inside &= first_window + schedule.windows_per_event > part.first
        counts[EVENTS_OUTSIDE_RANGE] += int((~is_inside).sum())
        if domain is not None:
            is_known = domain.contains(keys.hash_items(batch.item.dictionary))[batch.item.indices.to_numpy()]
            counts[EVENTS_OUTSIDE_DOMAIN] += int((is_inside & ~is_known).sum())
            batch = batch.where(is_known)
        shards = self.sharding.shards
        first_open = np.full(len(batch), part.first) if part.first else None
        if self.by_item:
            for shard, of_items in item_pairs_of_events(batch, schedule, keys, shards, first_open, part.end):
                yield (0, shard), of_items.to_bytes()
            return
        for slab, shard, of_users in pairs_of_events(
            batch,
            schedule,
            keys,
            windows_per_slab=self.sharding.windows_per_slab,
            shards=shards,
            first_open=first_open,
            end=part.end,
        ):
            yield (slab, shard), of_users.to_bytes()


@dataclasses.dataclass(frozen=True)
class ReadPairsStep:
    """`JoinedChunks` -> packed pairs and `RejectedEvents`. domain: of a plan with a known domain."""

    packing: PackPairs
    fields: EventFields
    domain: DomainFile | None = None
    stores: ClassVar[bool] = True

    def start(self, secret: bytes) -> Callable[[JoinedChunks, Counter[str]], Iterator[Packed | RejectedEvents]]:
        keys = IdKeys(secret)
        domain = None if self.domain is None else self.domain.table(keys)

        def read(joined: JoinedChunks, counts: Counter[str]) -> Iterator[Packed | RejectedEvents]:
            for block in read_joined(joined, self.fields):
                for rejected in block.rejected:
                    counts[EVENTS_REJECTED] += len(rejected.positions)
                    yield rejected
                if len(block.batch):
                    yield from self.packing.pack(block.batch, keys, domain, counts)
                counts[ROWS] += block.rows
                counts[BYTES] += block.bytes

        return read

    def fetched(self, element: JoinedChunks, get: Callable[[bytes], bytes]) -> JoinedChunks:
        return element


@dataclasses.dataclass(frozen=True)
class MergePairs:
    """All packed `ItemPairs` of some users -> the same merged, once for all steps that read them again.
    most_bytes: of a message; whoever reads several merges them anew."""

    most_bytes: int = MOST_MESSAGE_BYTES
    stores: ClassVar[bool] = True

    def start(self, secret: bytes) -> Callable[[tuple[SlabKey, Sequence[bytes]], Counter[str]], Iterator[Packed]]:
        most = self.most_bytes
        return lambda group, counts: ((group[0], packed) for packed in ItemPairs.of_messages(group[1]).messages(most))

    def fetched(
        self, element: tuple[SlabKey, Sequence[bytes]], get: Callable[[bytes], bytes]
    ) -> tuple[SlabKey, Sequence[bytes]]:
        return element[0], [get(blob) for blob in element[1]]


def reading_step(
    schedule: WindowSchedule,
    fields: EventFields,
    shards: int | None,
    domain: DomainFile | None = None,
    *,
    pays_looks: bool,
) -> ReadPairsStep:
    """For a replay of the whole schedule."""
    cuts = Cuts.of(schedule, pays_looks=pays_looks, shards=shards)
    packing = PackPairs(schedule, cuts.users, by_item=pays_looks)
    return ReadPairsStep(packing, fields, domain)
