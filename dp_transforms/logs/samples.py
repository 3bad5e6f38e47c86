"""Some rows of a log, whatever its fields are called: for a look at it before anybody has named them.

Of a file are read its schema and at most some thousand rows, at its beginning and, where that needs not all before it,
at its end. So a look takes constant memory, and a few ranges of a stored file, however large it is.

A sample holds cells. It is for the operator's eyes, and nothing of it may decide what a run publishes.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dp_transforms.logs import id_columns, times
from dp_transforms.logs.avro import column_of, decode_one_by_one, read_avro_header
from dp_transforms.logs.avro_schema import Branch, RecordSchema, id_type, record_schema, time_type
from dp_transforms.logs.csv_lines import RowParser, delimiter_of, likely_separator, read_names
from dp_transforms.logs.csv_rows import row_of_each_line, rows_over_lines
from dp_transforms.logs.discovery import find_log_files, format_of_log
from dp_transforms.logs.json_lines import Integer, LineParser, problem_of_head, stripped_lines
from dp_transforms.logs.log_chunk import (
    EventFields,
    EventFileError,
    damaged_error,
    faults_of_store,
    log_size,
    open_columns,
    open_log,
)
from dp_transforms.logs.text_files import LineBlock, is_packed, is_utf8, read_head
from dp_transforms.monitor.event_ids import one_chunk
from dp_transforms.stores import avro_container
from dp_transforms.stores.avro_container import DamagedContainerError
from dp_transforms.stores.remote_files import RemoteFileError, StoredFile

SAMPLE_ROWS = 1000
MOST_FIELDS = 200
_MOST_STORED_FIELDS = 40  # whose rows are looked at: each takes some requests
_TAIL_BYTES = 256 << 10
_AHEAD_BYTES = 64 << 10
_FILES_AT_AN_END = 8

TEXT, WHOLE, NUMBER, TIMESTAMP, DATE, OTHER = "text", "whole number", "number", "timestamp", "date", "other"


@dataclasses.dataclass(frozen=True, eq=False)
class FieldSample:
    """One field. kind: TEXT, WHOLE, NUMBER, TIMESTAMP, DATE, or OTHER, which can be no field of an event.

    values: the rows of the sample; None for OTHER, and for some of a stored file with very many fields. bounds: the
    smallest and the largest value of the whole file, if it states them.
    """

    name: str
    kind: str
    values: pa.Array | None
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
        names = schema.names[:MOST_FIELDS]
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
        values = pa.chunked_array(table.column(name)).combine_chunks() if table.num_rows else pa.array([], arrow_type)
        fields.append(FieldSample(name, _kind_of(arrow_type), values, bounds[name]))
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
    records: list[dict[str, Any]] = []
    rows, is_whole, last = 0, True, None
    with open_log(path, stored, _AHEAD_BYTES) as file, faults_of_store(path, file):
        header = read_avro_header(path, file)
        schema = record_schema(path, header.schema)
        for frame in avro_container.iter_frames(file, header):
            rows += frame[0]
            if len(records) < SAMPLE_ROWS:
                found = _first_records(file, header, schema, *frame)
                records += found
                is_whole = is_whole and len(found) == frame[0]
            elif stored is None:
                last, is_whole = frame, False
            else:  # to walk on takes a request for each block
                rows, is_whole = 0, False
                break
        if last is not None:
            records += _first_records(file, header, schema, *last)
    fields = tuple(
        _avro_field(name, [record[key] for record in records], schema.branches[name])
        for name, key in itertools.islice(schema.keys.items(), MOST_FIELDS)
    )
    known = rows if rows or is_whole else None
    sees_end = is_whole or stored is None
    return FileSample(path, "avro", fields, known, len(records), Counter(), is_whole, sees_end=sees_end)


def _first_records(
    file: IO[bytes], header: avro_container.Header, schema: RecordSchema, count: int, begin: int, length: int
) -> list[dict[str, Any]]:
    """Of a block of any size, about what its first megabyte holds."""
    pieces = avro_container.block_pieces(file, header, begin, length)
    try:
        return next(decode_one_by_one(pieces, count, schema, [*schema.keys.values()]), [])[:SAMPLE_ROWS]
    except Exception:  # the decoder may raise anything, and its words may hold bytes of the file
        raise DamagedContainerError from None


def _avro_field(name: str, values: list[Any], branches: list[Branch]) -> FieldSample:
    arrow_type = time_type(branches) or id_type(branches)
    if arrow_type is None:
        return FieldSample(name, OTHER, None if branches else pa.nulls(len(values)))
    return FieldSample(name, _kind_of(arrow_type), column_of(values, arrow_type))


# Text


def _sample_csv(path: str, stored: StoredFile | None, line_ends_in_cells: bool, separator: str | None) -> FileSample:
    head, is_whole = read_head(path, stored)
    separator = separator or likely_separator(path, head)
    delimiter = delimiter_of(path, separator)
    header = read_names(path, head, is_whole, delimiter, line_ends_in_cells)
    if header is None:
        return FileSample(path, "csv", (), 0, 0, Counter(), True)
    is_time = times.parse_values(header.names, None).faults == 0
    if is_time.any() or any(re.fullmatch(times.NUMBER, name) for name in header.names):
        raise EventFileError(path, "its first line looks like an event. Let it begin with the names of its fields.")
    names, broken = header.names[:MOST_FIELDS], Counter[str]()
    parser = RowParser(path, len(header.names), range(len(names)), delimiter)

    def read(text: bytes, *, over_lines: bool) -> pa.Table:
        """Whole rows. Counts what is broken."""
        if over_lines and text:
            # The first block alone: in the second one, the end of the text would count as that of the file.
            rows = next(rows_over_lines(path, io.BytesIO(text), len(text), delimiter.encode(), 1))
        else:
            rows = row_of_each_line(path, LineBlock(text), delimiter.encode())
        columns, kept = parser.read(rows)
        for rejected in rows.rejected:
            broken[rejected.reason] += len(rejected.positions)
        broken[id_columns.WRONG_NUMBER_OF_CELLS] += rows.count - len(kept)
        return pa.Table.from_arrays([column.cast(pa.binary()) for column in columns], names)

    body = LineBlock(head[header.size :]).raw if is_whole else head[header.size : head.rfind(b"\n") + 1]
    rows = read(body, over_lines=line_ends_in_cells)
    is_all, tail = is_whole and len(rows) <= 2 * SAMPLE_ROWS, b""
    if not is_all:
        last = rows
        if not is_whole:
            tail = b"" if line_ends_in_cells else _tail(path, stored)
            last = read(tail, over_lines=False)
        rows = pa.concat_tables([rows[:SAMPLE_ROWS], last[-SAMPLE_ROWS:]])
    fields = [FieldSample(name, TEXT, one_chunk(rows.column(at))) for at, name in enumerate(names)]
    looked_at, not_utf8 = len(rows) + broken.total(), _not_utf8(body.split(b"\n")) + _not_utf8(tail.split(b"\n"))
    known, sees_end = looked_at if is_all else None, is_whole or bool(tail)
    return FileSample(path, "csv", tuple(fields), known, looked_at, +broken, is_all, separator, not_utf8, sees_end)


def _not_utf8(lines: Iterable[bytes]) -> int:
    """How many of these lines are not UTF-8."""
    return sum(not is_utf8(line) for line in lines)


def _sample_json(path: str, stored: StoredFile | None) -> FileSample:
    head, is_whole = read_head(path, stored)
    if problem := problem_of_head(head):
        raise EventFileError(path, problem)
    lines = stripped_lines(LineBlock(head if is_whole else head[: head.rfind(b"\n") + 1]))
    is_all = is_whole and len(lines) <= 2 * SAMPLE_ROWS
    if not is_all:
        last = lines if is_whole else stripped_lines(LineBlock(_tail(path, stored)))
        lines = lines[:SAMPLE_ROWS] + last[-SAMPLE_ROWS:]
    parser = LineParser(EventFields())
    events = [event for event in map(parser.parse, lines) if event is not None]
    broken = Counter({id_columns.BROKEN_LINE: len(lines) - len(events)})
    counted = Counter(name for event in events for name in itertools.islice(event, MOST_FIELDS))
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
