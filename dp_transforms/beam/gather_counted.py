"""Gather: counted messages -> groups that are complete (`monitor.counted_messages`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from dp_transforms.beam.set_up_workers import operator_counter
from dp_transforms.monitor.counted_messages import GatheredCount, Group, Key, Sent
from dp_transforms.monitor.operator_counts import LATE_BATCHES


class GatherCounted(beam.PTransform):
    """``(key, (announced, blob))`` -> ``(key, blobs)``, once for each key, when its group is complete.

    senders: how many senders each key has. Empty blobs are left out; the others come in no particular order.
    """

    def __init__(self, senders: int) -> None:
        super().__init__()
        self._do_fn = GatherCountedDoFn(senders)

    def expand(self, messages: beam.PCollection) -> beam.PCollection:
        return messages | "Gather" >> beam.ParDo(self._do_fn).with_output_types(Group)


class GatherCountedDoFn(beam.DoFn):
    """Stateful, by key. Reads the blobs once, when the group is complete; then it forgets the key.

    No message can come for a key whose group was complete, because each sender announces all its messages. If one comes
    nevertheless, it starts a group that is never complete. A second complete group would be dropped by the monitor,
    because the window is closed or has its parts already.
    """

    BLOBS = BagStateSpec("blobs_v1", BytesCoder())
    COUNT = ReadModifyWriteStateSpec("count_v1", BytesCoder())

    def __init__(self, senders: int) -> None:
        self._senders = senders
        self._late = operator_counter(LATE_BATCHES)

    def process(
        self,
        element: tuple[Key, Sent],
        blobs: Any = beam.DoFn.StateParam(BLOBS),
        count: Any = beam.DoFn.StateParam(COUNT),
    ) -> Iterator[Group]:
        key, (announced, blob) = element
        so_far = GatheredCount(count.read())
        so_far.add(announced)
        if so_far.is_complete(self._senders):
            gathered = list(blobs.read()) if so_far.received > 1 else []
            blobs.clear()
            count.clear()
            yield key, [*gathered, blob] if blob else gathered
            return
        if so_far.has_too_many(self._senders):
            self._late.inc()
            return
        if blob:
            blobs.add(blob)
        count.write(so_far.to_bytes())
