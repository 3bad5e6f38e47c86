"""What the two text formats share: plain or compressed streams, parts of a file, and blocks of whole lines.

A line ends in a line feed; carriage returns before it belong to the line end. A line of only spaces, tabs and carriage
returns is blank, and is not an event; but where tabs separate cells, one of tabs is a row of empty cells. A line of
more than MAX_LINE_BYTES is left out and reported; the lines after it are read. None of this depends on the position of
a line or on any other line: each line is judged by itself. Memory is a few blocks, whatever a file holds. Many blank
lines in a row cost little more than to unpack them.

So a file that is not packed can be read in parts: the lines that begin in a span of its bytes. Each line begins in
exactly one span, whatever the lines hold. How many lines are before a span is not known beforehand, and is needed for
positions of rejected rows alone. So a part that has such rows counts the line ends before it; a process that reads
several parts of a file goes through it once for that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_transforms.logs.id_columns import empty_batch
from dp_transforms.logs.log_chunk import (
    LogChunk,
    ReadBlock,
    damaged_error,
    faults_of_store,
    open_by_arrow,
    open_log,
)
from dp_transforms.logs.rejected_events import RejectedEvents, as_array, compact
from dp_transforms.stores.remote_files import SEQUENTIAL_BYTES, StoredFile, open_stored

T = TypeVar("T")

MAX_LINE_BYTES = 16 << 20
BLOCK_BYTES = 4 << 20  # a broken line of 2 bytes takes 100 in memory; larger blocks are not faster
UTF8_MARK = b"\xef\xbb\xbf"
BLANKS = b" \t\r"
LINE_TOO_LONG = "line too long"
HEAD_BYTES = 1 << 20
NOT_UTF8_TEXT = "it is not UTF-8 text; if it is Latin-1 (or Windows-1252, CP1252): iconv -f latin1 -t utf-8 OLD > NEW"
UTF16_TEXT = "UTF-16 text. Make UTF-8 of it: iconv -f utf-16 -t utf-8 OLD > NEW"

_LINE_FEED = ord("\n")
_LEAST_BYTES, _MOST_BYTES = 4 << 20, 64 << 20  # of a part
_AHEAD_BYTES = 1 << 20  # a span ends in the middle of a file: more would be fetched in vain
_PIECE_BYTES = 1 << 16
_COUNTED_BYTES = 4 << 20
_KEPT_COUNTS = 64


class LineBlock:
    """Some lines of a file.

    raw: whole lines, each with its line feed. first_line: the number of the first one in the file.
    too_long: numbers of lines that were left out; `raw` has a blank line in their place.
    blanks: of what a blank line may consist.
    """

    def __init__(self, raw: bytes, first_line: int = 1, too_long: tuple[int, ...] = (), blanks: bytes = BLANKS) -> None:
        self.raw = raw if not raw or raw.endswith(b"\n") else raw + b"\n"
        self.first_line = first_line
        self.too_long = too_long
        self._is_filled, self._blank_lines = _blank_marks(blanks)

    def rejected(self, path: str) -> tuple[RejectedEvents, ...]:
        """The lines that were left out."""
        return (RejectedEvents(path, self.too_long, LINE_TOO_LONG),) if self.too_long else ()

    def filled_text(self) -> bytes:
        """The lines without blank ones."""
        codes = np.frombuffer(self.raw, np.uint8)
        begins_blank = self._is_filled[codes[1:][codes[:-1] == _LINE_FEED]] == 0
        if not len(codes) or (self._is_filled[codes[0]] and not begins_blank.any()):
            return self.raw
        text = self._blank_lines.sub(b"\n", b"\n" + self.raw)
        return text[1:]

    def numbers(self) -> npt.NDArray[np.int64]:
        """For each line of `filled_text` its number in the file."""
        codes = np.frombuffer(self.raw, np.uint8)
        starts = np.concatenate([[0], np.flatnonzero(codes == _LINE_FEED) + 1])[:-1]
        if not len(starts):
            return np.zeros(0, np.int64)
        if self._is_filled[codes[starts]].all():
            return np.arange(len(starts)) + self.first_line
        return np.flatnonzero(np.maximum.reduceat(self._is_filled[codes], starts)) + self.first_line


@functools.cache
def _blank_marks(blanks: bytes) -> tuple[npt.NDArray[np.uint8], re.Pattern[bytes]]:
    """For each byte whether a line with it is not blank, and a pattern of blank lines between two line feeds."""
    is_filled = np.ones(256, np.uint8)
    is_filled[list(blanks + b"\n")] = 0
    return is_filled, re.compile(rb"\n[%b\n]*\n" % re.escape(blanks))


def line_blocks(stream: Any, first_line: int = 1, blanks: bytes = BLANKS) -> Iterator[LineBlock]:
    """The lines of a stream from its position on, in blocks of about BLOCK_BYTES; a block of blank lines is empty.

    first_line: the number of the line at that position. blanks: as `LineBlock` has them.
    """
    line_number = first_line
    pending: list[bytes] = []  # the beginning of a line; dropped when it is too long
    pending_bytes = 0
    at_end = False
    while not at_end:
        data = stream.read(BLOCK_BYTES)
        at_end = not data
        end = len(data) if at_end else data.rfind(b"\n") + 1
        if not end and not at_end:
            pending_bytes += len(data)
            if pending_bytes <= MAX_LINE_BYTES:
                pending.append(data)
            else:
                pending.clear()
            continue
        first_end = data.find(b"\n") if end else 0
        too_long: tuple[int, ...] = ()
        if pending_bytes + first_end > MAX_LINE_BYTES:
            too_long = (line_number,)
            lines = data[first_end:end]
        else:
            lines = b"".join([*pending, data[:end]])
        if lines or too_long:
            yield LineBlock(b"" if _is_blank(lines, blanks) else lines, line_number, too_long, blanks)
            line_number += int(np.count_nonzero(np.frombuffer(lines, np.uint8) == _LINE_FEED))
        pending = [data[end:]]
        pending_bytes = len(data) - end


def _is_blank(lines: bytes, blanks: bytes) -> bool:
    blanks += b"\n"
    return not lines[:4096].translate(None, blanks) and not lines.translate(None, blanks)


@contextlib.contextmanager
def open_text(
    path: str, stored: StoredFile | None, span: tuple[int, int] | None = None, ahead: int = SEQUENTIAL_BYTES
) -> Iterator[tuple[Any, Any]]:
    """A stream of the lines of a file, or of those that begin in a span of one that is not packed; and the file itself,
    of which less is read. It is unpacked if it ends in ``.gz``. Raises EventFileError for a fault of the store.

    ahead: how much of a stored file is fetched at once.
    """
    source = None if stored is None else open_stored(stored, ahead=_AHEAD_BYTES if span else ahead)
    file = open_by_arrow(path) if source is None else pa.PythonFile(source, mode="r")
    try:
        with faults_of_store(path, source):
            if is_packed(path):
                yield pa.CompressedInputStream(file, "gzip"), file
            else:
                yield _LinesOfSpan(file, *span) if span else file, file
    finally:
        with contextlib.suppress(OSError, pa.ArrowException):
            file.close()


def read_text(
    chunk: LogChunk,
    format_name: str,
    blocks_of: Callable[[Any], Iterator[T]],
    read: Callable[[T, int], ReadBlock],
) -> Iterator[ReadBlock]:
    """The lines of a chunk. blocks_of: cuts a stream into blocks; read: a block, and its share of the bytes."""
    shares, rows_read, begin = ByteShares(chunk.bytes), 0, chunk.span[0] if chunk.span else 0
    try:
        with open_text(chunk.path, chunk.stored, chunk.span) as (stream, file):
            for lines in blocks_of(stream):
                block = read(lines, shares.up_to(file.tell() - begin))
                if begin and block.rejected:  # whose positions are counted from the first line of the span
                    before = line_ends_before(chunk.path, chunk.stored, stream.begin)
                    moved = [
                        part._replace(positions=compact(as_array(part.positions) + before)) for part in block.rejected
                    ]
                    block = dataclasses.replace(block, rejected=tuple(moved))
                yield block
                rows_read += block.rows
    except (pa.ArrowException, OSError):
        raise damaged_error(chunk.path, format_name, None if chunk.span else rows_read) from None
    yield ReadBlock(empty_batch(), (), 0, shares.rest())


def is_packed(path: str) -> bool:
    """Whether a text file is compressed, by its name."""
    return path.lower().endswith(".gz")


class ByteShares:
    """Divides the bytes of a chunk among its blocks. The shares sum to exactly all of them."""

    def __init__(self, total: int) -> None:
        self._total, self._given = total, 0

    def up_to(self, bytes_read: int) -> int:
        """The share of a block; ``bytes_read`` bytes of the file are read after it."""
        share = max(0, min(bytes_read, self._total) - self._given)
        self._given += share
        return share

    def rest(self) -> int:
        """The share of the last block."""
        return self.up_to(self._total)


def read_head(path: str, stored: StoredFile | None = None) -> tuple[bytes, bool]:
    """The first HEAD_BYTES bytes, and whether that is the whole file."""
    with open_text(path, stored, ahead=HEAD_BYTES + 1) as (stream, _):
        head: bytes = stream.read(HEAD_BYTES)
        is_whole = len(head) < HEAD_BYTES or not stream.read(1)
    return head, is_whole


def cut_chunk(chunk: LogChunk, parts: int) -> list[LogChunk]:
    """A file that is not packed in about so many parts, of 4 to 64 MB."""
    parts = max(min(parts, chunk.bytes // _LEAST_BYTES), -(-chunk.bytes // _MOST_BYTES))
    if parts < 2 or is_packed(chunk.path):
        return [chunk]
    ends = [chunk.bytes * number // parts for number in range(parts + 1)]
    return [dataclasses.replace(chunk, bytes=end - begin, span=(begin, end)) for begin, end in itertools.pairwise(ends)]


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


def is_utf8(text: bytes) -> bool:
    try:
        return text.isascii() or text.decode() is not None
    except UnicodeDecodeError:
        return False
