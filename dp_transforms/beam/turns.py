"""Turns: counted messages -> the windows of a shard in order, each whole. Each step of a stream begins with it.

A window has its turn when it is the next one and all that was announced for it has come (`core.stage`).
No timer decides it: what a step is given depends on no order of delivery and no restart. (For a source of Beam's the
watermark decides before, which messages there are: `beam.in_order`.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol

from apache_beam.coders import BytesCoder, TupleCoder, VarIntCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from dp_transforms.core.stage import EncodedMessage, Message
from dp_transforms.errors import StreamError

_DIGIT_BITS = 4
_CELLS_BEFORE_REWRITING, _BYTES_BEFORE_REWRITING = 64, 10_000_000
_MESSAGES = TupleCoder([VarIntCoder(), VarIntCoder(), BytesCoder()])

# Of a step: what waits for its turn, the nearest windows apart from others; and a `Turns` but for these messages.
PENDING = BagStateSpec("pending", _MESSAGES)
PENDING_SOON = BagStateSpec("pending_soon", _MESSAGES)
PENDING_FAR = BagStateSpec("pending_far", _MESSAGES)
TURNS = ReadModifyWriteStateSpec("turns", BytesCoder())


class Turns:
    """Which window of a shard is next, and the messages that wait for their turn.

    senders: how many announce their messages for each window. stored: the state `TURNS`. bags: the states of messages,
    from near to far.

    In the first bag are the windows whose number differs from that of the next window in the last hexadecimal digit
    alone, in the second one those that differ in the last two, and in the last one all others. So a message is read
    and written again some 8 times for each bag, and for each 512 windows that wait in the last of three. A message
    that completes nothing reads and writes itself, and the counts of at most 16 windows.
    """

    def __init__(self, senders: int, stored: Any, bags: tuple[Any, ...]) -> None:
        self._senders, self._stored, self._bags = senders, stored, bags
        data = stored.read() or _packed([0] * (1 + len(bags)))
        self.next_window, *numbers = struct.unpack(f"<{len(data) // 8}q", data)
        self._held, rows = numbers[: len(bags)], iter(numbers[len(bags) :])
        # Of windows in the first bag: how many messages have come, how many were announced, by how many senders.
        self._counts = {window: counts for window, *counts in zip(rows, rows, rows, rows, strict=True)}
        self.dropped = 0

    def add(self, message: Message) -> list[tuple[int, list[bytes]]]:
        """Takes in a message. Returns the windows whose turn has come, without a gap, each with all its blobs but empty
        ones, in no particular order. What comes late, or is more than was announced, is dropped and counted."""
        due: list[tuple[int, list[bytes]]] = []
        self._keep(message)
        while self._is_complete():
            blobs: dict[int, list[bytes]] = {}
            for window, _, blob in self._emptied(0):
                blobs.setdefault(window, []).append(blob)
            while self._is_complete():
                due.append((self.next_window, blobs.pop(self.next_window, [])))
                del self._counts[self.next_window]
                self.next_window += 1
            for window, of_window in blobs.items():
                for blob in of_window:
                    self._put(0, (window, 0, blob))
            zeros = ((self.next_window & -self.next_window).bit_length() - 1) // _DIGIT_BITS
            if (nearer := min(zeros, len(self._bags) - 1)) > 0:
                for waiting in self._emptied(nearer):
                    self._keep(Message(*waiting))
        counts = [number for window, counts in self._counts.items() for number in (window, *counts)]
        self._stored.write(_packed([self.next_window, *self._held, *counts]))
        return due

    def _keep(self, message: Message) -> None:
        window, announced, blob = message
        digits = max((window ^ self.next_window).bit_length() - 1, 0) // _DIGIT_BITS
        at = min(digits, len(self._bags) - 1)
        received, expected, senders = self._counts.get(window, (0, 0, 0))
        counts = [received + 1, expected + announced, senders + (announced > 0)]
        is_surplus = counts[2] > self._senders or (counts[2] == self._senders and counts[0] > counts[1])
        if window < self.next_window or (at == 0 and is_surplus):
            self.dropped += 1
            return
        if at == 0:
            self._counts[window] = counts
        if at > 0 or blob:
            self._put(at, message)

    def _is_complete(self) -> bool:
        """Whether the turn of the next window has come."""
        received, expected, senders = self._counts.get(self.next_window, (0, 0, 0))
        return senders == self._senders and received == expected

    def _put(self, at: int, message: EncodedMessage) -> None:
        self._bags[at].add(message)
        self._held[at] += 1

    def _emptied(self, at: int) -> list[EncodedMessage]:
        if not self._held[at]:
            return []
        messages = list(self._bags[at].read())
        self._bags[at].clear()
        self._held[at] = 0
        return messages


class Rewritten(Protocol):
    """cells, size: how many cells, and bytes, a bag had when it was last rewritten."""

    cells: int
    size: int


def store(
    bag: Any, stored: list[bytes], changed: list[bytes], whole: Callable[[], list[bytes]], rewritten: Rewritten
) -> None:
    """Appends what has changed to cells of which a later one counts. Now and then it rewrites all, which costs a
    bounded share of what is read. stored: what the bag has. whole: makes the whole state."""
    size = sum(map(len, stored)) + sum(map(len, changed))
    is_scattered = len(stored) + len(changed) > _CELLS_BEFORE_REWRITING + 2 * rewritten.cells
    if is_scattered or size > _BYTES_BEFORE_REWRITING + 2 * rewritten.size:
        bag.clear()
        changed = whole()
        rewritten.cells, rewritten.size = len(changed), sum(map(len, changed))
    for cell in changed:
        bag.add(cell)


def unpack_stored(fields: struct.Struct, stored: bytes) -> tuple[int, ...]:
    """The numbers of a state. Raises StreamError for one of another version, as from an older savepoint. Such states
    keep their names: under a new name it would be taken for none, and what users have paid would be forgotten."""
    if len(stored) != fields.size:
        raise StreamError("the stored state is of another version. Start a new run.")
    return fields.unpack(stored)


def _packed(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)
