"""JSON lines: one object per line. Arrow reads plain lines together; an odd line and its neighbours one by one.

Both ways return the same events and reject the same lines (tests/unit/test_event_files_json.py compares them), so what
is accepted does not depend on where a block begins or on what else is in it. A line is broken if it is not a
JSON object, holds NaN or an infinity, repeats one of the three fields, nests deeper than MAX_DEPTH or holds more than
MAX_VALUES. A byte order mark at the front of any line is ignored: a file may be several that were joined, and which
of its lines comes first must not matter. Blank lines are not events. Positions in a file are numbers of lines.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.json

from dp_transforms.core.event_batch import one_chunk
from dp_transforms.logs import id_columns, text_files, times
from dp_transforms.logs.estimate import MOST_FIELDS, NUMBER, OTHER, SAMPLE_ROWS, TEXT, WHOLE, FieldSample, FileSample
from dp_transforms.logs.event_ids import WRONG_TYPE
from dp_transforms.logs.id_columns import Columns
from dp_transforms.logs.log_chunk import EventFields, EventFileError, LogChunk, ReadBlock, log_size
from dp_transforms.logs.record_spans import RecordSpans
from dp_transforms.logs.rejected_events import Reasons, Rows
from dp_transforms.logs.text_files import (
    BLANKS,
    UTF8_MARK,
    UTF16_TEXT,
    LineBlock,
    count_not_utf8,
    is_packed,
    line_blocks,
    read_head,
    read_tail,
)
from dp_transforms.stores.remote_files import StoredFile

MAX_DEPTH = 200  # far below the depth at which Python's parser fails
_LOOKED_AT_LINES = 100
MAX_VALUES = 500_000  # counted as commas outside of texts: each value can become hundreds of bytes of Python's
_ARROW_BLOCK_BYTES = 1 << 20
_JSON_BLANKS = b" \t\r\n"

_NOT_JSON_NUMBER = re.compile(rb"[:,\[\s]-?(?:NaN|Inf)")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_EXACT_IN_FLOAT = 2.0**53

# So few lines, unless they are long, are faster one by one than in a call of Arrow's reader.
_FEW_LINES, _FEW_BYTES = 50, 1 << 14
_SMALL_SPAN = 128  # lines: if one of them is odd, up to so many are read one by one
_GUESSES = 8  # places of a block from which its types are guessed


class JsonDecoder:
    """Lines -> columns. It remembers which types the fields had, which saves time and changes no result.

    schema: the types of other lines; None: not known.
    """

    def __init__(self, fields: EventFields, schema: pa.Schema | None = None) -> None:
        self._fields, self._schema = fields, schema

    def decode(self, block: LineBlock) -> tuple[Columns, Rows, int]:
        """The columns of the lines that are not broken; their numbers, from 0, among those that are not blank; and how
        many these are."""
        count = _count_plain(block.raw)
        is_many = count >= _FEW_LINES or len(block.raw) >= _FEW_BYTES
        if is_many and count and self._schema is None:
            first = itertools.islice(io.BytesIO(block.raw), _LOOKED_AT_LINES)
            self._schema = guess_schema(list(first), self._fields)
        columns = self._read_fast(block.raw, count) if is_many else None
        if columns is not None:
            return columns, np.arange(count), count
        lines, tried = stripped_lines(block), self._schema if count else None
        if len(lines) >= _FEW_LINES:
            self._schema = self._guess_schema(lines) or self._schema
        spans = RecordSpans(_FEW_LINES, _SMALL_SPAN)
        is_known_odd = tried is not None and tried == self._schema
        parts = list(spans.decode(lines, self._read_together, self._read_one_by_one, is_known_odd=is_known_odd))
        kept = np.concatenate([rows for rows, _ in parts])
        return id_columns.join_columns([part for _, part in parts]), kept, len(lines)

    def _guess_schema(self, lines: list[bytes]) -> pa.Schema | None:
        """From the first lines; from later ones if an odd line is among the first."""
        begins = range(0, len(lines), max(1, len(lines) // _GUESSES))
        guesses = (guess_schema(lines[begin : begin + _LOOKED_AT_LINES], self._fields) for begin in begins)
        return next((guess for guess in guesses if guess is not None), None)

    def _read_together(self, lines: list[bytes]) -> Columns | None:
        text = b"".join(line + b"\n" for line in lines)
        return self._read_fast(text, len(lines)) if _count_plain(text) == len(lines) else None

    def _read_one_by_one(self, lines: list[bytes]) -> Iterator[tuple[Rows, Columns]]:
        columns, kept = read_one_by_one(lines, self._fields)
        yield kept, columns

    def _read_fast(self, text: bytes, count: int) -> Columns | None:
        return read_fast(text, count, self._schema, self._fields)


def stripped_lines(block: LineBlock) -> list[bytes]:
    """The lines that are not blank, without blanks around them and a byte order mark before them."""
    stripped = (line.strip(BLANKS) for line in block.filled_text().split(b"\n"))
    return [line.removeprefix(UTF8_MARK) for line in stripped if line]


def join_line(value: bytes, fields: EventFields) -> bytes | None:
    """Writes an object of several lines on one line; None if it is broken."""
    if LineParser(fields).parse(value.removeprefix(UTF8_MARK)) is None:
        return None
    # No text in a valid object holds a line end: they are all between its parts.
    return value.replace(b"\n", b" ")


def _count_plain(text: bytes) -> int:
    """How many lines there are, if Arrow may read them; else 0.

    Each must begin with ``{``, end with ``}``, not be nested deeply, and hold no NaN. JSON needs a comma between a
    ``}`` and a ``{``, except at the top level. So no object can run over a line end, and if there are as many objects
    as lines, each line is one object.
    """
    if not (text.startswith(b"{") and text.endswith((b"}\n", b"}\r\n"))):
        return 0
    codes = np.frombuffer(text, np.uint8)
    feeds = np.flatnonzero(codes == ord("\n"))
    lines, inner = len(feeds), feeds[:-1]
    is_after_return = codes[inner - 1] == ord("\r")
    if (codes[inner - 1 - is_after_return] != ord("}")).any() or (codes[inner + 1] != ord("{")).any():
        return 0
    if (b"NaN" in text or b"Inf" in text) and _NOT_JSON_NUMBER.search(text):
        return 0
    sizes = np.diff(feeds, prepend=-1)
    for line in np.flatnonzero(sizes > MAX_VALUES).tolist():
        if text.count(b",", feeds[line] - sizes[line] + 1, feeds[line]) > MAX_VALUES:
            return 0
    if text.count(b"{") + text.count(b"[") - lines < MAX_DEPTH:
        return lines
    opened = np.searchsorted(np.flatnonzero((codes | 0x20) == ord("{")), feeds)
    return lines if np.diff(opened, prepend=0).max() <= MAX_DEPTH else 0


def read_fast(text: bytes, count: int, schema: pa.Schema | None, fields: EventFields) -> Columns | None:
    """The columns of ``count`` plain lines, by Arrow; None if they must be read line by line."""
    if schema is None or not count:
        return None
    try:
        table = pa.json.read_json(
            pa.BufferReader(text),
            # Measured: twice as fast as one piece, because of the caches. Not larger than the text, since each call
            # makes buffers of this size. A longer line is read alone.
            read_options=pa.json.ReadOptions(use_threads=False, block_size=min(_ARROW_BLOCK_BYTES, len(text) + 1)),
            parse_options=pa.json.ParseOptions(
                explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="ignore"
            ),
        ).combine_chunks()
    except (pa.ArrowException, ValueError):
        return None
    if table.num_rows != count:
        return None
    arrays = [one_chunk(table.column(name)) for name in fields.names]
    columns = id_columns.event_columns(arrays, fields)
    if pa.types.is_floating(arrays[2].type):
        # Whole numbers beyond 2**53 have lost digits on the way through a float.
        largest = max(np.abs(arrays[2].fill_null(0.0).to_numpy()).max(), np.abs(columns[2].micros).max())
        if not largest < _EXACT_IN_FLOAT:
            return None
    return columns


def guess_schema(lines: list[bytes], fields: EventFields) -> pa.Schema | None:
    """The types of the fields of events in some lines; None if a field has several or a line is broken."""
    parser = LineParser(fields)
    kinds: dict[str, set[type]] = {name: set() for name in fields.names}
    for line in lines:
        event = parser.parse(line)
        if event is None:
            return None
        for name in fields.names:
            kinds[name].add(type(event.get(name)))
    types = []
    for name in fields.names:
        seen = kinds[name] - {type(None)}
        if seen <= {str}:
            types.append(pa.string())
        elif seen == {Integer}:
            types.append(pa.int64())
        elif name == fields.time and seen <= {Integer, float}:
            types.append(pa.float64())
        else:
            return None
    return pa.schema(list(zip(fields.names, types, strict=True)))


def read_one_by_one(lines: list[bytes], fields: EventFields) -> tuple[Columns, Rows]:
    """The columns of the lines that are not broken, read line by line; the numbers of these lines."""
    parser = LineParser(fields)
    kept = []
    cells: list[list[Any]] = [[] for _ in fields.names]
    for number, line in enumerate(lines):
        event = parser.parse(line)  # it does not stay: one line may hold millions of values
        if event is not None:
            kept.append(number)
            for values, name in zip(cells, fields.names, strict=True):
                values.append(event.get(name))
    moments = times.parse_values([_time_value(value) for value in cells[2]], *fields.time_reading)
    user, item, *more = map(_id_column, [*cells[:2], *cells[3:]])
    return Columns(user, item, moments, tuple(more)), np.array(kept, np.int64)


def _id_column(values: list[Any]) -> id_columns.IdColumn:
    # A lone surrogate, which JSON can express, becomes bytes that are not UTF-8.
    cells = [value.encode("utf-8", "surrogatepass") if isinstance(value, str) else None for value in values]
    column = id_columns.encode_ids(pa.array(cells, pa.binary()))
    is_wrong = np.fromiter((not isinstance(value, (str, type(None))) for value in values), np.bool_, len(values))
    column.faults[is_wrong] = WRONG_TYPE
    return column


def _time_value(value: Any) -> Any:
    """As `times.parse_values` reads it. A whole number that is too large for a time becomes another one that is."""
    if not isinstance(value, Integer):
        return value
    return int(value) if len(value) <= 18 else 2**63 - 1


class Integer(str):
    """The digits of a whole number in JSON, of any length; ``-0`` is ``0``."""

    __slots__ = ()

    def __new__(cls, digits: str) -> Integer:
        return super().__new__(cls, "0" if digits == "-0" else digits)


class _Repeated(dict[str, Any]):
    """An object in which one of the three fields occurs twice."""


class LineParser:
    """Python's parser, made as strict as the format."""

    def __init__(self, fields: EventFields) -> None:
        self._names = fields.names
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_int=Integer, parse_constant=_refuse_constant
        )

    def parse(self, line: bytes) -> dict[str, Any] | None:
        """The object of a line, which has no mark before it; None if the line is broken."""
        line = line.strip(_JSON_BLANKS)
        if not (line.startswith(b"{") and line.endswith(b"}")):
            return None  # before any other work: a small file can hold very many such lines
        commas = line.count(b",")
        if commas > MAX_VALUES and commas - sum(text[0].count(b",") for text in _STRING.finditer(line)) > MAX_VALUES:
            return None
        if line.count(b"{") + line.count(b"[") > MAX_DEPTH and _depth(line) > MAX_DEPTH:
            return None
        try:
            # Bytes that are not UTF-8 matter only in the three fields, where they are a fault of the cell.
            event = self._decoder.decode(line.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            return None
        return event if isinstance(event, dict) and not isinstance(event, _Repeated) else None

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        event = dict(pairs)
        if len(event) < len(pairs) and any(sum(key == name for key, _ in pairs) > 1 for name in self._names):
            return _Repeated(event)
        return event


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError("not JSON")


def _depth(line: bytes) -> int:
    brackets = np.frombuffer(_STRING.sub(b"", line), np.uint8)
    steps = ((brackets | 0x20) == ord("{")).astype(np.int64) - ((brackets | 0x20) == ord("}"))
    return int(np.cumsum(steps).max(initial=0))


def find_chunks(path: str, fields: EventFields, stored: StoredFile | None = None) -> list[LogChunk]:
    """The file as one chunk. It is not opened: an error must not depend on its lines, which are users'."""
    del fields
    return [LogChunk(path, "json", None, None, log_size(path, stored), stored=stored)]


def cut_chunk(chunk: LogChunk, fields: EventFields, parts: int) -> list[LogChunk]:
    """At ends of lines, unless the file is packed: each line is an event, or not, by itself."""
    del fields
    return text_files.cut_chunk(chunk, parts)


def _problem_of_head(head: bytes) -> str | None:
    """Why a file that begins so holds no lines of JSON: UTF-16, or one array of objects. For the operator."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or 3 * head.count(0) > len(head):
        return f"it looks like {UTF16_TEXT}"
    if re.match(rb"\s*\[\s*(?:\{|$)", head.removeprefix(UTF8_MARK)[:1024]):
        return "it is a JSON array. Write one object per line: jq -c '.[]' OLD.json > NEW.jsonl"
    return None


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The lines, in blocks of about 4 MB."""
    decoder = JsonDecoder(fields)
    return text_files.read_text(
        chunk,
        "gzip",
        line_blocks,
        lambda block, byte_share: _read_block(chunk.path, block, decoder, byte_share),
    )


def _read_block(path: str, block: LineBlock, decoder: JsonDecoder, byte_share: int) -> ReadBlock:
    columns, kept, count = decoder.decode(block)
    reasons = Reasons(count)
    reasons.add_others(id_columns.BROKEN_LINE, kept)
    return id_columns.block_of(
        path, columns, kept, reasons, lambda rows: block.numbers()[rows], byte_share, block.rejected(path)
    )


def sample(path: str, fields: EventFields, stored: StoredFile | None) -> FileSample:
    """See `logs.estimate`."""
    head, is_whole = read_head(path, stored)
    if problem := _problem_of_head(head):
        raise EventFileError(path, problem)
    lines = stripped_lines(LineBlock(head if is_whole else head[: head.rfind(b"\n") + 1]))
    is_all = is_whole and len(lines) <= 2 * SAMPLE_ROWS
    if not is_all:
        last = lines if is_whole else stripped_lines(LineBlock(read_tail(path, stored)))
        lines = lines[:SAMPLE_ROWS] + last[-SAMPLE_ROWS:]
    parser = LineParser(fields)
    events = [event for event in map(parser.parse, lines) if event is not None]
    broken = Counter({id_columns.BROKEN_LINE: len(lines) - len(events)})
    counted = Counter(name for event in events for name in itertools.islice(event, MOST_FIELDS))
    # What only some lines have is no field of an event, and may be a cell: objects can be keyed by user.
    names = [name for name, count in counted.items() if 2 * count >= len(events)]
    found = tuple(_field_of_values(name, [event.get(name) for event in events]) for name in names)
    known, sees_end, not_utf8 = len(lines) if is_all else None, is_whole or not is_packed(path), count_not_utf8(lines)
    return FileSample(path, "json", found, known, len(lines), +broken, is_all, None, not_utf8, sees_end)


def _field_of_values(name: str, values: list[Any]) -> FieldSample:
    """A field of values as the parser has them; OTHER if they are of several kinds."""
    kinds = {_kind_of_value(value) for value in values if value is not None}
    kind = kinds.pop() if len(kinds) == 1 else NUMBER if kinds == {WHOLE, NUMBER} else OTHER
    if kind == OTHER:
        return FieldSample(name, OTHER, pa.nulls(len(values)) if all(value is None for value in values) else None)
    arrow_type = {TEXT: pa.binary(), WHOLE: pa.int64(), NUMBER: pa.float64()}[kind]
    return FieldSample(name, kind, pa.array([_arrow_cell(value, kind) for value in values], arrow_type))


def _arrow_cell(value: Any, kind: str) -> Any:
    if value is None or kind == NUMBER:
        return None if value is None else float(value)
    if kind == TEXT:
        return value.encode("utf-8", "surrogatepass")
    return max(-(2**63), min(int(value) if len(value) < 20 else 2**63 - 1, 2**63 - 1))


def _kind_of_value(value: Any) -> str:
    kinds = ((WHOLE, Integer), (TEXT, str), (NUMBER, float))
    return next((kind for kind, cell_type in kinds if isinstance(value, cell_type)), OTHER)
