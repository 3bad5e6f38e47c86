"""Split: the output of a DoFn that reads -> batches of events, and the rows that it rejected."""

from __future__ import annotations

import apache_beam as beam

from dp_transforms.beam import encode_elements
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.monitor.event_batch import EventBatch

encode_elements.register_coders()

REJECTED = "rejected"  # tag of the second output


def batches_and_rejected(do_fn: beam.DoFn) -> beam.PTransform:
    """ParDo of a DoFn that yields `EventBatch` and, tagged `REJECTED`, `RejectedEvents`. `typed` takes its outputs."""
    return beam.ParDo(do_fn).with_outputs(REJECTED, main="batches")


def typed(outputs: beam.pvalue.DoOutputsTuple) -> tuple[beam.PCollection, beam.PCollection]:
    """The two outputs ``(batches, rejected)`` with their element types, which Beam cannot infer for tagged outputs."""
    batches, rejected = outputs.batches, outputs[REJECTED]
    batches.element_type = EventBatch
    rejected.element_type = RejectedEvents
    return batches, rejected
