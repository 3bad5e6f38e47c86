"""Tells errors of standard output (a full disk, a closed pipe) from all other errors of the operating system."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class StandardOutputError(OSError):
    """Standard output did not take what was printed."""


class ClosedPipeError(StandardOutputError, BrokenPipeError):
    """Its reader has gone: `shh show ... | head`. click and rich then end the command without a word."""


class _Watched:
    """The stream, with errors that say that they are its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _named():
            return self._stream.write(text)

    def flush(self) -> None:
        with _named():
            self._stream.flush()


@contextlib.contextmanager
def watched_standard_output() -> Iterator[None]:
    """While the block runs, `sys.stdout` raises StandardOutputError; it is flushed at the end of the block."""
    before = sys.stdout
    if before is None:  # closed before this process began: nothing is printed
        yield
        return
    watched = cast(TextIO, _Watched(before))
    sys.stdout = watched
    try:
        yield
        sys.stdout.flush()
    finally:
        if sys.stdout is watched:  # click leaves another one behind when a pipe is closed
            sys.stdout = before


def drop_standard_output() -> None:
    """Python flushes once more at its end, and would print the same error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ClosedPipeError(error.errno, error.strerror) from None
    except OSError as error:
        raise StandardOutputError(error.errno, error.strerror) from None
