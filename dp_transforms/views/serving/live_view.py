"""What the server of ``shh serve`` sends of what it follows: a page, and messages for who has the page."""

from __future__ import annotations

import abc
import dataclasses
import gzip

from dp_transforms.errors import UserError
from dp_transforms.views.page.html_text import ServedFile


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


class Followed(abc.ABC):
    """What a site shows, read again and again. `view` may be read by other threads; all else is for one at a time."""

    view: View

    @abc.abstractmethod
    def files(self) -> tuple[ServedFile, ...]:
        """The style and the scripts of its page."""

    @abc.abstractmethod
    def read(self) -> bool:
        """Reads what is new; whether the view has changed. Raises UserError for what cannot be read just now."""

    def poll(self) -> bool:
        """As `read`. What cannot be read just now is said on the page, as a problem of the view, and tried again."""
        try:
            is_news = self.read()
        except UserError as error:
            is_other = self.view.problem != str(error)
            self.view.problem = str(error)
            return is_other
        was_troubled, self.view.problem = self.view.problem, ""
        return is_news or bool(was_troubled)


def packed(content: bytes) -> bytes:
    return gzip.compress(content, compresslevel=5, mtime=0)


def event_bytes(kind: str, fields: str, event_id: str = "") -> bytes:
    """A server-sent event, of one line: `fields` is JSON."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {kind}\ndata: {fields}\n\n".encode()
