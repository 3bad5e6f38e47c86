"""What a process that tries mutated inputs tells another while it runs, and after a crash: figures in a mapped file."""

from __future__ import annotations

import dataclasses
import mmap
import struct

_LAYOUT = struct.Struct("<qdqqqqdqq")


@dataclasses.dataclass
class Tally:
    """number: the case that runs now; -1 before the first one and after the last. began: its process's CPU seconds when
    it began. slowest: CPU seconds of the slowest case, of this number. memory: bytes, the most that a case took beyond
    what the process had before the first."""

    number: int = -1
    began: float = 0.0
    cases: int = 0
    accepted: int = 0
    refused: int = 0
    faults: int = 0
    slowest: float = 0.0
    slowest_number: int = -1
    memory: int = 0


class SharedTally:
    """A `Tally` in a file. Every field is written at once, so that a reader sees the figures of one moment."""

    def __init__(self, path: str) -> None:
        with open(path, "a+b") as file:
            file.truncate(_LAYOUT.size)
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    def write(self, tally: Tally) -> None:
        self._map[:] = _LAYOUT.pack(*dataclasses.astuple(tally))

    def read(self) -> Tally:
        return Tally(*_LAYOUT.unpack(self._map[:]))
