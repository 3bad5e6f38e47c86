"""What the server of ``shh serve`` sends of what it follows: a page, and messages for who has the page."""

from __future__ import annotations

import dataclasses
import gzip


@dataclasses.dataclass
class View:
    """What the server sends. It is replaced as a whole, but for `messages` that grow and the three texts.

    epoch: names this numbering of messages; another one makes pages load anew.
    page, packed: the page and the same by gzip, with all up to the message `shown`.
    first: number of the message before `messages`, of which each is one event as it is sent.
    status, problem: the sentences below the title, and what is wrong with the source just now.
    state: that no further window will come; empty while the page is live.
    """

    epoch: str
    page: bytes
    packed: bytes
    shown: int
    first: int
    messages: list[bytes]
    status: str
    state: str
    problem: str = ""

    @property
    def last(self) -> int:
        return self.first + len(self.messages)

    def number_of(self, event_id: str) -> int | None:
        """How far a page is that heard of this event; None if it must load anew."""
        epoch, _, digits = event_id.partition(".")
        if epoch != self.epoch or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
            return None
        return int(digits) if self.first <= int(digits) <= self.last else None


def packed(content: bytes) -> bytes:
    return gzip.compress(content, compresslevel=5, mtime=0)


def event_bytes(kind: str, fields: str, event_id: str = "") -> bytes:
    """A server-sent event, of one line: `fields` is JSON."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {kind}\ndata: {fields}\n\n".encode()
