"""Some rows of a log, whatever its fields are called: for a look at it before anybody has named them.

Of a file are read its schema and at most some thousand rows, at its beginning and, where that needs not all before it,
at its end. So a look takes constant memory, and a few ranges of a stored file, however large it is.

A sample holds cells. It is for the operator's eyes, and nothing of it may decide what a run publishes.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from dp_transforms.logs import id_columns, times
from dp_transforms.logs.avro import read_avro_header
from dp_transforms.logs.csv_lines import delimiter_of, likely_separator, read_names
from dp_transforms.logs.csv_rows import row_of_each_line
from dp_transforms.logs.discovery import find_log_files, format_of_log
from dp_transforms.logs.json_lines import Integer, LineParser, problem_of_head
from dp_transforms.logs.log_chunk import (
    EventFields,
    EventFileError,
    damaged_error,
    faults_of_store,
    log_size,
    open_columns,
    open_log,
)
from dp_transforms.logs.text_files import BLANKS, LineBlock, is_packed, read_head
from dp_transforms.stores import avro_container
from dp_transforms.stores.avro_container import DamagedContainerError
from dp_transforms.stores.remote_files import RemoteFileError, StoredFile

SAMPLE_ROWS = 1000
_MOST_FIELDS = 200
_MOST_STORED_FIELDS = 40  # whose rows are looked at: each takes some requests
_TAIL_BYTES = 256 << 10
_BLOCK_BYTES = 1 << 20
_AHEAD_BYTES = 64 << 10
_FILES_AT_AN_END = 8

TEXT, WHOLE, NUMBER, TIMESTAMP, DATE, OTHER = "text", "whole number", "number", "timestamp", "date", "other"


@dataclasses.dataclass(frozen=True, eq=False)
class FieldSample:
    """One field. kind: TEXT, WHOLE, NUMBER, TIMESTAMP, DATE, or OTHER, which can be no field of an event.

    values: the rows of the sample; None for OTHER, and for some of a stored file with very many fields. zone: of
    timestamps, None if they have none. bounds: the smallest and the largest value of the whole file, if it states them.
    """

    name: str
    kind: str
    values: pa.Array | None
    zone: str | None = None
    bounds: tuple[Any, Any] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class FileSample:
    """One file. rows: how many it has, None if it does not say. looked_at: how many rows the sample has, with those
    that are broken, by reason. is_whole: whether these are all. separator: of the cells of CSV, None for
    the usual one of its ending. not_utf8: how many lines are not UTF-8. sees_end: whether rows at the end are in the
    sample."""

    path: str
    format: str
    fields: tuple[FieldSample, ...]
    rows: int | None
    looked_at: int
    broken: Counter[str]
    is_whole: bool
    separator: str | None = None
    not_utf8: int = 0
    sees_end: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class LogSample:
    """Some files of a log, the first and the last ones by name. files, size: of the whole log, in bytes. faults: why
    files could not be looked at."""

    samples: tuple[FileSample, ...]
    faults: tuple[EventFileError, ...]
    files: int
    size: int


def sample_log(
    sources: Sequence[str], *, csv_line_ends_in_cells: bool = False, csv_separator: str | None = None
) -> LogSample:
    """A look at the logs among ``sources`` (as in `find_log_chunks`). Raises EventFileError if there are none.

    csv_separator: None: of each CSV file the likely one.
    """
    first: list[tuple[str, StoredFile | None]] = []
    last: list[tuple[str, StoredFile | None]] = []
    files = size = 0
    for path, stored in find_log_files(sources):
        files, size = files + 1, size + log_size(path, stored)
        if files <= _FILES_AT_AN_END:
            first.append((path, stored))
        else:
            last = [*last[-_FILES_AT_AN_END + 1 :], (path, stored)]
    samples, faults = [], []
    for path, stored in [*first, *last]:
        try:
            samples.append(sample_file(path, stored, csv_line_ends_in_cells, csv_separator))
        except EventFileError as error:
            faults.append(error)
        except RemoteFileError as error:
            faults.append(EventFileError(path, f"it cannot be read: {error.strerror}."))
    return LogSample(tuple(samples), tuple(faults), files, size)


def sample_file(
    path: str,
    stored: StoredFile | None = None,
    csv_line_ends_in_cells: bool = False,
    csv_separator: str | None = None,
) -> FileSample:
    """A look at one file. Raises EventFileError if it cannot be read."""
    file_format = format_of_log(path)
    try:
        if file_format == "parquet":
            return _sample_parquet(path, stored)
        if file_format == "avro":
            return _sample_avro(path, stored)
        if file_format == "csv":
            return _sample_csv(path, stored, csv_line_ends_in_cells, csv_separator)
        return _sample_json(path, stored)
    except EventFileError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, EOFError):
        name = {"parquet": "Parquet", "avro": "Avro", "csv": "CSV", "json": "JSON lines"}[file_format]
        raise damaged_error(path, name) from None


# Parquet


def _sample_parquet(path: str, stored: StoredFile | None) -> FileSample:
    source = open_columns(path, stored)
    with faults_of_store(path, source):
        metadata = pq.read_metadata(source)
        schema = metadata.schema.to_arrow_schema()
        names = schema.names[:_MOST_FIELDS]
        flat = [name for name in names if schema.names.count(name) == 1 and _kind_of(schema.field(name).type) != OTHER]
        looked_at = flat if stored is None else flat[:_MOST_STORED_FIELDS]
        filled = [group for group in range(metadata.num_row_groups) if metadata.row_group(group).num_rows]
        parts = []
        for group in dict.fromkeys([*filled[:1], *(filled[-1:] if stored is None else [])]):
            # A buffer: else whole column chunks are fetched for their first rows.
            file = pq.ParquetFile(source, metadata=metadata, buffer_size=_AHEAD_BYTES, pre_buffer=False)
            parts += list(itertools.islice(file.iter_batches(SAMPLE_ROWS, row_groups=[group], columns=looked_at), 1))
        table = pa.Table.from_batches(parts) if parts else schema.empty_table().select(looked_at)
        bounds = {name: _stated_bounds(metadata, filled, name, schema) for name in flat}
    fields = []
    for name in names:
        arrow_type = schema.field(name).type
        if name not in looked_at:
            fields.append(FieldSample(name, _kind_of(arrow_type) if name in flat else OTHER, None))
            continue
        zone = arrow_type.tz if pa.types.is_timestamp(arrow_type) else None
        values = pa.chunked_array(table.column(name)).combine_chunks() if table.num_rows else pa.array([], arrow_type)
        fields.append(FieldSample(name, _kind_of(arrow_type), values, zone, bounds[name]))
    rows = int(metadata.num_rows)
    is_all = rows == table.num_rows
    return FileSample(
        path, "parquet", tuple(fields), rows, table.num_rows, Counter(), is_all, sees_end=is_all or stored is None
    )


def _stated_bounds(
    metadata: pq.FileMetaData, groups: Sequence[int], name: str, schema: pa.Schema
) -> tuple[Any, Any] | None:
    """Of times and numbers, as Python has them; texts may be cut, and are in the order of their letters."""
    if _kind_of(schema.field(name).type) not in (TIMESTAMP, DATE, WHOLE, NUMBER):
        return None
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if name not in paths:
        return None
    at = paths.index(name)
    stated = [metadata.row_group(group).column(at).statistics for group in groups]
    if not stated or not all(each is not None and each.has_min_max for each in stated):
        return None
    return min(each.min for each in stated), max(each.max for each in stated)


def _kind_of(arrow_type: pa.DataType) -> str:
    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if id_columns.is_text_type(arrow_type):
        return TEXT
    for kind, is_kind in (
        (WHOLE, pa.types.is_integer),
        (NUMBER, pa.types.is_floating),
        (TIMESTAMP, pa.types.is_timestamp),
        (DATE, pa.types.is_date),
    ):
        if is_kind(arrow_type):
            return kind
    return OTHER


# Avro


def _sample_avro(path: str, stored: StoredFile | None) -> FileSample:
    with open_log(path, stored, _AHEAD_BYTES) as file, faults_of_store(path, file):
        header = read_avro_header(path, file)
        schema = fastavro.parse_schema(json.loads(header.schema))
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise EventFileError(path, "its schema is not a record with fields. Write one record for each event.")
        records: list[dict[str, Any]] = []
        rows, is_whole, last = 0, True, None
        for frame in avro_container.iter_frames(file, header):
            rows += frame[0]
            if len(records) < SAMPLE_ROWS:
                found, is_all = _first_records(file, header, schema, *frame)
                records += found
                is_whole = is_whole and is_all
            elif stored is None:
                last, is_whole = frame, False
            else:  # to walk on takes a request for each block
                rows, is_whole = 0, False
                break
        if last is not None:
            records += _first_records(file, header, schema, *last)[0]
    names = [str(field["name"]) for field in schema["fields"]][:_MOST_FIELDS]
    fields = tuple(_field_of_values(name, [record.get(name) for record in records]) for name in names)
    known = rows if rows or is_whole else None
    sees_end = is_whole or stored is None
    return FileSample(path, "avro", fields, known, len(records), Counter(), is_whole, sees_end=sees_end)


def _first_records(
    file: Any, header: avro_container.Header, schema: Any, count: int, begin: int, length: int
) -> tuple[list[dict[str, Any]], bool]:
    """Of a block of any size, what its first megabyte holds; and whether that is all of it."""
    data, pieces = b"", avro_container.block_pieces(file, header, begin, length)
    for piece in pieces:
        data += piece
        if len(data) >= _BLOCK_BYTES:
            break
    stream, records = io.BytesIO(data), []
    for _ in range(min(count, SAMPLE_ROWS)):
        try:
            records.append(fastavro.schemaless_reader(stream, schema, None))
        except Exception:  # of any kind: the record is cut, or damaged
            if len(data) < _BLOCK_BYTES:
                raise DamagedContainerError from None
            return records, False
    return records, len(records) == count


# Text


def _sample_csv(path: str, stored: StoredFile | None, line_ends_in_cells: bool, separator: str | None) -> FileSample:
    head, is_whole = read_head(path, stored)
    separator = separator or likely_separator(path, head)
    delimiter = delimiter_of(path, separator)
    header = read_names(path, head, is_whole, delimiter, line_ends_in_cells)
    if header is None:
        return FileSample(path, "csv", (), 0, 0, Counter(), True)
    if any(re.fullmatch(times.NUMBER, name) or times.iso_micros(name) is not None for name in header.names):
        raise EventFileError(path, "its first line looks like an event. Let it begin with the names of its fields.")
    body = head[header.size :]
    if not is_whole:
        body = body[: body.rfind(b"\n") + 1]
    broken: Counter[str] = Counter()
    not_utf8 = _not_utf8(body.split(b"\n"))
    rows = _csv_rows(path, body, len(header.names), line_ends_in_cells, delimiter, broken)
    is_all, tail = is_whole and len(rows) <= 2 * SAMPLE_ROWS, b""
    if not is_all:
        last = rows[-SAMPLE_ROWS:]
        if not is_whole:
            tail = b"" if line_ends_in_cells else _tail(path, stored)
            not_utf8 += _not_utf8(tail.split(b"\n"))
            last = _csv_rows(path, tail, len(header.names), False, delimiter, broken)
        rows = rows[:SAMPLE_ROWS] + last[-SAMPLE_ROWS:]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(header.names)
    fields = [
        FieldSample(name, TEXT, pa.array([cell.encode("utf-8", "replace") for cell in cells], pa.binary()))
        for name, cells in zip(header.names[:_MOST_FIELDS], columns, strict=False)
    ]
    looked_at = len(rows) + broken.total()
    known = looked_at if is_all else None
    sees_end = is_whole or bool(tail)
    return FileSample(path, "csv", tuple(fields), known, looked_at, broken, is_all, separator, not_utf8, sees_end)


def _not_utf8(lines: Iterable[bytes]) -> int:
    """How many of these lines are not UTF-8."""
    return sum(line.decode("utf-8", "ignore").encode() != line for line in lines if not line.isascii())


def _csv_rows(
    path: str, text: bytes, width: int, line_ends_in_cells: bool, delimiter: str, broken: Counter[str]
) -> list[list[str]]:
    """broken: gets the reasons of lines that are not rows of this width."""
    if not line_ends_in_cells:
        block = row_of_each_line(path, LineBlock(text), delimiter.encode())
        for rejected in block.rejected:
            broken[rejected.reason] += len(rejected.positions)
        text = block.text
    decoded = io.StringIO(text.decode("utf-8", "replace").replace("\0", "?"), newline="")
    rows = []
    try:
        for row in csv.reader(decoded, delimiter=delimiter):
            if len(row) == width:
                rows.append(row)
            elif row:
                broken[id_columns.WRONG_NUMBER_OF_CELLS] += 1
    except csv.Error:
        broken["row that cannot be separated into cells"] += 1
    return rows


def _sample_json(path: str, stored: StoredFile | None) -> FileSample:
    head, is_whole = read_head(path, stored)
    if problem := problem_of_head(head):
        raise EventFileError(path, problem)
    if not is_whole:
        head = head[: head.rfind(b"\n") + 1]
    lines = [line.strip(BLANKS) for line in head.split(b"\n")]
    lines = [line for line in lines if line]
    is_all = is_whole and len(lines) <= 2 * SAMPLE_ROWS
    if not is_all:
        last = lines if is_whole else [line for line in map(bytes.strip, _tail(path, stored).split(b"\n")) if line]
        lines = lines[:SAMPLE_ROWS] + last[-SAMPLE_ROWS:]
    parser, broken = LineParser(EventFields()), Counter[str]()
    events = [event for event in map(parser.parse, lines) if event is not None]
    broken[id_columns.BROKEN_LINE] += len(lines) - len(events)
    counted = Counter(name for event in events for name in itertools.islice(event, _MOST_FIELDS))
    # What only some lines have is no field of an event, and may be a cell: objects can be keyed by user.
    names = [name for name, count in counted.items() if 2 * count >= len(events)]
    fields = tuple(_field_of_values(name, [event.get(name) for event in events]) for name in names)
    known, sees_end, not_utf8 = len(lines) if is_all else None, is_whole or not is_packed(path), _not_utf8(lines)
    return FileSample(path, "json", fields, known, len(lines), +broken, is_all, None, not_utf8, sees_end)


def _tail(path: str, stored: StoredFile | None) -> bytes:
    """Whole lines at the end of a file that is larger than its head; nothing of a compressed one."""
    if is_packed(path):
        return b""
    with open_log(path, stored, _TAIL_BYTES) as file, faults_of_store(path, file):
        file.seek(max(0, log_size(path, stored) - _TAIL_BYTES), os.SEEK_SET)
        data = file.read(_TAIL_BYTES)
    return data[data.find(b"\n") + 1 :]


def _field_of_values(name: str, values: Iterable[Any]) -> FieldSample:
    """A field of values as Python has them; OTHER if they are of several kinds."""
    cells = list(values)
    kinds = {_kind_of_value(cell) for cell in cells if cell is not None}
    kind = kinds.pop() if len(kinds) == 1 else NUMBER if kinds == {WHOLE, NUMBER} else OTHER
    if kind == OTHER:
        return FieldSample(name, OTHER, None if any(cell is not None for cell in cells) else pa.nulls(len(cells)))
    zones = {cell.tzinfo is not None for cell in cells if isinstance(cell, datetime.datetime)}
    arrow_type = {TEXT: pa.binary(), WHOLE: pa.int64(), NUMBER: pa.float64(), DATE: pa.date32()}.get(
        kind, pa.timestamp("us", "UTC" if zones == {True} else None)
    )
    array = pa.array([None if cell is None else _arrow_cell(cell, kind) for cell in cells], arrow_type)
    return FieldSample(name, kind, array, "UTC" if zones == {True} else None)


def _kind_of_value(cell: Any) -> str:
    if isinstance(cell, (bool, list, dict, tuple)):
        return OTHER
    for kind, types in (
        (WHOLE, (int, Integer)),
        (TEXT, (str, bytes)),
        (NUMBER, float),
        (TIMESTAMP, datetime.datetime),
        (DATE, datetime.date),
    ):
        if isinstance(cell, types):
            return kind
    return OTHER


def _arrow_cell(cell: Any, kind: str) -> Any:
    if kind == TEXT:
        return cell if isinstance(cell, bytes) else cell.encode("utf-8", "surrogatepass")
    if kind == WHOLE:
        return max(-(2**63), min(int(cell) if len(str(cell)) < 20 else 2**63 - 1, 2**63 - 1))
    return float(cell) if kind == NUMBER else cell
