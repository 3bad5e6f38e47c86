"""What the two text formats share: plain or compressed streams, parts of a file, and blocks of whole lines.

A line ends in a line feed; carriage returns before it belong to the line end. A line of only spaces, tabs and carriage
returns is blank, and is not an event; but where tabs separate cells, one of tabs is a row of empty cells. A line of
more than MAX_LINE_BYTES is left out and reported; the lines after it are read. None of this depends on the position of
a line or on any other line: each line is judged by itself. Memory is a few blocks, whatever a file holds. Many blank
lines in a row cost little more than to unpack them.

So a file that is not packed can be read in parts: the lines that begin in a span of its bytes. Each line begins in
exactly one span, whatever the lines hold. How many lines are before a span is needed for positions of rejected rows
alone: a part that has such rows counts them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_transforms.logs.id_columns import Columns, events_of
from dp_transforms.logs.log_chunk import (
    LogChunk,
    ReadBlock,
    damaged_error,
    opened_log,
)
from dp_transforms.logs.rejected_events import RejectedEvents, Rows, as_array, compact
from dp_transforms.stores.remote_files import SEQUENTIAL_BYTES, StoredFile

MAX_LINE_BYTES = 16 << 20
BLOCK_BYTES = 4 << 20  # a broken line of 2 bytes takes 100 in memory; larger blocks are not faster
UTF8_MARK = b"\xef\xbb\xbf"
BLANKS = b" \t\r"
LINE_TOO_LONG = "line too long"

_AHEAD_BYTES = 1 << 20  # a span ends in the middle of a file: more would be fetched in vain
_PIECE_BYTES = 1 << 16
_COUNTED_BYTES = 4 << 20


class Lines(NamedTuple):
    """n lines of a file, none of them blank.

    text: the lines, each with its line feed. ends: int64[n], where these line feeds are. numbers: int64[n], the places
    of the lines in the file, rising from 1. rejected: lines that were left out.
    """

    text: bytes
    ends: Rows
    numbers: Rows
    rejected: tuple[RejectedEvents, ...] = ()

    def where(self, kept: npt.NDArray[np.bool_]) -> Lines:
        """Some of the lines. kept: bool[n]."""
        sizes = np.diff(self.ends, prepend=-1)
        text = np.frombuffer(self.text, np.uint8)[np.repeat(kept, sizes)].tobytes()
        return self._replace(text=text, ends=np.cumsum(sizes[kept]) - 1, numbers=self.numbers[kept])


def bytes_among(some: bytes) -> npt.NDArray[np.bool_]:
    """For each of the 256 bytes whether it is one of these."""
    are_among = np.zeros(256, np.bool_)
    are_among[list(some)] = True
    return are_among


def lines_of(raw: bytes, first_line: int = 1, blanks: bytes = BLANKS) -> Lines:
    """The lines of a text that are not blank.

    raw: the last line may lack its line feed. first_line: its place in the file. blanks: of what a blank line consists.
    """
    raw = raw if raw.endswith(b"\n") or not raw else raw + b"\n"
    codes = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    lines = Lines(raw, ends, np.arange(first_line, first_line + len(ends)))
    is_filled = ~bytes_among(blanks + b"\n")
    begins = np.append(0, ends + 1)[:-1]
    if is_filled[codes[begins]].all():
        return lines
    return lines.where(np.logical_or.reduceat(is_filled[codes], begins))


def blocks_of_lines(stream: Any, path: str, first_line: int = 1, blanks: bytes = BLANKS) -> Iterator[Lines]:
    """The lines of a stream from its position on that are not blank, in blocks of about BLOCK_BYTES.

    first_line: the number of the line at that position. blanks: as in `lines_of`.
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
        is_too_long = pending_bytes + first_end > MAX_LINE_BYTES
        text = data[first_end:end] if is_too_long else b"".join([*pending, data[:end]])
        # Millions of blank lines cost little more than to unpack them.
        lines = lines_of(text if text.strip(blanks + b"\n") else b"", line_number, blanks)
        if is_too_long:  # it is blank here
            lines = lines._replace(rejected=(RejectedEvents(path, (line_number,), LINE_TOO_LONG),))
        yield lines
        line_number += text.count(b"\n")
        pending = [data[end:]]
        pending_bytes = len(data) - end


