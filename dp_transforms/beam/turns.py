"""Turns: what comes for the windows of a key waits until they have their turn, strictly in order. Every stateful step
that takes windows begins with it.

Two rules say when a window is whole. Where Beam has the watermark, a timer does (`threshold_monitor`). Where partitions
are counted, all that was announced must have come (`Turns`): then what a step is given depends on no order of delivery,
no timer and no restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from apache_beam.coders import BytesCoder, TupleCoder, VarIntCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from dp_transforms.core.stage import EncodedMessage, Message
from dp_transforms.errors import StreamError

NEVER = 1 << 62  # no window has this number
_DIGIT_BITS = 4
_CHUNKS_BEFORE_REWRITING, _BYTES_BEFORE_REWRITING = 64, 10_000_000
_MESSAGES = TupleCoder([VarIntCoder(), VarIntCoder(), BytesCoder()])

# The states of a step: what waits for its turn, the nearest windows apart from others; and a `Progress`.
PENDING = BagStateSpec("pending", _MESSAGES)
PENDING_SOON = BagStateSpec("pending_soon", _MESSAGES)
PENDING_FAR = BagStateSpec("pending_far", _MESSAGES)
PROGRESS = ReadModifyWriteStateSpec("progress", BytesCoder())


class Progress(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """How far a key is, in a few bytes that are read and written for each element.

    next_window: the first that had no turn. held: how many messages wait in each bag. counts: of windows in the first
    bag, how many messages have come, how many were announced, by how many senders. shards: of the step, 0 where it has
    no number. hit_bound: as in `MonitorState`. reports: how many were released. chunks, size: of what the step carries
    from window to window, when it was last rewritten. Where the watermark decides, first_pending: the first window that
    waits; missing: elements that have not come, of groups of which others have.
    """

    version: Literal["turns 1"] = "turns 1"
    next_window: int = 0
    held: list[int] = msgspec.field(default_factory=lambda: [0, 0, 0])
    counts: dict[int, tuple[int, int, int]] = {}
    shards: int = 0
    hit_bound: int = 0
    reports: int = 0
    chunks: int = 0
    size: int = 0
    first_pending: int = NEVER
    missing: int = 0

    @classmethod
    def read(cls, progress: Any, shards: int = 0) -> Progress:
        """Of a key; new where nothing is stored. Raises StreamError for a state of another version, as from an older
        savepoint. Such states keep their names: under a new name it would be taken for none, and what users have paid
        would be forgotten. And for one of other shards: users would be in others, where their budgets are full again.
        """
        stored = progress.read()
        try:
            now = cls(shards=shards) if stored is None else msgspec.msgpack.decode(stored, type=cls)
        except msgspec.MsgspecError:
            raise StreamError("the stored state is of another version. Start a new run.") from None
        if now.shards != shards:
            raise StreamError(f"the stored state is of shards={now.shards}, got shards={shards}. Give the same.")
        return now

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)


class Waiting:
    """What waits for the windows of a key, in bags from near to far. progress: is changed with them.

    In the first bag are the windows whose number differs from that of the next window in the last hexadecimal digit
    alone, in the second one those that differ in the last two, and in the last one all others. So a message is read
    and written again some 8 times for each bag, and for each 512 windows that wait in the last of three.
    """

    def __init__(self, progress: Progress, bags: Sequence[Any]) -> None:
        self.progress, self._bags = progress, bags

    def put(self, message: EncodedMessage) -> None:
        """Of a window that had no turn."""
        self._put(self._place(message[0]), message)

    def take(self, end: int) -> list[EncodedMessage]:
        """Takes out what waits for the windows before this one, which is the next from then on."""
        # A window before it differs from the next one in no digit before the first in which this one differs.
        taken = [(at, message) for at in range(self._place(end) + 1) for message in self._emptied(at)]
        self.progress.next_window = end
        for at, message in taken:
            if message[0] >= end and at == 0:
                self._put(0, message)
            elif message[0] >= end:
                self.put(message)
        return [message for _, message in taken if message[0] < end]

    def first(self) -> int:
        """The first window for which anything waits."""
        nearest = next((bag for bag, held in zip(self._bags, self.progress.held, strict=True) if held), None)
        return NEVER if nearest is None else min(window for window, _, _ in nearest.read())

    def _place(self, window: int) -> int:
        digits = max((window ^ self.progress.next_window).bit_length() - 1, 0) // _DIGIT_BITS
        return min(digits, len(self._bags) - 1)

    def _put(self, at: int, message: EncodedMessage) -> None:
        self._bags[at].add(message)
        self.progress.held[at] += 1

    def _emptied(self, at: int) -> list[EncodedMessage]:
        if not self.progress.held[at]:
            return []
        messages = list(self._bags[at].read())
        self._bags[at].clear()
        self.progress.held[at] = 0
        return messages


class Turns(Waiting):
    """A window has its turn when it is the next one and all that was announced for it has come (`core.stage`).

    senders: how many announce their messages for each window. dropped: messages that came late, or were more than was
    announced. A message that completes nothing reads and writes itself, and the counts of at most 16 windows.
    """

    def __init__(self, progress: Progress, bags: Sequence[Any], senders: int) -> None:
        super().__init__(progress, bags)
        self._senders, self.dropped = senders, 0

    def add(self, message: Message) -> list[EncodedMessage]:
        """Takes in a message. Returns what came with content for the windows whose turn has come: from the one that was
        next to before the one that is next now."""
        self.put(message)
        due: list[EncodedMessage] = []
        while (end := self._end_of_whole()) > self.progress.next_window:
            due += self.take(end)
        return due

    def put(self, message: EncodedMessage) -> None:
        window, announced, blob = message
        at = self._place(window)
        received, expected, senders = self.progress.counts.get(window, (0, 0, 0))
        counts = received + 1, expected + announced, senders + (announced > 0)
        is_surplus = counts[2] > self._senders or (counts[2] == self._senders and counts[0] > counts[1])
        if window < self.progress.next_window or (at == 0 and is_surplus):
            self.dropped += 1
            return
        if at == 0:
            self.progress.counts[window] = counts
        if at > 0 or blob:
            self._put(at, message)

    def _end_of_whole(self) -> int:
        """Behind the windows that are whole, from the next one on; they are counted no more."""
        end = self.progress.next_window
        while self._is_whole(end):
            del self.progress.counts[end]
            end += 1
        return end

    def _is_whole(self, window: int) -> bool:
        received, expected, senders = self.progress.counts.get(window, (0, 0, 0))
        return senders == self._senders and received == expected


def store(
    bag: Any, stored: list[bytes], changed: list[bytes], whole: Callable[[], list[bytes]], progress: Progress
) -> None:
    """Appends what has changed to chunks of which a later one counts. Now and then it rewrites all, which costs a
    bounded share of what is read. stored: what the bag has. whole: makes the whole state."""
    size = sum(map(len, stored)) + sum(map(len, changed))
    is_scattered = len(stored) + len(changed) > _CHUNKS_BEFORE_REWRITING + 2 * progress.chunks
    if is_scattered or size > _BYTES_BEFORE_REWRITING + 2 * progress.size:
        bag.clear()
        changed = whole()
        progress.chunks, progress.size = len(changed), sum(map(len, changed))
    for chunk in changed:
        bag.add(chunk)
