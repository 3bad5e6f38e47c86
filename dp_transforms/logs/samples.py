"""Some rows of a log, whatever its fields are called: for a look at it before anybody has named them.

Of a file are read its schema and at most some thousand rows, at its beginning and, where that needs not all before it,
at its end. So a look takes constant memory, and a few ranges of a stored file, however large it is.

A sample holds cells. It is for the operator's eyes, and nothing of it may decide what a run publishes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dp_transforms.logs import id_columns
from dp_transforms.logs.discovery import find_log_files, format_of_log, module_of_format
from dp_transforms.logs.log_chunk import EventFields, EventFileError, damaged_error, log_size
from dp_transforms.monitor.event_ids import is_uuid_type
from dp_transforms.stores.remote_files import RemoteFileError, StoredFile

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
