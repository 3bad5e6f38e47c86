"""Fresh bytes of a process as a function of the test's name: a test that draws noise has the same noise in each run.

What a test draws is then good or bad for ever, and not once in a hundred runs. `SHH_FRESH_RANDOMNESS=1` leaves the
system's bytes, for `make test-nightly`. Of the processes that a test starts those of `tests.helpers.forked` draw so
too, all others have the system's bytes.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import random
import secrets
import sys
import uuid
from collections.abc import Iterator

IS_FRESH = bool(os.environ.get("SHH_FRESH_RANDOMNESS"))
_SYSTEM_BYTES = os.urandom
_LIBRARIES = frozenset({__file__, random.__file__, secrets.__file__, uuid.__file__})


class NamedRandomness:
    """In place of `os.urandom` and of what `secrets` draws from. Not in forked processes, which would draw alike.

    A draw depends on the name, on the function that draws, and on how often that function drew before: not on what
    other modules draw, of which some do only once in a process.
    """

    def __init__(self, name: str = "the session") -> None:
        self._process = os.getpid()
        self._names = [name]
        self._drawn: list[collections.Counter[str]] = [collections.Counter()]

    def __call__(self, size: int) -> bytes:
        if os.getpid() != self._process:
            return _SYSTEM_BYTES(size)
        frame = sys._getframe(1)
        while frame.f_code.co_filename in _LIBRARIES and frame.f_back:
            frame = frame.f_back
        place = f"{os.path.basename(frame.f_code.co_filename)} {frame.f_code.co_qualname}"
        return hashlib.shake_256(self._next(place).encode()).digest(size)

    def _next(self, place: str) -> str:
        self._drawn[-1][place] += 1
        return f"{self._drawn[-1][place]} {place} {self._names[-1]}"

    def name_for_process(self) -> str:
        """For a process that draws other bytes than this one, and than those that were named before."""
        return self._next("a process")

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What is drawn inside depends on this name, and on the draws before it inside."""
        self._names.append(name)
        self._drawn.append(collections.Counter())
        try:
            yield
        finally:
            self._names.pop()
            self._drawn.pop()

    def install(self) -> None:
        os.urandom = self  # type: ignore[assignment]
        random._urandom = self  # type: ignore[attr-defined]  # what `random.SystemRandom` calls, and so `secrets`


RANDOMNESS = NamedRandomness()
