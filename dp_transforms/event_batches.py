"""Event batches in Beam: their coder, registered on import, and the way a source gives them beside what it rejected."""

from __future__ import annotations

import apache_beam as beam

from dp_transforms import report_coder
from dp_transforms.monitoring.event_batch import EventBatch
from dp_transforms.rejected_events import RejectedEvents

REJECTED = "rejected"  # tag of the second output


class EventBatchCoder(beam.coders.Coder):
    """An Arrow IPC stream, opaque to Beam. Deterministic only byte by byte: a batch is never a key."""

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
report_coder.register()


def batches_and_rejected(do_fn: beam.DoFn) -> beam.PTransform:
    """ParDo of a DoFn that yields `EventBatch` and, tagged `REJECTED`, `RejectedEvents`; `typed` takes its outputs."""
    return beam.ParDo(do_fn).with_outputs(REJECTED, main="batches")


def typed(outputs: beam.pvalue.DoOutputsTuple) -> tuple[beam.PCollection, beam.PCollection]:
    """The two outputs ``(batches, rejected)`` with their element types, which Beam can't infer for tagged ones."""
    batches, rejected = outputs.batches, outputs[REJECTED]
    batches.element_type = EventBatch
    rejected.element_type = RejectedEvents
    return batches, rejected
