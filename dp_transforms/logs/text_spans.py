"""Parts of a text file, for formats in which a line is judged by itself: the lines that begin in a span of its bytes.

Each line of a file begins in exactly one span, whatever the lines hold. How many lines are before a span is not known
beforehand, and is needed for positions of rejected rows alone. So a part that has such rows counts the line ends before
it; a process that reads several parts of a file goes through it once for that.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any

import numpy as np

from dp_transforms.logs.log_chunk import LogChunk, ReadBlock
from dp_transforms.logs.log_input import open_log
from dp_transforms.logs.text_files import TextStream, is_packed
from dp_transforms.stores.remote_files import StoredFile

_LEAST_BYTES, _MOST_BYTES = 4 << 20, 64 << 20  # of a part
_AHEAD_BYTES = 1 << 20  # a span ends in the middle of a file: more would be fetched in vain
_PIECE_BYTES = 1 << 16
_COUNTED_BYTES = 4 << 20
_KEPT_COUNTS = 64


def cut_chunk(chunk: LogChunk, parts: int) -> list[LogChunk]:
    """A file that is not packed in about so many parts, of 4 to 64 MB."""
    parts = max(min(parts, chunk.bytes // _LEAST_BYTES), -(-chunk.bytes // _MOST_BYTES))
    if parts < 2 or is_packed(chunk.path):
        return [chunk]
    ends = [chunk.bytes * number // parts for number in range(parts + 1)]
    return [dataclasses.replace(chunk, bytes=end - begin, span=(begin, end)) for begin, end in itertools.pairwise(ends)]


def open_text(chunk: LogChunk) -> TextStream:
    """The lines of a chunk, as a context manager."""
    return TextStream(chunk.path, chunk.stored) if chunk.span is None else _SpanStream(chunk, chunk.span)


class _SpanStream(TextStream):
    """The lines that begin in a span of a file that is not packed."""

    def __init__(self, chunk: LogChunk, span: tuple[int, int]) -> None:
        super().__init__(chunk.path, chunk.stored, _AHEAD_BYTES)
        self.stream = self._lines = _LinesOfSpan(self._file, *span)
        self._chunk, self._begin = chunk, span[0]

    def bytes_read(self) -> int:
        return max(0, super().bytes_read() - self._begin)

    def number(self, block: ReadBlock) -> ReadBlock:
        if not self._begin or not block.rejected:
            return block
        before = line_ends_before(self._chunk.path, self._chunk.stored, self._lines.begin)
        rejected = [
            part._replace(positions=tuple((np.asarray(part.positions) + before).tolist())) for part in block.rejected
        ]
        return dataclasses.replace(block, rejected=tuple(rejected))


class _LinesOfSpan:
    """A stream of the lines of ``file`` that begin at ``begin`` or later and before ``end``, whole.

    begin: where the first of them begins, once something was read.
    """

    def __init__(self, file: Any, begin: int, end: int) -> None:
        self.begin = begin
        self._file, self._at, self._end = file, -1, end
        self._is_inside_line = False

    def read(self, size: int) -> bytes:
        if self._at < 0:
            self._at = self.begin = self._first_line()
        if self._at < self._end:
            data: bytes = self._file.read(min(size, self._end - self._at))
        elif self._is_inside_line:  # the last line goes on behind the span
            data = self._file.read(min(size, _PIECE_BYTES))
            data = data[: data.find(b"\n") + 1] or data
        else:
            return b""
        self._at += len(data)
        self._is_inside_line = bool(data) and not data.endswith(b"\n")
        return data

    def _first_line(self) -> int:
        """Goes to where the first line begins; the end of the span if none does."""
        if not self.begin:
            return 0
        at = self.begin - 1  # a line that begins the span has its line end there
        self._file.seek(at)
        while at < self._end:
            data = self._file.read(min(_PIECE_BYTES, self._end - at))
            found = data.find(b"\n") + 1
            if found or not data:
                at = at + found if data else self._end
                self._file.seek(at)
                return at
            at += len(data)
        return self._end

    def close(self) -> None:
        self._file.close()


_counted: dict[tuple[Any, ...], tuple[int, int]] = {}
"""By version of a file: a position, and how many lines end before it."""


def line_ends_before(path: str, stored: StoredFile | None, position: int) -> int:
    """How many lines of a file end before a position. Raises OSError.

    What is counted is kept for a further position of the same version of the file.
    """
    status = None if stored is not None else os.stat(path)
    key = (path, stored) if status is None else (path, status.st_mtime_ns, status.st_size)
    at, count = _counted.get(key, (0, 0))
    if at > position:
        at, count = 0, 0
    with open_log(path, stored) as file:
        file.seek(at)
        while at < position and (data := file.read(min(_COUNTED_BYTES, position - at))):
            at, count = at + len(data), count + data.count(b"\n")
    while len(_counted) >= _KEPT_COUNTS:
        _counted.pop(next(iter(_counted)), None)
    _counted[key] = (at, count)
    return count
