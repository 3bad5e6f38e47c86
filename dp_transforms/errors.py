"""Errors that several rooms raise and the command shows in one line."""

from __future__ import annotations

import mmap
import os
import re
import resource

# How errors of Python and of libraries begin where memory is short; a limit on it makes imports fail in other ways too.
_NO_MEMORY = re.compile(
    r"^(?:\w+\.)*(?:(?:Arrow|_Array)?MemoryError\b|OSError: \[Errno 12\]|RuntimeError: can't start new thread)",
    re.MULTILINE,
)
_NO_MEMORY_UNDER_A_LIMIT = re.compile(  # the last one by Arrow, which hides why it cannot make a scalar
    r"^(?:ImportError\b|SystemError\b|TypeError: Got unexpected argument type)", re.MULTILINE
)

_ROOM_OF_LIBRARIES = 300_000_000  # of addresses: with half of it a worker hung at 1.6 GB


class UserError(Exception):
    """An expected failure: one line that says what is wrong, and the remedy. Never contains a cell of the data."""

    exit_code = 1


class MissingLibraryError(UserError, ImportError):
    """A library that only some uses need. The message says which extra of the package brings it."""


class StreamError(RuntimeError):
    """A source or sink cannot be used. The message is one line and contains no event."""


class PoolError(RuntimeError):
    """A worker process died or could not be started, or what it makes could not be stored. One line, without a cell."""


class LastingError(StreamError):
    """The same with an answer that no restart can change: the third one ends the job of a stream."""


def check_room() -> None:
    """Raises MemoryError where `ulimit -v` allows hardly more than there is: then OpenBLAS, which is in scipy, tries
    again and again, and no signal ends it."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        try:
            mmap.mmap(-1, _ROOM_OF_LIBRARIES).close()
        except OSError:
            raise MemoryError from None


def reason_of_machine(traceback_text: str) -> str | None:
    """What the machine lacked, where that explains an error that nobody expected. Holds nothing of its message."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current folder was removed. Change to one that is there"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    is_limited = limit != resource.RLIM_INFINITY
    if _NO_MEMORY.search(traceback_text) or (is_limited and _NO_MEMORY_UNDER_A_LIMIT.search(traceback_text)):
        allowed = f", of which ulimit -v allows {limit // 10**6:,} MB" if is_limited else ""
        return f"there was not enough memory{allowed}. Allow more, or give less to do at once"
    return None
