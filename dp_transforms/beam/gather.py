"""Gather: counted messages -> groups that are complete, and complete windows in any order -> those whose turn it is.

What steps of a stream begin with. Neither a watermark nor a timer decides anything (`monitor.operator_counts`).
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import apache_beam as beam
from apache_beam.coders import BytesCoder, ListCoder, TupleCoder, VarIntCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from dp_transforms.beam.set_up_workers import operator_counter
from dp_transforms.monitor.operator_counts import (
    LATE_BATCHES,
    MOST_MESSAGE_BYTES,
    EncodedMessage,
    GatheredCount,
    Group,
    Key,
    batches_of_blobs,
)
from dp_transforms.monitor.pairs import UserPairs, shards_of

_Key = TypeVar("_Key", str, int)
_LEAST_NEAR_WINDOWS = 64
# A window, how many parts it has, and the blobs of this part. Most windows have one part.
Part = tuple[int, int, list[bytes]]
_PART_CODER = TupleCoder([VarIntCoder(), VarIntCoder(), ListCoder(BytesCoder())])

NEAR = BagStateSpec("near_v1", _PART_CODER)
FAR = BagStateSpec("far_v1", _PART_CODER)
WAITING = ReadModifyWriteStateSpec("waiting_v1", BytesCoder())


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
        element: tuple[Key, EncodedMessage],
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


def parts_of_window(group: Group, key: _Key) -> Iterator[tuple[_Key, Part]]:
    """All that came for a window, keyed as the next step needs it, in elements that engines accept; at least one.

    A blob that came twice is sent once: a source may deliver twice, and two parts with one content would count as one
    (`WaitingWindows`), so that the window would wait for ever. What is sent here are sets, and the union is the same.
    """
    (window, _), blobs = group
    batches = batches_of_blobs(dict.fromkeys(blobs), MOST_MESSAGE_BYTES)
    for batch in batches:
        yield key, (window, len(batches), batch)


def parts_of_shards(group: Group, groups: int, shards: int) -> Iterator[tuple[int, Part]]:
    """The same of each shard of one of so many groups, keyed by shard. A hash h is in shard h % shards, and in group
    h % groups, which divides them."""
    (window, number), blobs = group
    if shards == groups:
        yield from parts_of_window(group, number)
        return
    pairs = UserPairs.of_messages(blobs)
    found = dict(UserPairs.by_group(pairs, shards_of(pairs, shards))) if len(pairs) else {}
    for shard in range(number, shards, groups):
        of_shard = list(found[shard].messages()) if shard in found else []
        yield from parts_of_window(((window, shard), of_shard), shard)


class Turn(NamedTuple):
    """windows: those whose turn it is, without a gap, each with all its blobs. dropped: parts that were dropped, since
    their window had its turn or they came twice."""

    windows: list[tuple[int, list[bytes]]]
    dropped: int


def take_turn(part: Part, next_window: int, near: Any, far: Any, waiting: Any) -> Turn:
    """Takes in a part. next_window: the first window that had no turn yet. near, far, waiting: the state.

    A window that comes before its turn waits. Windows whose turn is soon wait apart from the others, so that the state
    that is read often stays small.
    """
    window, parts, _ = part
    if window < next_window:
        return Turn([], 1)
    queue = WaitingWindows(near, far, waiting.read())
    if (window, parts) == (next_window, 1):
        due = [[part], *queue.take_from(window + 1)]
    else:
        queue.add(part)
        due = queue.take_from(window) if window == next_window else []
    waiting.write(queue.to_bytes())
    windows = [(of_one[0][0], [blob for part in of_one for blob in part[2]]) for of_one in due]
    return Turn(windows, queue.dropped)


class WaitingWindows:
    """Parts of windows before their turn, in two bags: ``near`` holds windows before ``near_end``, ``far`` the rest.

    In whatever order the windows come, each one is seldom read from ``far``, and ``near`` stays small.
    """

    _FIELDS = struct.Struct("<qqq")

    def __init__(self, near: Any, far: Any, data: bytes | None) -> None:
        self._near = near
        self._far = far
        self._near_end, self._in_near, self._in_far = self._FIELDS.unpack(data or bytes(self._FIELDS.size))
        self.dropped = 0  # parts that came twice

    def __len__(self) -> int:
        return int(self._in_near + self._in_far)

    def to_bytes(self) -> bytes:
        return self._FIELDS.pack(self._near_end, self._in_near, self._in_far)

    def add(self, part: Part) -> None:
        if part[0] < self._near_end:
            self._near.add(part)
            self._in_near += 1
        else:
            self._far.add(part)
            self._in_far += 1

    def take_from(self, window: int) -> list[list[Part]]:
        """Takes out the complete windows from ``window`` on, in order, up to the first gap. No earlier one may wait."""
        taken: list[list[Part]] = []
        while True:
            kept: dict[int, list[Part]] = {}
            for part in self._near.read() if self._in_near else ():
                kept.setdefault(part[0], []).append(part)
            before = len(taken)
            while window in kept and len(parts := _without_repeats(kept[window])) >= parts[0][1]:
                taken.append(parts[: parts[0][1]])
                self.dropped += len(kept.pop(window)) - len(taken[-1])
                window += 1
            if len(taken) > before:
                self._near.clear()
                self._in_near = 0
                for part in itertools.chain.from_iterable(kept.values()):
                    self.add(part)
            if window < self._near_end or not self._in_far:
                return taken
            self._refill(window)

    def _refill(self, window: int) -> None:
        """Moves the windows whose turn is soon from ``far`` to ``near``, which is empty."""
        self._near_end = window + max(_LEAST_NEAR_WINDOWS, 2 * math.isqrt(self._in_far))
        parts = list(self._far.read())
        self._far.clear()
        self._in_far = 0
        for part in parts:
            self.add(part)


def _without_repeats(parts: list[Part]) -> list[Part]:
    """A part that came twice counts once; different parts of a window have different content."""
    return [part for number, part in enumerate(parts) if part not in parts[:number]]
