"""What the first rows of a log say: how large it is, why most of it may be rejected, in which unit its times count.

And whether it has an event in a range, which may take all of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.checks import on_one_line
from dp_transforms.core.event_batch import is_uuid_type
from dp_transforms.logs import id_columns, times
from dp_transforms.logs.discovery import cut_chunks, find_log_files, format_of_log, module_of_format, read_log_chunk
from dp_transforms.logs.log_chunk import (
    EventFields,
    EventFileError,
    LogChunk,
    ReadBlock,
    damaged_error,
    log_size,
    time_unit_error,
)
from dp_transforms.logs.text_files import NOT_UTF8_TEXT
from dp_transforms.logs.times import MICROS_PER_UNIT
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.stores.remote_files import RemoteFileError, StoredFile

# Some rows of a log, whatever its fields are called: for a look at it before anybody has named them.
#
# Of a file are read its schema and at most some thousand rows, at its beginning and, where that needs not all before
# it, at its end. So a look takes constant memory, and a few ranges of a stored file, however large it is.
#
# A sample holds cells. It is for the operator's eyes, and nothing of it may decide what a run publishes.

SAMPLE_ROWS = 1000
MOST_FIELDS = 200
AHEAD_BYTES = 64 << 10  # of a stored file whose rows are few
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


def sample_log(sources: Sequence[str], csv_separator: str | None = None) -> LogSample:
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
    fields = EventFields(csv_separator=csv_separator)
    samples, faults = [], []
    for path, stored in [*first, *last]:
        try:
            samples.append(sample_file(path, stored, fields))
        except EventFileError as error:
            faults.append(error)
        except RemoteFileError as error:
            faults.append(EventFileError(path, f"it cannot be read: {error.strerror}."))
    return LogSample(tuple(samples), tuple(faults), files, size)


def sample_file(path: str, stored: StoredFile | None = None, fields: EventFields | None = None) -> FileSample:
    """A look at one file. Raises EventFileError if it cannot be read. fields: how CSV is read; without a separator by
    the likely one."""
    file_format = format_of_log(path)
    try:
        sample: FileSample = module_of_format(file_format).sample(path, fields or EventFields(), stored)
    except EventFileError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, EOFError):
        name = {"parquet": "Parquet", "avro": "Avro", "csv": "CSV", "json": "JSON lines"}[file_format]
        raise damaged_error(path, name) from None
    return sample


def kind_of(arrow_type: pa.DataType) -> str:
    """Of a field of this type."""
    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if id_columns.is_text_type(arrow_type) or is_uuid_type(arrow_type):
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


_SHORT_LABEL = 32  # bytes; the cost of an event includes such labels
_GROUPS_OF_WINDOWS = 128
_LOOKED_AT_BLOCKS = 16
_MOST_UNPACKED = 1032  # bytes that deflate makes of one
_PROBES = 32  # places of a log at which an event inside a range is looked for first


@dataclasses.dataclass(frozen=True)
class LogEstimate:
    """events: about how many. long_label_bytes: about how many bytes of long item labels they carry."""

    events: int
    long_label_bytes: int


def estimate_log(chunks: Sequence[LogChunk], fields: EventFields) -> LogEstimate:
    """Reads the first block of the largest chunk of each format. Raises EventFileError if it cannot be read."""
    events = long_label_bytes = 0.0
    for file_format in sorted({chunk.format for chunk in chunks}):
        alike = [chunk for chunk in chunks if chunk.format == file_format]
        size = sum(chunk.bytes for chunk in alike)
        block = _first_rows(max(alike, key=lambda chunk: chunk.bytes), fields)
        if block is None:
            continue
        rows = [chunk.events for chunk in alike if chunk.events is not None]
        count = sum(rows) if len(rows) == len(alike) else size * block.rows / max(1, block.bytes)
        events += count
        long_label_bytes += count * _long_label_bytes(block) / block.rows
        del block
    pa.default_memory_pool().release_unused()  # a process that reads no more would keep what a block took
    return LogEstimate(int(events), int(long_label_bytes))


def hint_of_log(chunks: Sequence[LogChunk], fields: EventFields) -> str | None:
    """A reason why most of a log may be rejected, found in the first file of each text format; None: not known.

    Only for the operator, and never a reason to reject anything, since it depends on the rows of some users. It holds
    no cell.
    """
    for file_format in ("csv", "json"):
        first = next((chunk for chunk in chunks if chunk.format == file_format), None)
        if first is None:
            continue
        try:
            problem = _problem_of(sample_file(first.path, first.stored, fields), fields)
        except EventFileError as error:
            return str(error)
        if problem:
            return problem
    return None


def _problem_of(sample: FileSample, fields: EventFields) -> str | None:
    where, is_json = on_one_line(sample.path), sample.format == "json"
    if is_json and sample.broken.total() == sample.looked_at > 0:
        problem = f"none of {sample.looked_at} lines that were looked at is a JSON object"
        return f"{where}: {problem}. Write one object per line."
    found = {field.name: field for field in sample.fields}
    for name in fields.names if is_json and sample.looked_at else ():
        if name not in found:
            return f"{where}: hardly one of its lines has a field {name!r}. Name it with {fields.flag(name)}."
    if sample.not_utf8:
        return f"{where}: {NOT_UTF8_TEXT}"
    moments = found.get(fields.time)
    if moments is not None and fields.time_unit not in MICROS_PER_UNIT and _are_numbers(moments, fields):
        return str(time_unit_error(sample.path, fields))
    return None


def _are_numbers(moments: FieldSample, fields: EventFields) -> bool:
    """Whether times are numbers, or most of them texts of numbers where no form of texts is declared."""
    if moments.kind in (WHOLE, NUMBER):
        return moments.values is not None and moments.values.null_count < len(moments.values)
    if moments.kind != TEXT or fields.time_format is not None:
        return False
    cells = [cell for cell in moments.values.drop_null().to_pylist() if cell] if moments.values is not None else []
    return 2 * sum(re.match(times.NUMBER.encode(), cell) is not None for cell in cells) > len(cells)


def unit_hint(chunks: Sequence[LogChunk], fields: EventFields) -> str | None:
    """Words on another unit, if with it the first rows are of 1990 to 2100, and are not with the declared one; for the
    operator, where nearly no row of a run was read or was in its range."""
    declared = fields.time_unit
    if declared not in MICROS_PER_UNIT or not chunks:
        return None
    for unit in (declared, *(unit for unit in MICROS_PER_UNIT if unit != declared)):
        try:
            block = _first_rows(chunks[0], dataclasses.replace(fields, time_unit=unit))
        except (EventFileError, OSError):  # it was said already
            return None
        if block is not None and _is_of_our_days(block):
            return None if unit == declared else f"perhaps the unit is {unit}: --time-unit {unit}"
    return None


def _is_of_our_days(block: ReadBlock) -> bool:
    years = block.batch.time_micros.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    return bool(len(years)) and bool(((years >= 1990) & (years < 2100)).sum() > block.rows / 2)


def most_label_bytes(chunks: Sequence[LogChunk]) -> int:
    """What labels may have together, by the sizes of files alone: the first rows say nothing of the last ones."""
    return sum(chunk.bytes * (1 if _is_plain_text(chunk) else _MOST_UNPACKED) for chunk in chunks)


def _is_plain_text(chunk: LogChunk) -> bool:
    return chunk.format in ("csv", "json") and not chunk.path.lower().endswith(".gz")


def count_unless_inside(
    chunks: Sequence[LogChunk], fields: EventFields, schedule: WindowSchedule
) -> tuple[int, int] | None:
    """None if an event is inside the range; else how many events there are, and how many rows that cannot be read. All
    of the log is read only to find that none is. Raises EventFileError."""

    def is_inside(block: ReadBlock) -> bool:
        return bool((schedule.first_window(block.batch.time_micros) >= 0).any())

    places = cut_chunks(chunks, fields, _PROBES)
    for place in places[:: max(1, len(places) // _PROBES)]:
        block = _first_rows(place, fields)
        if block is not None and is_inside(block):
            return None
    events = rejected = 0
    for block in itertools.chain.from_iterable(read_log_chunk(chunk, fields) for chunk in chunks):
        if is_inside(block):
            return None
        events += len(block.batch)
        rejected += block.rows - len(block.batch)
    return events, rejected


def _first_rows(chunk: LogChunk, fields: EventFields) -> ReadBlock | None:
    # Only some blocks: a file may begin with gigabytes of blank lines.
    blocks = itertools.islice(read_log_chunk(chunk, fields), _LOOKED_AT_BLOCKS)
    return next((block for block in blocks if block.rows), None)


def _long_label_bytes(block: ReadBlock) -> float:
    """Counted once for each event of this block, but at most once for each group of windows."""
    excess = np.maximum(0, pc.binary_length(block.batch.item.dictionary).to_numpy(zero_copy_only=False) - _SHORT_LABEL)
    by_event = float(excess[block.batch.item.indices.to_numpy()].sum())
    return min(by_event, float(excess.sum()) * _GROUPS_OF_WINDOWS)
