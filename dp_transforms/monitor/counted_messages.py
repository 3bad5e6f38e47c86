"""Messages that are gathered by counting: how a sender announces them, and how a receiver knows that all have come.

What belongs to one shard of one window travels in messages of bounded size, because engines refuse values of 80 MB and
copy each one several times. The last message of a sender announces how many the sender sends, itself included. A group
is complete when all its senders have announced and as many messages have come. No watermark and no timer decides it,
so the content of a group does not depend on the engine, on the order of delivery or on restarts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

MOST_MESSAGE_BYTES = 8_000_000

Key = tuple[int, int]  # window and shard: where a message goes
EncodedMessage = tuple[int, bytes]  # the fields of a `Message`, as engines encode them
Group = tuple[Key, list[bytes]]  # all that came for one key


class Message(NamedTuple):
    """From one sender to one shard of one window.

    announced: on the last message of its sender, how many messages this sender sends there, this one included; 0 on all
        others.
    blob: packed content; empty for none.
    """

    announced: int
    blob: bytes


def messages_of(blobs: list[bytes]) -> list[Message]:
    """All that one sender has for one shard of one window, as messages. The last one announces them."""
    *first, last = blobs or [b""]
    return [*(Message(0, blob) for blob in first), Message(len(first) + 1, last)]


class GatheredCount:
    """How much of a group has come: a few bytes, which are read and written for each message."""

    _FIELDS = struct.Struct("<qqq")
    SIZE = _FIELDS.size

    def __init__(self, data: bytes | None = None) -> None:
        """data: from `to_bytes`; None: nothing has come yet."""
        self.received: int
        self.expected: int
        self.senders: int
        self.received, self.expected, self.senders = self._FIELDS.unpack(data or bytes(self.SIZE))

    def add(self, announced: int) -> None:
        """Counts one message."""
        self.received += 1
        self.expected += announced
        self.senders += announced > 0

    def is_complete(self, senders: int) -> bool:
        """senders: how many senders the group has."""
        return self.senders == senders and self.received == self.expected

    def has_too_many(self, senders: int) -> bool:
        """Whether more senders announced than there are, or more messages came than all senders announced."""
        return self.senders > senders or (self.senders == senders and self.received > self.expected)

    def to_bytes(self) -> bytes:
        return self._FIELDS.pack(self.received, self.expected, self.senders)


def batches_of_blobs(blobs: Iterable[bytes], most_bytes: int = MOST_MESSAGE_BYTES) -> list[list[bytes]]:
    """The blobs in order, in batches that engines accept; no blob is cut. One empty batch for no blobs."""
    batches: list[list[bytes]] = [[]]
    size = 0
    for blob in blobs:
        if batches[-1] and size + len(blob) > most_bytes:
            batches.append([])
            size = 0
        batches[-1].append(blob)
        size += len(blob)
    return batches
