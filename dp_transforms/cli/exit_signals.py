"""Ctrl-C, SIGTERM and SIGHUP (a terminal that is closed) end a command: with one line, at once, and without leaving
anything half done.

An exception would not always do that: imports, destructors, callbacks of grpc and ``except:`` in other code print it or
swallow it. So the process ends within the handler.

This module imports almost nothing: the handlers are installed before everything else is imported.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # what typing has, without its 10 ms
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TERMINAL_AS_BEFORE = b"\r\x1b[2K\x1b[?25h"  # clears the line of a progress bar, and shows the cursor

stopped_with: int | None = None
"""The exit code of the signal that unwinds; None before one came."""


def install(handler: Any = None) -> dict[int, Any]:
    """From now on these signals end the process, or are handled so. Returns the handlers from before, for `restore`.

    A signal that the parent let this process ignore (nohup, a job in the background) stays ignored.
    """
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _STOPS}
    restore({number: handler or _leave for number in _STOPS if before[number] is not signal.SIG_IGN})
    return before


def restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def ignore() -> None:
    """All is done: a signal that comes now changes neither what was written nor the exit code."""
    restore(dict.fromkeys(_STOPS, signal.SIG_IGN))


class Unwinding:
    """While the block runs, the first signal raises KeyboardInterrupt, so that what was started is stopped in order;
    the second ends the process at once."""

    def __enter__(self) -> None:
        self._before = install(_unwind)

    def __exit__(self, *_: object) -> None:
        if stopped_with is None:
            restore(self._before)


def _unwind(number: int, frame: FrameType | None) -> None:
    global stopped_with
    stopped_with = 128 + number
    install()
    raise KeyboardInterrupt


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the process, whatever it is doing. Takes no lock: the main thread, which it interrupts, may hold it."""
    ignore()
    local_files = sys.modules.get("dp_transforms.stores.local_files")
    discard_drafts = getattr(local_files, "discard_drafts", lambda: None)  # it may not be whole yet
    try:
        discard_drafts()
        os.write(2, (_TERMINAL_AS_BEFORE if os.isatty(2) else b"") + b"shh: stopped.\n")
    finally:
        os._exit(stopped_with or 128 + number)
