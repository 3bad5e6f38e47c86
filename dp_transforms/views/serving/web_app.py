"""The page, its files and its events over HTTP: an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from dp_transforms.views.serving.live_view import Followed, event_bytes, packed

AskOperator = Callable[[float], dict[str, Any]]
_SECONDS_BETWEEN_READINGS = 1.0
_PAUSE_PER_WORK = 10  # what costs a core so long is followed by a pause so many times longer
_SECONDS_BETWEEN_BEATS = 15.0
_SECONDS_BETWEEN_NUMBERS = 5.0
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_FOREVER = {"Cache-Control": "private, max-age=31536000, immutable"}  # the name of a file changes with its content


class LiveSite:
    """Reads what it shows again and again, and answers browsers from memory.

    ask_operator: numbers of the engine for the operator, by a clock in seconds; None: the page has no such part.
    """

    def __init__(self, shown: Followed, ask_operator: AskOperator | None = None) -> None:
        self._shown = shown
        self._ask_operator = ask_operator
        self._changed = asyncio.Event()
        self._numbers = b""
        self._listeners = 0
        self._files = {
            each.path.rpartition("/")[2]: (each.content.encode(), packed(each.content.encode()))
            for each in shown.files()
        }

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/assets/{name}", self._file),
                Route("/events", self._events),
                Route("/alive", self._alive),
            ],
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        work: list[Coroutine[Any, Any, None]] = [self._follow()]
        if self._ask_operator is not None:
            work.append(self._follow_engine(self._ask_operator))
        tasks = [asyncio.create_task(each) for each in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            begin, work = time.monotonic(), time.process_time()
            try:
                is_news = await asyncio.to_thread(self._shown.poll)
            except Exception as error:  # a fault of ours: pages say so, and what they show stays
                self._shown.view.problem = f"Nothing new can be read any more ({type(error).__name__})."
                is_news = True
            if is_news:
                self._tell()
            took, work = time.monotonic() - begin, time.process_time() - work
            await asyncio.sleep(max(_SECONDS_BETWEEN_READINGS, took, _PAUSE_PER_WORK * min(took, work)))

    async def _follow_engine(self, ask: AskOperator) -> None:
        """Only while somebody looks."""
        while True:
            if self._listeners:
                found = await asyncio.to_thread(ask, time.monotonic())
                numbers = event_bytes("operator", json.dumps(found))
                if numbers != self._numbers:
                    self._numbers = numbers
                    self._tell()
            await asyncio.sleep(_SECONDS_BETWEEN_NUMBERS if self._listeners else _SECONDS_BETWEEN_READINGS)

    def _tell(self) -> None:
        """Wakes all that wait."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _page(self, request: Request) -> Response:
        view = self._shown.view
        return _answer(request, view.page, view.packed, "text/html; charset=utf-8", {})

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files:
            return PlainTextResponse("No such file.\n", 404)
        return _answer(request, *self._files[name], _TYPES[name.rpartition(".")[2]], _FOREVER)

    async def _alive(self, _: Request) -> Response:
        return PlainTextResponse("yes\n")

    async def _events(self, request: Request) -> Response:
        # A browser that connects again by itself says where it was in a header.
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        if request.method == "HEAD":  # it would listen for ever, and hear nothing
            return Response(media_type="text/event-stream")
        return StreamingResponse(
            self._stream(after), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    async def _stream(self, after: str) -> AsyncIterator[bytes]:
        """All since an event, and then what comes, for ever."""
        view = self._shown.view
        epoch, number = view.epoch, view.number_of(after)
        told: tuple[str, str, str] | None = None
        numbers = b""
        self._listeners += 1
        try:
            while True:
                changed, view = self._changed, self._shown.view
                if number is None or view.epoch != epoch or number < view.first:
                    yield event_bytes("reload", "0")
                    return
                status = view.status, view.problem, view.state
                if new := view.messages[number - view.first :]:
                    yield b"".join(new)
                    number += len(new)
                    told = told and (status[0], *told[1:])  # a window brings the sentences below the title along
                if status != told:
                    told = status
                    fields = dict(zip(("summary", "problem", "state"), status, strict=True))
                    yield event_bytes("status", json.dumps(fields))
                if self._numbers != numbers:
                    numbers = self._numbers
                    yield numbers
                try:
                    await asyncio.wait_for(changed.wait(), _SECONDS_BETWEEN_BEATS)
                except TimeoutError:
                    yield event_bytes("beat", "0")
        finally:
            self._listeners -= 1


def _answer(request: Request, whole: bytes, small: bytes, kind: str, headers: dict[str, str]) -> Response:
    """By gzip for whoever takes it."""
    headers = {**headers, "Vary": "Accept-Encoding"}
    if any(word.split(";")[0].strip() == "gzip" for word in request.headers.get("accept-encoding", "").split(",")):
        return Response(small, media_type=kind, headers={**headers, "Content-Encoding": "gzip"})
    return Response(whole, media_type=kind, headers=headers)
