"""JSON lines: one object per line. Arrow reads plain lines together; an odd line and its neighbours one by one.

Both ways return the same events and reject the same lines (tests/unit/test_event_files_json.py compares them), so what
is accepted does not depend on where a block begins or on what else is in it. A line is broken if it is not a
JSON object, holds NaN or an infinity, repeats one of the three fields, nests deeper than MAX_DEPTH or holds more than
MAX_VALUES. A byte order mark at the front of any line is ignored: a file may be several that were joined, and which
of its lines comes first must not matter. Blank lines are not events. Positions in a file are numbers of lines.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

from dp_transforms.logs import id_columns, text_files, times
from dp_transforms.logs.id_columns import Columns
from dp_transforms.logs.log_chunk import EventFields, LogChunk, ReadBlock, damaged_error, log_size
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.text_files import BLANKS, UTF8_MARK, ByteShares, LineBlock, line_blocks
from dp_transforms.monitor.event_ids import WRONG_TYPE, one_chunk
from dp_transforms.stores.remote_files import StoredFile

MAX_DEPTH = 200  # far below the depth at which Python's parser fails
LOOKED_AT_LINES = 100
MAX_VALUES = 500_000  # counted as commas outside of texts: each value can become hundreds of bytes of Python's
_BLOCK_BYTES = 4 << 20  # a broken line of 2 bytes takes 100 in memory; larger blocks are not faster
_ARROW_BLOCK_BYTES = 1 << 20
_JSON_BLANKS = b" \t\r\n"

_NOT_JSON_NUMBER = re.compile(rb"[:,\[\s]-?(?:NaN|Inf)")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_EXACT_IN_FLOAT = 2.0**53

_Rows = npt.NDArray[np.int64]

# So few lines, unless they are long, are faster one by one than in a call of Arrow's reader.
_FEW_LINES, _FEW_BYTES = 50, 1 << 14
_SPLIT = 8
_SMALL_SPAN = 128  # lines: if one of them is odd, up to so many are read one by one
# After so many failed calls of Arrow's reader in one block, the rest is read line by line. This limits the cost of
# hostile lines.
_MAX_FAILED_SPANS = 100


@dataclasses.dataclass(frozen=True, eq=False)
class DecodedLines:
    """n lines, decoded.

    columns: user, item and time of the lines that are not broken. kept: their numbers, from 0. broken: those of the
    others. schema: the types that the fields had, for `decode_lines` of what follows; None: not known.
    """

    columns: Columns
    kept: _Rows
    broken: _Rows
    schema: pa.Schema | None


def decode_lines(block: LineBlock, fields: EventFields, schema: pa.Schema | None = None) -> DecodedLines:
    """The columns of the lines that are not blank. schema: that of other lines saves time, and changes no result."""
    read = _Spans(block, fields, schema)
    kept = np.concatenate(read.kept)
    is_broken = np.ones(read.count, np.bool_)
    is_broken[kept] = False
    return DecodedLines(id_columns.join_columns(read.parts), kept, np.flatnonzero(is_broken), read.schema)


class _Spans:
    """Reads lines by Arrow; if some line is odd, in smaller and smaller parts, and the smallest line by line.

    parts, kept: columns, and the numbers of the lines that they hold. count: of all lines. schema: one that fitted
    lines, if any did.
    """

    def __init__(self, block: LineBlock, fields: EventFields, schema: pa.Schema | None) -> None:
        self._fields, self.schema = fields, schema
        self._failed = 0
        self.parts: list[Columns] = []
        self.kept: list[_Rows] = []
        whole = _Lines(block)
        self.count = whole.count
        are_many = whole.count >= _FEW_LINES or len(whole.text) >= _FEW_BYTES
        if whole.is_plain and are_many and self._read_whole(whole):
            return
        self._lines = stripped_lines(block)
        self.count = len(self._lines)
        if self.count >= _FEW_LINES:
            self.schema = self._guess_schema() or schema
        self._read(0, self.count, is_known_odd=True)

    def _read_whole(self, lines: _Lines) -> bool:
        if self.schema is not None and self._read_fast(0, lines):
            return True
        guess = guess_schema(io.BytesIO(lines.text), self._fields)
        if guess is None or guess == self.schema:
            return False
        self.schema = guess
        return self._read_fast(0, lines)

    def _guess_schema(self) -> pa.Schema | None:
        """From the first lines; from later ones if an odd line is among the first."""
        step = max(1, self.count // _SPLIT)
        guesses = (
            guess_schema(itertools.islice(self._lines, begin, None), self._fields)
            for begin in range(0, self.count, step)
        )
        return next((guess for guess in guesses if guess is not None), None)

    def _read(self, begin: int, end: int, *, is_known_odd: bool = False) -> None:
        if self.schema is None or end - begin < _FEW_LINES or self._failed > _MAX_FAILED_SPANS:
            self._read_slowly(begin, end)
        elif is_known_odd or not self._read_span(begin, end):
            step = max(_SMALL_SPAN, -(-(end - begin) // _SPLIT))
            if step >= end - begin:
                self._read_slowly(begin, end)
                return
            for at in range(begin, end, step):
                self._read(at, min(at + step, end))

    def _read_span(self, begin: int, end: int) -> bool:
        lines = _Lines(LineBlock(b"\n".join(self._lines[begin:end])), are_stripped=True)
        if lines.is_plain and lines.count == end - begin:
            return self._read_fast(begin, lines)
        self._failed += 1
        return False

    def _read_fast(self, begin: int, lines: _Lines) -> bool:
        part = _read_fast(lines, self.schema, self._fields)
        if part is None:
            self._failed += 1
            return False
        self.parts.append(part)
        self.kept.append(np.arange(begin, begin + lines.count))
        return True

    def _read_slowly(self, begin: int, end: int) -> None:
        part, kept = read_one_by_one(self._lines[begin:end], self._fields)
        self.parts.append(part)
        self.kept.append(kept + begin)


def stripped_lines(block: LineBlock) -> list[bytes]:
    """The lines that are not blank, without blanks around them."""
    return [line for line in (line.strip(BLANKS) for line in block.filled_text().split(b"\n")) if line]


def join_line(line: bytes, fields: EventFields) -> bytes | None:
    """Writes an object of several lines on one line; None if it is broken."""
    if LineParser(fields).parse(line) is None:
        return None
    # No text in a valid object holds a line end: they are all between its parts.
    return line.replace(b"\n", b" ")


class _Lines:
    """A block of lines.

    text: its lines without blank ones and, if Arrow needs that, without blanks and marks before them.
    is_plain: Arrow may read it. count: how many lines it has, if it is plain.
    """

    def __init__(self, block: LineBlock, *, are_stripped: bool = False) -> None:
        self.text = block.raw
        self.count = 0
        self.is_plain = self._check_plain()
        if not self.is_plain and not are_stripped:
            self.text = b"".join(line.removeprefix(UTF8_MARK) + b"\n" for line in stripped_lines(block))
            self.is_plain = self._check_plain()

    def _check_plain(self) -> bool:
        """Whether each line begins with ``{``, ends with ``}``, is not nested deeply and holds no NaN.

        JSON needs a comma between a ``}`` and a ``{``, except at the top level. So no object can run over a line end,
        and if there are as many objects as lines, each line is one object.
        """
        text = self.text
        if not text:
            return True
        if not (text.startswith(b"{") and text.endswith((b"}\n", b"}\r\n"))):
            return False
        codes = np.frombuffer(text, np.uint8)
        feeds = np.flatnonzero(codes == ord("\n"))
        lines = len(feeds)
        if text.count(b"}\n{") + text.count(b"}\r\n{") != lines - 1:
            return False
        self.count = lines
        if (b"NaN" in text or b"Inf" in text) and _NOT_JSON_NUMBER.search(text):
            return False
        sizes = np.diff(feeds, prepend=-1)
        for line in np.flatnonzero(sizes > MAX_VALUES).tolist():
            if text.count(b",", feeds[line] - sizes[line] + 1, feeds[line]) > MAX_VALUES:
                return False
        is_opening = (codes | 0x20) == ord("{")
        if np.count_nonzero(is_opening) - lines < MAX_DEPTH:
            return True
        opened = np.searchsorted(np.flatnonzero(is_opening), feeds)
        return bool(np.diff(opened, prepend=0).max() <= MAX_DEPTH)


def _read_fast(lines: _Lines, schema: pa.Schema | None, fields: EventFields) -> Columns | None:
    """The columns of plain lines, by Arrow; None if they must be read line by line."""
    if schema is None or not lines.count:
        return None
    try:
        table = pa.json.read_json(
            pa.BufferReader(lines.text),
            # Measured: twice as fast as one piece, because of the caches. Not larger than the text, since each call
            # makes buffers of this size. A longer line is read alone.
            read_options=pa.json.ReadOptions(
                use_threads=False, block_size=min(_ARROW_BLOCK_BYTES, len(lines.text) + 1)
            ),
            parse_options=pa.json.ParseOptions(
                explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="ignore"
            ),
        ).combine_chunks()
    except (pa.ArrowException, ValueError):
        return None
    if table.num_rows != lines.count:
        return None
    user, item, time = (one_chunk(table.column(name)) for name in fields.names)
    time_column = times.parse_times(time, *fields.time_reading)
    if pa.types.is_floating(time.type):
        # Whole numbers beyond 2**53 have lost digits on the way through a float.
        largest = max(np.abs(time.fill_null(0.0).to_numpy()).max(), np.abs(time_column.micros).max())
        if not largest < _EXACT_IN_FLOAT:
            return None
    return id_columns.encode_ids(user), id_columns.encode_ids(item), time_column


def guess_schema(lines: Iterable[bytes], fields: EventFields) -> pa.Schema | None:
    """The types of the three fields in the first lines; None if a field has several or a line is broken."""
    parser = LineParser(fields)
    kinds: dict[str, set[type]] = {name: set() for name in fields.names}
    for line in itertools.islice(lines, LOOKED_AT_LINES):
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


def read_one_by_one(lines: list[bytes], fields: EventFields) -> tuple[Columns, _Rows]:
    """The columns of the lines that are not broken, read line by line; the numbers of these lines."""
    parser = LineParser(fields)
    kept = []
    cells: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for number, line in enumerate(lines):
        event = parser.parse(line)  # it does not stay: one line may hold millions of values
        if event is not None:
            kept.append(number)
            for values, name in zip(cells, fields.names, strict=True):
                values.append(event.get(name))
    moments = times.parse_values([_time_value(value) for value in cells[2]], *fields.time_reading)
    return (_id_column(cells[0]), _id_column(cells[1]), moments), np.array(kept, np.int64)


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
        """The object of a line; None if the line is broken."""
        line = line.removeprefix(UTF8_MARK).strip(_JSON_BLANKS)
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


def problem_of_head(head: bytes) -> str | None:
    """Why a file that begins so holds no lines of JSON: UTF-16, or one array of objects. For the operator."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or 3 * head.count(0) > len(head):
        return "it looks like UTF-16 text. Convert it to UTF-8."
    if re.match(rb"\s*\[\s*(?:\{|$)", head.removeprefix(UTF8_MARK)[:1024]):
        return "it is a JSON array. Write one object per line: jq -c '.[]' OLD.json > NEW.jsonl"
    return None


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The lines, in blocks of about 4 MB."""
    shares = ByteShares(chunk.bytes)
    lines_read = 0
    schema = None
    try:
        with text_files.open_text(chunk) as text:
            for block in line_blocks(text.stream, _BLOCK_BYTES):
                lines_read = block.first_line - 1
                read = decode_lines(block, fields, schema)
                schema = read.schema
                yield text.number(_read_block(chunk.path, block, read, shares.up_to(text.bytes_read())))
    except (pa.ArrowException, OSError):
        raise damaged_error(chunk.path, "gzip", None if chunk.span else lines_read) from None
    yield ReadBlock(id_columns.empty_batch(), (), 0, shares.rest())


def _read_block(path: str, block: LineBlock, read: DecodedLines, byte_share: int) -> ReadBlock:
    unparsed = [*block.rejected(path)]
    if len(read.broken):
        broken = block.numbers()[read.broken]
        unparsed.append(RejectedEvents(path, tuple(broken.tolist()), id_columns.BROKEN_LINE))
    return id_columns.assemble_block(
        path, read.columns, lambda rows: block.numbers()[read.kept[rows]], byte_share, unparsed
    )
