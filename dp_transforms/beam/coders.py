"""Coders: how what Beam carries for others travels. To import this module registers them; again is harmless.

`EventBatch` travels as an Arrow stream, the released types and rejected events by their schemas. In another process,
and with Beam before 2.74 in the same one, Beam decodes a row as a NamedTuple type that Beam itself made, with the same
fields, and any sequence as a list. So take fields by name or position, and do not test with isinstance.
"""

from __future__ import annotations

import apache_beam as beam

from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.window_report import HeavyHitter, RunEnded, WindowReport
from dp_transforms.logs.rejected_events import RejectedEvents


class EventBatchCoder(beam.coders.Coder):
    """An Arrow IPC stream, opaque to Beam. Equal batches may have different bytes, so a batch is never a key."""

    def encode(self, value: EventBatch) -> bytes:
        return value.to_bytes()

    def decode(self, encoded: bytes) -> EventBatch:
        return EventBatch.from_bytes(encoded)

    def estimate_size(self, value: EventBatch) -> int:
        """For Beam's counters, which would otherwise encode the batch to learn its size."""
        return int(value.user.nbytes + value.item.nbytes + value.time_micros.nbytes)

    def is_deterministic(self) -> bool:
        return False

    def to_type_hint(self) -> type[EventBatch]:
        return EventBatch


beam.coders.registry.register_coder(EventBatch, EventBatchCoder)
for _row_type in (HeavyHitter, WindowReport, RunEnded, RejectedEvents):
    beam.coders.registry.register_coder(_row_type, beam.coders.RowCoder)
