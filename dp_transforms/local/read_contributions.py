"""Chunks of a log -> packed contributions by shard of users, and rows that cannot be read."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator

from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.operator_counts import EVENTS_REJECTED
from dp_transforms.core.pack_contributions import PackContributions, Packed
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.core.randomness import IdKeys
from dp_transforms.logs import EventFields, JoinedChunks, read_joined
from dp_transforms.logs.rejected_events import RejectedEvents

ROWS, BYTES = "rows", "bytes"  # counted for a progress bar


@dataclasses.dataclass(frozen=True)
class ReadContributionsStep:
    """`JoinedChunks` of a log with these fields, or an `EventBatch` -> packed contributions, and `RejectedEvents`.
    public_items: of a plan with public items."""

    packing: PackContributions
    fields: EventFields | None
    public_items: PublicItemsSource | None = None

    def start(
        self, secret: bytes
    ) -> Callable[[JoinedChunks | EventBatch, Counter[str]], Iterator[Packed | RejectedEvents]]:
        keys = IdKeys(secret)
        public_items = None if self.public_items is None else self.public_items.table(keys)

        def read(source: JoinedChunks | EventBatch, counts: Counter[str]) -> Iterator[Packed | RejectedEvents]:
            if isinstance(source, EventBatch):
                yield from self.packing.pack(source, keys, public_items, counts)
                return
            assert self.fields is not None
            for block in read_joined(source, self.fields):
                for rejected in block.rejected:
                    counts[EVENTS_REJECTED] += len(rejected.positions)
                    yield rejected
                if len(block.batch):
                    yield from self.packing.pack(block.batch, keys, public_items, counts)
                counts[ROWS] += block.rows
                counts[BYTES] += block.bytes

        return read