@contextlib.contextmanager
def open_text(
    path: str, stored: StoredFile | None, span: tuple[int, int] | None = None, ahead: int = SEQUENTIAL_BYTES
) -> Iterator[Any]:
    """A stream of the lines of a file, or of those that begin in a span of one that is not packed. It is unpacked if it
    ends in ``.gz``. Raises EventFileError for a fault of the store.

    ahead: how much of a stored file is fetched at once.
    """
    with opened_log(path, stored, _AHEAD_BYTES if span else ahead) as file:
        if path.lower().endswith(".gz"):
            yield pa.CompressedInputStream(file, "gzip")
        else:
            yield _LinesOfSpan(file, *span) if span else file


def read_text(
    chunk: LogChunk,
    format_name: str,
    read: Callable[[Lines], ReadBlock],
    *,
    header: tuple[int, int] = (0, 0),
    blanks: bytes = BLANKS,
) -> Iterator[ReadBlock]:
    """The lines of a chunk, as ``read`` reads some. header: bytes and line ends of the file that are no events. blanks:
    as in `lines_of`."""
    size, line_ends = header if chunk.span is None or not chunk.span[0] else (0, 0)
    rows_read, before = 0, None
    try:
        with open_text(chunk.path, chunk.stored, chunk.span) as stream:
            stream.read(size)
            for lines in blocks_of_lines(stream, chunk.path, 1 + line_ends, blanks):
                block = read(lines)
                if chunk.span and chunk.span[0] and block.rejected:  # counted from the first line of the span
                    if before is None:  # once: other threads may count in other files meanwhile
                        before = line_ends_before(chunk.path, chunk.stored, stream.begin)
                    block = _moved(block, before)
                yield block
                rows_read += block.rows
    except (pa.ArrowException, OSError):
        raise damaged_error(chunk.path, format_name, None if chunk.span else rows_read) from None


def _moved(block: ReadBlock, lines: int) -> ReadBlock:
    """With so many lines before it."""
    parts = (part._replace(positions=compact(as_array(part.positions) + lines)) for part in block.rejected)
    return block._replace(rejected=tuple(parts))


def block_of_lines(path: str, lines: Lines, columns: Columns, rows: Rows, broken: Mapping[str, Rows]) -> ReadBlock:
    """columns, rows, broken: of the lines, as in `id_columns.events_of`."""
    block, _ = events_of(path, columns, rows, broken, lines.numbers.take)
    return block._replace(rejected=(*lines.rejected, *block.rejected))


class _LinesOfSpan:
    """A stream of the lines of ``file`` that begin at ``begin`` or later and before ``end``, whole.

    begin: where the first of them begins.
    """

    def __init__(self, file: Any, begin: int, end: int) -> None:
        self.begin, self._end = end, end
        if (first := _line_begin(file, begin, end)) < end:
            self.begin, self._end = first, _line_begin(file, end)
        self._file = file
        file.seek(self.begin)

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(min(size, self._end - self._file.tell()))
        return data


def _line_begin(file: Any, at: int, most: float = math.inf) -> int:
    """Where the first line begins that does not begin before ``at``; from ``most`` on it is not looked for."""
    if not at:
        return 0
    at -= 1  # a line that begins there has its line end before
    file.seek(at)
    while at < most and (data := file.read(_PIECE_BYTES)):
        if found := data.find(b"\n") + 1:
            return at + int(found)
        at += len(data)
    return at


def line_ends_before(path: str, stored: StoredFile | None, position: int) -> int:
    """How many lines of a file end before a position. Raises OSError."""
    count = 0
    with opened_log(path, stored) as file:
        while (left := position - file.tell()) > 0 and (data := file.read(min(_COUNTED_BYTES, left))):
            count += data.count(b"\n")
    return count
