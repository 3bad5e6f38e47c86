"""JSON lines: one object a line. Each line is decoded by itself, so no line changes what another one is.

A line is broken if it is not a JSON object, holds NaN or an infinity, repeats one of the fields of events, or nests
deeper than MAX_DEPTH. A byte order mark at the front of any line is ignored: a file may be several that were joined,
and which of its lines comes first must not matter. Blank lines are not events. Positions in a file are numbers of
lines.

Only the fields of events are decoded, and first as the bytes that stand for them: whether these are UTF-8, or a time,
is the same question as in the other formats.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.logs import id_columns, text_files, times
from dp_transforms.logs.event_ids import WRONG_TYPE
from dp_transforms.logs.id_columns import Columns, IdColumn
from dp_transforms.logs.log_chunk import EventFields, LogChunk, ReadBlock, log_size
from dp_transforms.logs.rejected_events import Rows, rows_beside
from dp_transforms.logs.text_files import (
    BLANKS,
    UTF8_MARK,
    LineBlock,
    line_blocks,
)
from dp_transforms.logs.times import MICROS_PER_UNIT, TimeColumn
from dp_transforms.stores.remote_files import StoredFile

MAX_DEPTH = 200  # far below the depth at which the decoder, whose caller may be deep in calls, gives up

_NO_CELL = msgspec.Raw()
_REFUSED = (msgspec.MsgspecError, RecursionError)
_AT_ONCE = 1024  # lines; measured: the objects of more of them do not stay in the caches
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WHOLE_NUMBER = "^-?[0-9]+$"
# An escaped backslash, a pair of surrogates, or a surrogate alone, which only the last one captures.
_LONE_SURROGATE = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


class _Name:
    """The name of a field of one object. Two names are never equal, so that a decoder keeps both."""

    def __init__(self, text: str) -> None:
        self.text = text


class JsonDecoder:
    """Lines -> columns of events."""

    def __init__(self, fields: EventFields) -> None:
        self._reading, self._names = fields.time_reading, fields.names
        self._decode, self._escaped = self._decoder()
        self._getters = [operator.attrgetter(f"cell{at}") for at in range(len(fields.names))]
        self._quoted = [f'"{name}"'.encode() for name in fields.names]
        self._pairs = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=lambda _, text: _Name(text)).decode

    def _decoder(self) -> tuple[Callable[[bytes], msgspec.Struct], re.Pattern[bytes]]:
        """From a line to the cells of the fields; and what a line holds in which one of the names may be escaped."""
        cells = [
            (f"cell{at}", msgspec.Raw, msgspec.field(name=name, default=_NO_CELL))
            for at, name in enumerate(self._names)
        ]
        try:
            event = msgspec.defstruct("Event", cells, gc=False)
        except ValueError:  # a name with a quote, a backslash or a control character, which are always escaped
            event = msgspec.defstruct("Event", [cell[:2] for cell in cells], gc=False)
            of_all = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
            return lambda line: event(*map(of_all(line).get, self._names, [_NO_CELL] * len(cells))), re.compile(b"")
        names = "".join(self._names)
        escaped = (rb"\\u00[0-7]" if names.isascii() else rb"\\u") + (rb"|\\/" if "/" in names else b"")
        return msgspec.json.Decoder(event).decode, re.compile(escaped)

    def decode(self, lines: Sequence[bytes]) -> tuple[Columns, Rows]:
        """The columns of the lines that are not broken, and the numbers of these, from 0."""
        kept, decode = list[int](), self._decode
        cells: list[list[bytes]] = [[] for _ in self._names]
        for begin in range(0, len(lines), _AT_ONCE):
            events = []
            for number, line in enumerate(lines[begin : begin + _AT_ONCE], begin):
                try:
                    event = decode(line) if len(line) <= 2 * MAX_DEPTH or not is_too_deep(line) else None
                except _REFUSED:
                    event = self._decode_odd(line)
                if event is not None:
                    events.append(event)
                    kept.append(number)
            for parts, get in zip(cells, self._getters, strict=True):
                parts += [b"\0".join(map(get, events)), b"\0"] if events else []
        columns = [_column(b"".join(parts)) for parts in cells]
        rows = np.array(kept, np.int64)
        if self._may_repeat([lines[row] for row in kept] if len(kept) < len(lines) else lines, columns):
            once = np.array([at for at, row in enumerate(kept) if not self._repeats(lines[row])], np.int64)
            columns, rows = [column.take(pa.array(once)) for column in columns], rows[once]
        user, item, time, *more = columns
        moments = time_column(time, *self._reading)
        return Columns(id_column(user), id_column(item), moments, tuple(map(id_column, more))), rows

    def _decode_odd(self, line: bytes) -> msgspec.Struct | None:
        """Of a line that the decoder refuses; None: it is broken. A byte order mark before it is no part of it. Half a
        pair of surrogates, as of a text that was cut, is JSON, but no text: in its place comes a byte that is not
        UTF-8, which is a fault of its cell alone."""
        line = line.strip(BLANKS).removeprefix(UTF8_MARK)
        try:
            return self._decode(_LONE_SURROGATE.sub(lambda found: b"\xff" if found[1] else found[0], line))
        except _REFUSED:
            return None

    def _may_repeat(self, lines: Sequence[bytes], cells: Sequence[pa.BinaryArray]) -> bool:
        """Whether an object may have one of the fields twice, of which the decoder keeps the last without a word. None
        has if each name stands there as often as there are lines, and each line has the field."""
        text = b"\n".join(lines)
        if self._escaped.search(text) or any(text.count(name) != len(lines) for name in self._quoted):
            return True
        return any(pc.min(pc.binary_length(column)).as_py() == 0 for column in cells)

    def _repeats(self, line: bytes) -> bool:
        if not self._escaped.search(line) and all(line.count(name) < 2 for name in self._quoted):
            return False
        # Bytes that are not UTF-8, and lone surrogates, matter in the cells of events alone.
        line = _LONE_SURROGATE.sub(lambda found: b"?" if found[1] else found[0], line.strip(BLANKS))
        found = Counter(name.text for name in self._pairs(line.removeprefix(UTF8_MARK).decode("utf-8", "replace")))
        return any(found[name] > 1 for name in self._names)


def is_too_deep(line: bytes) -> bool:
    """Whether an object nests deeper than MAX_DEPTH."""
    if line.count(b"{") + line.count(b"[") <= MAX_DEPTH:
        return False
    brackets = np.frombuffer(_STRING.sub(b"", line), np.uint8) | 0x20
    steps = (brackets == ord("{")).astype(np.int8) - (brackets == ord("}"))
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0)) > MAX_DEPTH


def _column(cells: bytes) -> pa.BinaryArray:
    """cells: each with a NUL behind it, which no value of JSON holds."""
    ends = np.flatnonzero(np.frombuffer(cells, np.uint8) == 0).astype(np.int32) + np.int32(1)
    buffers = [None, pa.py_buffer(np.append(np.int32(0), ends)), pa.py_buffer(cells)]
    return pc.binary_slice(pa.BinaryArray.from_buffers(pa.binary(), len(ends), buffers), 0, -1)


def _kinds(cells: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BooleanArray]:
    """Values of JSON, of which texts are as the other formats have them; and which of them are texts."""
    are_texts = pc.starts_with(cells, '"')
    texts = pc.if_else(are_texts, pc.binary_slice(cells, 1, -1), cells)
    escaped = pc.and_(are_texts, pc.match_substring(texts, "\\"))
    if escaped.true_count:
        rows = pc.indices_nonzero(escaped)
        plain = pa.array([_unescaped(value) for value in cells.take(rows).to_pylist()], pa.binary())
        texts = pc.replace_with_mask(texts, escaped, plain)
    return texts, are_texts


def _unescaped(value: bytes) -> bytes:
    try:
        return msgspec.json.decode(value, type=str).encode()
    except msgspec.MsgspecError:  # it is not UTF-8, and stays so
        return value[1:-1]


def id_column(cells: pa.BinaryArray) -> IdColumn:
    """Ids from values of JSON: texts and whole numbers."""
    texts, are_ids = _kinds(cells)
    if are_ids.true_count == len(cells):
        return id_columns.encode_ids(texts)
    texts = pc.if_else(pc.equal(cells, b"-0"), b"0", texts)
    are_ids = pc.or_(are_ids, pc.match_substring_regex(cells, _WHOLE_NUMBER))
    return _with_faults(id_columns.encode_ids(pc.if_else(are_ids, texts, None)), cells, are_ids)


def time_column(cells: pa.BinaryArray, unit: str | None, time_format: str | None, time_zone: str | None) -> TimeColumn:
    """Times from values of JSON. Numbers are read as texts of the same digits are, if a unit of them is declared."""
    texts, are_times = _kinds(cells)
    if are_times.true_count == len(cells):
        return times.parse_times(texts, unit, time_format, time_zone)
    texts = texts if unit in MICROS_PER_UNIT else pc.if_else(are_times, texts, b"?")
    are_times = pc.or_(are_times, pc.match_substring_regex(cells, times.NUMBER))
    column = times.parse_times(pc.if_else(are_times, texts, None), unit, time_format, time_zone)
    return _with_faults(column, cells, are_times)


_Column = TypeVar("_Column", IdColumn, TimeColumn)


def _with_faults(column: _Column, cells: pa.BinaryArray, are_read: pa.BooleanArray) -> _Column:
    """With the fault of values of another type, where they are not missing."""
    are_missing = pc.is_in(cells, pa.array([b"null", b""]))
    column.faults[pc.invert(pc.or_(are_read, are_missing)).to_numpy(zero_copy_only=False)] = WRONG_TYPE
    return column


def find_chunks(path: str, fields: EventFields, stored: StoredFile | None = None) -> list[LogChunk]:
    """The file as one chunk. It is not opened: an error must not depend on its lines, which are users'."""
    del fields
    return [LogChunk(path, "json", None, None, log_size(path, stored), stored=stored)]


def cut_chunk(chunk: LogChunk, parts: int) -> list[LogChunk]:
    """At ends of lines, unless the file is packed: each line is an event, or not, by itself."""
    return text_files.cut_chunk(chunk, parts)


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The lines, in blocks of about 4 MB."""
    decoder = JsonDecoder(fields)

    def read(block: LineBlock, byte_share: int) -> ReadBlock:
        lines = _lines(block)
        columns, kept = decoder.decode(lines)
        broken = {id_columns.BROKEN_LINE: rows_beside(kept, len(lines))}
        return id_columns.block_of(
            chunk.path,
            columns,
            kept,
            broken,
            lambda rows: block.numbers()[rows],
            byte_share,
            block.rejected(chunk.path),
        )

    return text_files.read_text(chunk, "gzip", line_blocks, read)


def _lines(block: LineBlock) -> list[bytes]:
    """Those that are not blank."""
    return block.filled_text().split(b"\n")[:-1]
