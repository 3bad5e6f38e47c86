"""The HTTP server, and how long and how often others may be connected to it.

**Turns.** It is the peer's turn until a whole request is there, and again once that is answered; also while it does not
read what it is sent. A turn ends after some seconds, however they are spent, byte by byte too; a peer that reads has as
long as it takes. So what is half open goes away, with or without a token.

**Places.** All connections together are at most so many. If there are more, one goes whose peer has its turn: of the
peers with most of these, the one that has waited longest. So who opens many and asks for nothing takes no place from
anybody else. Only where all are being answered, as listeners are, a further one is told to come later.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

_LEAST_BYTES_PER_SECOND = 1000  # of a peer that reads
_LAST_TURNS = 6  # of one that reads nothing of the last answer
_BACKLOG = 1024


@dataclasses.dataclass(frozen=True)
class Limits:
    """turn_seconds: of a peer. connections: of all at once."""

    turn_seconds: float = 10.0
    connections: int = 1000


class Server(uvicorn.Server):
    """Leaves the handlers of signals as they are: uvicorn's would wait for all browsers to leave."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server_of(application: ASGIApp, limits: Limits | None = None) -> Server:
    """Its `run` serves until `should_exit`, or to the end of the process."""
    limits = limits or Limits()
    waiting: dict[_Connection, None] = {}
    return Server(
        uvicorn.Config(
            application,
            loop="asyncio",
            http=functools.partial(_Connection, limits=limits, waiting=waiting),  # type: ignore[arg-type]
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,  # a first request has the token in its address
            proxy_headers=False,
            server_header=False,
            limit_concurrency=limits.connections,
            backlog=_BACKLOG,
        )
    )


class _Connection(H11Protocol):
    """waiting: the connections whose peer has its turn, of all of the server, in the order in which the turns began."""

    def __init__(self, *, limits: Limits, waiting: dict[_Connection, None], **more: Any) -> None:
        super().__init__(**more)
        self._limits, self._waiting = limits, waiting
        self._is_full = False  # of what the peer has not read
        self._unread_bytes = 0
        self._idle_turns = 0
        self._turn_end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) >= self._limits.connections and self._waiting:
            _longest_of_busiest(self._waiting).end()
        self._note_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_turn()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note_turn()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which may begin with the next request
        self._note_turn()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_full = True
        self._note_turn()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_full = False
        self._note_turn()

    def end(self) -> None:
        """At once, whatever was still to be sent."""
        self._end_turn()
        self.connections.discard(self)
        self.transport.abort()

    def _note_turn(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        is_over = self.transport.is_closing() and not self.transport.get_write_buffer_size()
        if is_over or (is_answering and not self._is_full):
            self._end_turn()
        elif self._turn_end is None:
            self._waiting[self] = None
            self._begin_turn()

    def _begin_turn(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._turn_end = self.loop.call_later(self._limits.turn_seconds, self._look_at_turn)

    def _look_at_turn(self) -> None:
        least = _LEAST_BYTES_PER_SECOND * self._limits.turn_seconds
        reads = self._unread_bytes - self.transport.get_write_buffer_size() >= least
        self._idle_turns = 0 if reads else self._idle_turns + 1
        if self.transport.is_closing():  # what is left is with the kernel, which takes it in large pieces
            goes_on = self._idle_turns < _LAST_TURNS
        else:
            goes_on = self._is_full and reads
        if goes_on:
            self._begin_turn()
        else:
            self.end()

    def _end_turn(self) -> None:
        self._waiting.pop(self, None)
        if self._turn_end is not None:
            self._turn_end.cancel()
            self._turn_end = None


def _longest_of_busiest(waiting: dict[_Connection, None]) -> _Connection:
    counts = Counter(each.client and each.client[0] for each in waiting)
    most = max(counts.values())
    return next(each for each in waiting if counts[each.client and each.client[0]] == most)
