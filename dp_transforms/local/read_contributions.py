"""Chunks of a log -> packed pairs (user, item) by shard of users, and rows that cannot be read."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import ClassVar

from dp_transforms.core.operator_counts import EVENTS_REJECTED
from dp_transforms.core.pack_contributions import PackContributions, Packed
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.core.randomness import IdKeys
from dp_transforms.core.stage import Partitioning
from dp_transforms.logs import EventFields, JoinedChunks, read_joined
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.plan.window_schedule import WindowSchedule

ROWS, BYTES = "rows", "bytes"  # counted for a progress bar


@dataclasses.dataclass(frozen=True)
class ReadContributionsStep:
    """`JoinedChunks` -> packed pairs and `RejectedEvents`. domain: of a plan with a known domain."""

    packing: PackContributions
    fields: EventFields
    domain: PublicItemsSource | None = None
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


def reading_step(
    schedule: WindowSchedule,
    fields: EventFields,
    shards: int | None,
    domain: PublicItemsSource | None = None,
    *,
    pays_looks: bool,
) -> ReadContributionsStep:
    """For a replay of the whole schedule."""
    cuts = Partitioning.of(schedule, pays_looks=pays_looks, shards=shards)
    packing = PackContributions(schedule, cuts.users, by_item=pays_looks)
    return ReadContributionsStep(packing, fields, domain)
