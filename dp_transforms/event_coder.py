"""Registers a Beam coder for `EventBatch`: an Arrow IPC stream, opaque to Beam. Importing this module is enough."""

from __future__ import annotations

import apache_beam as beam

from dp_transforms.monitoring.event_batch import EventBatch


class EventBatchCoder(beam.coders.Coder):
    """Deterministic only byte by byte: a batch is never a key."""

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
