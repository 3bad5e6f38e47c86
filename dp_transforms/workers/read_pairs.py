"""Chunks of a log -> their packed pairs, and the rows that cannot be read."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import ClassVar

from dp_transforms.logs import EventFields, JoinedChunks, read_joined
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.mechanisms.randomness import IdKeys
from dp_transforms.monitor.domain_table import DomainTable
from dp_transforms.monitor.item_domain import DomainFile
from dp_transforms.monitor.operator_counts import EVENTS_REJECTED
from dp_transforms.workers.pack_pairs import Packed, PackPairs
from dp_transforms.workers.step import Work

ROWS, BYTES = "rows", "bytes"  # counted for a progress bar


@dataclasses.dataclass(frozen=True)
class ReadPairsStep:
    """`JoinedChunks` -> packed pairs and `RejectedEvents`. domain: of a plan with a known domain."""

    packing: PackPairs
    fields: EventFields
    domain: DomainFile | None = None
    stores: ClassVar[bool] = True

    def start(self, secret: bytes) -> Work:
        keys = IdKeys(secret)
        domain = None if self.domain is None else DomainTable.of_labels(self.domain.read().labels, keys.hash_items)
        windows = self.packing.schedule.windows_per_event

        def read(joined: JoinedChunks, counts: Counter[str]) -> Iterator[Packed | RejectedEvents]:
            for block in read_joined(joined, self.fields, windows):
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
