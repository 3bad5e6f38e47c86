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
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

INTERRUPTED = 130  # exit code of a process that Ctrl-C ended
TERMINATED = 143  # and of one that SIGTERM did
HUNG_UP = 129
_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: HUNG_UP}
_SECONDS_TO_UNWIND = 20  # twice what the slowest engine takes
_TERMINAL_AS_BEFORE = b"\r\x1b[2K\x1b[?25h"  # clears the line of a progress bar, and shows the cursor

stopped_with: int | None = None
"""The exit code of the signal that unwinds; None before one came."""


def install() -> dict[int, Any]:
    """From now on these signals end the process. Returns the handlers from before, for `restore`.

    A signal that the parent let this process ignore (nohup, a job in the background) stays ignored.
    """
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _CODES}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _leave)
    return before


def restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def ignore() -> None:
    """All is done: a signal that comes now changes neither what was written nor the exit code."""
    for number in _CODES:
        signal.signal(number, signal.SIG_IGN)


class Unwinding:
    """While the block runs, the first signal raises KeyboardInterrupt, so that what was started is stopped in order.

    The process ends at once on a second signal, or if unwinding takes too long.
    """

    def __enter__(self) -> None:
        self._before = install()
        for number, handler in self._before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, _unwind)

    def __exit__(self, *_: object) -> None:
        if stopped_with is None:
            restore(self._before)


def _unwind(number: int, frame: FrameType | None) -> None:
    global stopped_with
    stopped_with = _CODES[signal.Signals(number)]
    install()
    signal.signal(signal.SIGALRM, _leave)
    signal.alarm(_SECONDS_TO_UNWIND)
    sys.unraisablehook = lambda unraisable: None  # if a destructor swallows it, the alarm ends the process
    raise KeyboardInterrupt


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the process, whatever it is doing. Takes no lock: the main thread, which it interrupts, may hold it."""
    for other in _CODES:
        signal.signal(other, signal.SIG_IGN)
    discard: Callable[[], None] | None = getattr(
        sys.modules.get("dp_transforms.stores.local_files"), "discard_drafts", None
    )
    try:
        if discard is not None:
            discard()
        os.write(2, (_TERMINAL_AS_BEFORE if os.isatty(2) else b"") + b"shh: stopped.\n")
    finally:
        os._exit(stopped_with or _CODES[signal.Signals(number)])
