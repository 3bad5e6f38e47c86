"""Parquet logs: one chunk per row group. Only the columns of events are read, small ones as dictionaries."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dp_transforms.logs import id_columns
from dp_transforms.logs.event_ids import is_text_type
from dp_transforms.logs.log_chunk import (
    MAX_BLOCK_ROWS,
    EventFields,
    EventFileError,
    LogChunk,
    ReadBlock,
    check_fields_present,
    damaged_error,
    log_size,
    opened_log,
)
from dp_transforms.stores.remote_files import StoredFile

_DICTIONARY_BYTES_PER_ROW = 6
_FOOTER_BYTES = 64 << 10  # what Arrow reads of a file first
_BLOCK_BYTES = 16 << 20  # unpacked; checking and hashing takes several times as much
_UNPACKED_BYTES = 2 * _BLOCK_BYTES  # if each row had the longest text of a dictionary
_BUFFER_BYTES = 8 << 20  # of a column, read at once: Arrow else reads a row group's before its first row
_FAULTS = (pa.ArrowException, OSError, ValueError, KeyError, IndexError)


def find_chunks(path: str, fields: EventFields, stored: StoredFile | None = None) -> list[LogChunk]:
    """The row groups that have rows. Raises EventFileError if the schema cannot be used."""
    try:
        metadata, schema = _footer(path, stored)
    except EventFileError:
        raise
    except _FAULTS:
        raise damaged_error(path, "Parquet") from None
    check_fields_present(path, schema.names, fields, has_schema=True)
    types = [schema.field(name).type for name in fields.names]
    id_columns.check_event_types(path, types, [str(each)[:80] for each in types], fields)
    heads = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    rows = [head.num_rows for head in heads]
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:  # Arrow's own sums wrap around
        raise damaged_error(path, "Parquet")
    size, first, chunks = log_size(path, stored), 0, []
    for group, (count, head) in enumerate(zip(rows, heads, strict=True)):
        if count:
            share = size * (first + count) // metadata.num_rows - size * first // metadata.num_rows
            unpacked = head.total_byte_size
            chunks.append(LogChunk(path, "parquet", group, count, share, first, stored, unpacked=unpacked))
            first += count
    return chunks


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The row group, in slices of at most MAX_BLOCK_ROWS rows and about 16 MB."""
    assert chunk.group is not None
    rows_read = 0
    try:
        with opened_log(chunk.path, chunk.stored, _FOOTER_BYTES) as source:
            metadata, schema = _footer(chunk.path, chunk.stored)
            at_once, as_dictionary = _rows_at_once(source, metadata, schema, chunk.group, fields)
            for batch in _read(source, metadata, chunk.group, fields.names, at_once, as_dictionary):
                columns = id_columns.event_columns([batch.column(name) for name in fields.names], fields)
                yield id_columns.block_of_rows(chunk.path, columns, chunk.first_row + rows_read + 1)
                rows_read += len(batch)
        if rows_read != chunk.events:
            raise ValueError("not the number of rows in the footer")
    except EventFileError:
        raise
    except _FAULTS:
        raise damaged_error(chunk.path, "Parquet", chunk.first_row + rows_read) from None


def _rows_at_once(
    source: Any, metadata: pq.FileMetaData, schema: pa.Schema, group: int, fields: EventFields
) -> tuple[int, list[str]]:
    """Fewer rows where they are wide; and the columns that are read as dictionaries.

    Whole dictionaries come with the first row: their longest text may be that of every row. Where a column has none, as
    where its texts are stored by their differences, the first row must do.
    """
    size, longest, as_dictionary = 1, 1, []
    for name in fields.names:
        head = _first_row(source, metadata, group, name, is_text=is_text_type(schema.field(name).type))
        column = _column(metadata, group, name)  # only now: see there
        size += column.total_uncompressed_size
        if not pa.types.is_dictionary(head.type):
            longest = max(longest, head.nbytes)
            continue
        # Most of a column may be in its dictionary or not, since writers give up on large ones.
        of_rows = column.total_uncompressed_size - head.dictionary.nbytes
        is_small = name != fields.time and of_rows < _DICTIONARY_BYTES_PER_ROW * column.num_values
        if is_small:
            as_dictionary.append(name)
        if not is_small or (len(fields.items) > 1 and name in fields.items):  # of joined labels each row has its own
            longest = max(longest, pc.max(pc.binary_length(head.dictionary)).as_py() or 1)
    at_once = min(_BLOCK_BYTES * metadata.row_group(group).num_rows // size, _UNPACKED_BYTES // longest)
    return max(1, min(MAX_BLOCK_ROWS, at_once)), as_dictionary


def _first_row(source: Any, metadata: pq.FileMetaData, group: int, name: str, *, is_text: bool) -> pa.Array:
    """Of one column; of texts as a dictionary, where Arrow can make one."""
    for as_dictionary in ([name], []) if is_text else ([],):
        try:
            return next(_read(source, metadata, group, [name], 1, as_dictionary)).column(0)
        except StopIteration:
            break
        except OSError:  # of a column that is damaged also without a dictionary
            if not as_dictionary:
                raise
    raise ValueError("no row where the footer says that there are some")


def _read(
    source: Any,
    metadata: pq.FileMetaData,
    group: int,
    names: Sequence[str],
    at_once: int,
    as_dictionary: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(
        source,
        metadata=metadata,
        read_dictionary=[*as_dictionary],
        buffer_size=_BUFFER_BYTES,
        pre_buffer=False,
        coerce_int96_timestamp_unit="us",  # nanoseconds would wrap around after 2262
        page_checksum_verification=True,
    ) as file:
        yield from file.iter_batches(at_once, row_groups=[group], columns=[*names])


def _column(metadata: pq.FileMetaData, group: int, name: str) -> pq.ColumnChunkMetaData:
    """Of a column of which a row was read: if its metadata contradict the schema, Arrow ends the process when they are
    looked up, but raises an error when it reads. Raises ValueError if it is not as the footer says."""
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    column = metadata.row_group(group).column(paths.index(name))
    sizes = (column.num_values, column.total_compressed_size, column.total_uncompressed_size)
    if min(sizes) < 0 or column.num_values != metadata.row_group(group).num_rows:
        raise ValueError("a column of another length")
    return column


def _footer(path: str, stored: StoredFile | None) -> tuple[pq.FileMetaData, pa.Schema]:
    if stored is not None:
        return _footer_of_version(path, stored)
    status = os.stat(path)
    return _footer_of_version(path, None, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _footer_of_version(path: str, stored: StoredFile | None, *version: int) -> tuple[pq.FileMetaData, pa.Schema]:
    """Cached: the footer of a file of thousands of row groups is large, and each of its chunks needs it."""
    del version
    with opened_log(path, stored, _FOOTER_BYTES) as source, pq.ParquetFile(source, pre_buffer=False) as file:
        return file.metadata, file.schema_arrow
