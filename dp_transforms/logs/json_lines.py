"""JSON lines: one object a line, and each line is decoded by itself.

A line is broken if it is not a JSON object, holds NaN or an infinity, or nests deeper than MAX_DEPTH. Of a field that
stands there twice the last value counts. A byte order mark at the front of any line is ignored: a file may be several
that were joined, and which of its lines comes first must not matter. Blank lines are not events. Positions in a file
are numbers of lines.

Only the fields of events are decoded, and first as the bytes that stand for them: whether these are UTF-8, or a time,
is the same question as in the other formats.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.logs import id_columns, text_files, times
from dp_transforms.logs.event_ids import WRONG_TYPE
from dp_transforms.logs.id_columns import Columns, IdColumn
from dp_transforms.logs.log_chunk import EventFields, EventFileError, LogChunk, ReadBlock, log_size
from dp_transforms.logs.text_files import BLANKS, UTF8_MARK, Lines
from dp_transforms.logs.times import MICROS_PER_UNIT, TimeColumn
from dp_transforms.stores.remote_files import StoredFile

MAX_DEPTH = 200  # far below the depth at which the decoder, whose caller may be deep in calls, gives up

_NO_CELL = msgspec.Raw()
_encode_lines = msgspec.json.Encoder().encode_lines
_REFUSED = (msgspec.MsgspecError, RecursionError)
_AT_ONCE = 512  # lines; measured: the objects of more of them do not stay in the caches
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WHOLE_NUMBER = "^-?[0-9]+$"
# An escaped backslash, a pair of surrogates, or a surrogate alone, which only the last one captures.
_LONE_SURROGATE = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


class JsonDecoder:
    """Lines -> columns of events."""

    def __init__(self, fields: EventFields) -> None:
        self._reading, self._names = fields.time_reading, fields.names
        cells = [
            (f"cell{at}", msgspec.Raw, msgspec.field(name=name, default=_NO_CELL))
            for at, name in enumerate(fields.names)
        ]
        try:
            self._decode = msgspec.json.Decoder(msgspec.defstruct("Event", cells, gc=False)).decode
        except ValueError:
            names = " or ".join(map(repr, fields.names))
            raise EventFileError("JSON lines", f"no name of {names} may have a quote or a backslash in it.") from None
        self._getters = [operator.attrgetter(f"cell{at}") for at in range(len(cells))]

    def decode(self, lines: Lines) -> tuple[Columns, npt.NDArray[np.bool_]]:
        """The columns of the lines that are not broken, and for each line whether it is not."""
        kept = np.ones(len(lines.ends), np.bool_)
        cells: list[list[bytes]] = [[] for _ in self._names]
        cuts = np.append(0, lines.ends[_AT_ONCE - 1 :: _AT_ONCE] + 1).tolist()
        for number, (begin, end) in enumerate(itertools.pairwise([*cuts, len(lines.text)])):
            texts = lines.text[begin:end].split(b"\n")[:-1]
            events = self._decode_some(texts, kept[number * _AT_ONCE :])
            for parts, get in zip(cells, self._getters, strict=True):
                parts.append(_encode_lines(map(get, events)))
        user, item, time, *more = (_column(b"".join(parts)) for parts in cells)
        items = id_columns.join_items([id_column(each) for each in (item, *more)])
        return Columns(id_column(user), items, time_column(time, *self._reading)), kept

    def _decode_some(self, lines: Sequence[bytes], kept: npt.NDArray[np.bool_]) -> list[msgspec.Struct]:
        """kept: is set to False for the lines that are broken."""
        if max(map(len, lines), default=0) > 2 * MAX_DEPTH:
            lines = [b"" if is_too_deep(line) else line for line in lines]
        events: list[msgspec.Struct] = []
        rest, broken = iter(lines), 0
        while len(events) + broken < len(lines):
            try:
                events.extend(map(self._decode, rest))
            except _REFUSED:  # at the first line that is not among the events
                at = len(events) + broken
                event = self._decode_oddly(lines[at])
                if event is None:
                    kept[at], broken = False, broken + 1
                else:
                    events.append(event)
        return events

    def _decode_oddly(self, line: bytes) -> msgspec.Struct | None:
        """None: it is broken. A byte order mark before it is no part of it. Half a pair of surrogates, as of a text
        that was cut, is JSON, but no text: in its place comes a byte that is not UTF-8, a fault of its cell alone."""
        line = line.strip(BLANKS).removeprefix(UTF8_MARK)
        with contextlib.suppress(*_REFUSED):
            return self._decode(_LONE_SURROGATE.sub(lambda found: b"\xff" if found[1] else found[0], line))
        return None


def is_too_deep(line: bytes) -> bool:
    """Whether an object nests deeper than MAX_DEPTH."""
    if line.count(b"{") + line.count(b"[") <= MAX_DEPTH:
        return False
    brackets = np.frombuffer(_STRING.sub(b"", line), np.uint8) | 0x20
    steps = (brackets == ord("{")).astype(np.int8) - (brackets == ord("}"))
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0)) > MAX_DEPTH


def _column(cells: bytes) -> pa.BinaryArray:
    """cells: each with a line feed behind it, which no value of a line holds; so has each of the column."""
    ends = np.flatnonzero(np.frombuffer(cells, np.uint8) == ord("\n")).astype(np.int32) + np.int32(1)
    buffers = [None, pa.py_buffer(np.append(np.int32(0), ends)), pa.py_buffer(cells)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(ends), buffers)


def _kinds(cells: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BooleanArray]:
    """Values of JSON, of which texts are as the other formats have them; and which of them are texts."""
    are_texts, texts = pc.starts_with(cells, '"'), pc.binary_slice(cells, 1, -2)
    if are_texts.true_count < len(cells):
        texts = pc.if_else(are_texts, texts, pc.binary_slice(cells, 0, -1))
    if not len(texts) or not np.any(np.frombuffer(texts.buffers()[2], np.uint8) == ord("\\")):
        return texts, are_texts
    escaped = pc.and_(are_texts, pc.match_substring(texts, "\\"))
    plain = pa.array([_unescaped(value) for value in cells.filter(escaped).to_pylist()], pa.binary())
    return pc.replace_with_mask(texts, escaped, plain), are_texts


def _unescaped(value: bytes) -> bytes:
    try:
        return msgspec.json.decode(value, type=str).encode()
    except msgspec.MsgspecError:  # it is not UTF-8, and stays so
        return value[1:-2]


def id_column(cells: pa.BinaryArray) -> IdColumn:
    """Ids from values of JSON: texts and whole numbers."""
    values, are_texts = _kinds(cells)
    if are_texts.true_count == len(cells):
        return id_columns.encode_ids(values)
    are_ids = pc.or_(are_texts, pc.match_substring_regex(values, _WHOLE_NUMBER))
    texts = pc.if_else(pc.and_not(pc.equal(values, b"-0"), are_texts), b"0", values)
    return _with_faults(id_columns.encode_ids(pc.if_else(are_ids, texts, None)), values, are_ids)


def time_column(cells: pa.BinaryArray, unit: str | None, time_format: str | None, time_zone: str | None) -> TimeColumn:
    """Times from values of JSON. Numbers are read as texts of the same digits are, if a unit of them is declared."""
    values, are_texts = _kinds(cells)
    if are_texts.true_count == len(cells):
        return times.parse_times(values, unit, time_format, time_zone)
    are_times = pc.or_(are_texts, pc.match_substring_regex(values, times.NUMBER))
    texts = values if unit in MICROS_PER_UNIT else pc.if_else(are_texts, values, b"?")
    column = times.parse_times(pc.if_else(are_times, texts, None), unit, time_format, time_zone)
    return _with_faults(column, values, are_times)


_Column = TypeVar("_Column", IdColumn, TimeColumn)


def _with_faults(column: _Column, values: pa.BinaryArray, are_read: pa.BooleanArray) -> _Column:
    """With the fault of values of another type, where they are not missing."""
    are_missing = pc.is_in(values, pa.array([b"null", b""]))
    column.faults[pc.invert(pc.or_(are_read, are_missing)).to_numpy(zero_copy_only=False)] = WRONG_TYPE
    return column


def find_chunks(path: str, fields: EventFields, stored: StoredFile | None = None) -> list[LogChunk]:
    """The file as one chunk. It is not opened: an error must not depend on its lines, which are users'."""
    JsonDecoder(fields)  # raises EventFileError for names that it cannot find
    return [LogChunk(path, "json", None, None, log_size(path, stored), stored=stored)]


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The lines, in blocks of about 4 MB."""
    decoder = JsonDecoder(fields)

    def read(lines: Lines) -> ReadBlock:
        columns, is_kept = decoder.decode(lines)
        broken = {id_columns.BROKEN_LINE: np.flatnonzero(~is_kept)}
        return text_files.block_of_lines(chunk.path, lines, columns, np.flatnonzero(is_kept), broken)

    return text_files.read_text(chunk, "gzip", read)
