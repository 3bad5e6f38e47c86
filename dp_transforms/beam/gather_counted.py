"""Verb: messages -> groups that are complete, told by counting and by nothing else.

Each sender of a key says once how many messages it sends there. A group is complete when all senders have said so and
as many messages have come. No watermark and no timer decides it: what a group contains does not depend on the engine,
nor on the order in which it delivers, nor on restarts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from dp_transforms.beam.count_for_operator import LATE_BATCHES, operator_counter

Key = tuple[int, int]
Sent = tuple[int, bytes]  # the fields of event_streams.partition_poller.Message
Group = tuple[Key, list[bytes]]


class GatherCounted(beam.PTransform):
    """``(key, (announced, blob))`` -> ``(key, blobs)``, once for each key, when complete.

    senders: how many senders each key has. announced: on one message of each sender, its last, the number of messages
    it sends for the key, that one among them; 0 on all others. Empty blobs are left out. A group comes in no particular
    order.
    """

    def __init__(self, senders: int) -> None:
        super().__init__()
        self._do_fn = GatherCountedDoFn(senders)

    def expand(self, messages: beam.PCollection) -> beam.PCollection:
        return messages | "Gather" >> beam.ParDo(self._do_fn).with_output_types(Group)


class GatheredCount:
    """How much of a group has come: a few bytes that are read and written for each message."""

    _FIELDS = struct.Struct("<qqq")
    SIZE = _FIELDS.size

    def __init__(self, data: bytes | None = None) -> None:
        self.received: int
        self.expected: int
        self.senders: int
        self.received, self.expected, self.senders = self._FIELDS.unpack(data or bytes(self.SIZE))

    def add(self, announced: int) -> None:
        self.received += 1
        self.expected += announced
        self.senders += announced > 0

    def is_complete(self, senders: int) -> bool:
        return self.senders == senders and self.received == self.expected

    def is_contradiction(self, senders: int) -> bool:
        """More senders than there are, or more messages than all of them announced."""
        return self.senders > senders or (self.senders == senders and self.received > self.expected)

    def to_bytes(self) -> bytes:
        return self._FIELDS.pack(self.received, self.expected, self.senders)


class GatherCountedDoFn(beam.DoFn):
    """Stateful, by key. Blobs are read once, when the group is complete; then the key is forgotten.

    A message for a key that was complete cannot come, as each sender announces all of its messages. One that comes
    nevertheless starts a group that is never complete; a second whole group would be dropped by the monitor, whose
    window is closed or has its parts already.
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
        if so_far.is_contradiction(self._senders):
            self._late.inc()
            return
        if blob:
            blobs.add(blob)
        count.write(so_far.to_bytes())
