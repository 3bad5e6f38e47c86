"""Parquet logs: one chunk per row group; small ones are one with their neighbours, since a read costs as much as
thousands of rows. Only the columns of events are read, those of one row group as dictionaries where the file has them.

A row group can only be read from its beginning on. So a chunk that was cut skips the rows before its own, which takes
a seventh of the time of reading and hashing them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dp_transforms.logs import id_columns
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
_JOINED_ROWS = 4096  # of small row groups: few, since their dictionaries are unpacked
_LEAST_ROWS_TO_CUT = 1_000_000
_MOST_PARTS = 4
_SHRINKING = 6 / 7  # each part skips what the ones before it read, and is smaller for it


def find_chunks(path: str, fields: EventFields, stored: StoredFile | None = None) -> list[LogChunk]:
    """All rows. Raises EventFileError if the schema cannot be used."""
    try:
        metadata, schema = _footer(path, stored)
    except EventFileError:
        raise
    except (pa.ArrowException, OSError, ValueError):
        raise damaged_error(path, "Parquet") from None
    check_fields_present(path, schema.names, fields, has_schema=True)
    types = [schema.field(name).type for name in fields.names]
    id_columns.check_event_types(path, types, [str(each)[:80] for each in types], fields)
    heads = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    rows = np.array([head.num_rows for head in heads], dtype=np.int64)
    if min(rows, default=0) < 0 or sum(rows.tolist()) != metadata.num_rows:  # int64 would wrap
        raise damaged_error(path, "Parquet")
    ends, size, chunks = [0, *np.cumsum(rows).tolist()], log_size(path, stored), []
    sizes = [head.total_byte_size for head in heads]
    for groups in _joined_groups(rows.tolist(), sizes):
        first, end = ends[groups.start], ends[groups.stop]
        share = size * end // ends[-1] - size * first // ends[-1]
        unpacked = sum(sizes[groups.start : groups.stop])
        chunks.append(LogChunk(path, "parquet", groups, end - first, share, first, stored, unpacked=unpacked))
    return chunks


def _joined_groups(rows: Sequence[int], sizes: Sequence[int]) -> Iterator[range]:
    """The row groups that have rows, and small ones with their neighbours."""
    first = joined_rows = joined_size = 0
    for group, (count, size) in enumerate(zip(rows, sizes, strict=True)):
        if joined_rows and (joined_rows + count > _JOINED_ROWS or joined_size + size > _BLOCK_BYTES):
            yield range(first, group)
            joined_rows = 0
        if not joined_rows:  # also after empty ones: only small ones are read together
            first, joined_size = group, 0
        joined_rows, joined_size = joined_rows + count, joined_size + size
    if joined_rows:
        yield range(first, len(rows))


def cut_chunk(chunk: LogChunk, parts: int) -> list[LogChunk]:
    """A row group of more than a million rows in at most ``parts`` parts, and not more than 4; they take about the same
    time. In 4 parts all rows are read once, and 1.4 times skipped."""
    rows = chunk.events or 0
    parts = min(parts, _MOST_PARTS)
    if rows <= _LEAST_ROWS_TO_CUT:
        return [chunk]
    shares = np.cumsum(_SHRINKING ** np.arange(parts))
    ends = [*(rows * shares[:-1] / shares[-1]).astype(np.int64).tolist(), rows]
    return [
        dataclasses.replace(
            chunk,
            events=end - begin,
            bytes=chunk.bytes * end // rows - chunk.bytes * begin // rows,
            first_row=chunk.first_row + begin,
            span=(begin, end),
        )
        for begin, end in zip([0, *ends[:-1]], ends, strict=True)
    ]


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The row groups, or a part of one, in slices of at most MAX_BLOCK_ROWS rows and about 16 MB."""
    assert chunk.groups is not None
    rows_read, of_rows = 0, chunk.events or 1
    try:
        with opened_log(chunk.path, chunk.stored, _FOOTER_BYTES) as source:
            metadata, schema = _footer(chunk.path, chunk.stored)
            batches = _batches(source, metadata, schema, chunk.groups, fields)
            if chunk.span is not None:
                begin, end = chunk.span
                is_last = end == metadata.row_group(chunk.groups[0]).num_rows
                batches = _rows_of(batches, begin, None if is_last else end)
            for batch in batches:
                before, rows_read = rows_read, rows_read + len(batch)
                share = chunk.bytes * rows_read // of_rows - chunk.bytes * before // of_rows
                columns = id_columns.event_columns([batch.column(name) for name in fields.names], fields)
                yield from id_columns.blocks_of_rows(chunk.path, columns, chunk.first_row + before + 1, share)
        if rows_read != chunk.events:
            raise ValueError("not the number of rows in the footer")
    except EventFileError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError):
        raise damaged_error(chunk.path, "Parquet", chunk.first_row + rows_read) from None


def _rows_of(batches: Iterator[pa.RecordBatch], begin: int, end: int | None) -> Iterator[pa.RecordBatch]:
    """The rows from ``begin`` up to ``end``; None: all that there are, which may be more than the footer says."""
    at = 0
    for batch in batches:
        first, at = max(0, begin - at), at + len(batch)
        count = len(batch) - first - (0 if end is None else max(0, at - end))
        if count > 0:
            yield batch.slice(first, count)
        if end is not None and at >= end:
            return


def _batches(
    source: Any, metadata: pq.FileMetaData, schema: pa.Schema, groups: range, fields: EventFields
) -> Iterator[pa.RecordBatch]:
    if len(groups) == 1:
        at_once, as_dictionary = _rows_at_once(source, metadata, schema, groups, fields)
    else:  # a dictionary may hold one long text for all of its rows: so few at once that they are not large even then
        longest = max(metadata.row_group(group).total_byte_size for group in groups)
        at_once, as_dictionary = max(1, min(MAX_BLOCK_ROWS, _UNPACKED_BYTES // max(1, longest))), []
    yield from _read(source, metadata, groups, fields.names, at_once, as_dictionary)
    # After all are read: if the metadata of a column contradict the schema, Arrow ends the process when they are looked
    # up, but raises an error when it reads.
    _check_columns(metadata, groups, fields.names)


def _rows_at_once(
    source: Any, metadata: pq.FileMetaData, schema: pa.Schema, groups: range, fields: EventFields
) -> tuple[int, list[str]]:
    """Fewer rows where they are wide; and the columns that are read as dictionaries.

    The first row is read before the metadata of a column is used, as in `_batches`. Then whole dictionaries come with
    it: their longest text may be that of every row. Texts that are stored by their differences have no dictionary: of
    these the first row must do."""
    names = fields.names
    heads = list(itertools.islice(_read(source, metadata, groups, names, 1, []), 1))
    _check_columns(metadata, groups, names)
    columns = {name: _column(metadata, groups[0], name) for name in names}
    size: int = sum(column.total_uncompressed_size for column in columns.values())
    at_once, as_dictionary = _BLOCK_BYTES * metadata.row_group(groups[0]).num_rows // max(1, size), []
    texts = [name for name in names if id_columns.is_text_type(schema.field(name).type)]
    shared = [name for name in texts if any(used.startswith("DELTA") for used in columns[name].encodings)]
    for head, name in itertools.product(heads, shared):
        at_once = min(at_once, _UNPACKED_BYTES // (head.column(name).nbytes or 1))
    texts = [name for name in texts if name not in shared]  # Arrow makes no dictionary of the others
    heads = list(itertools.islice(_read(source, metadata, groups, names, 1, texts), 1))
    for head, name in itertools.product(heads, texts):
        values, column = head.column(name).dictionary, columns[name]
        # Most of a column may be in its dictionary or not, since writers give up on large ones.
        of_rows = column.total_uncompressed_size - values.nbytes
        if name != fields.time and of_rows < _DICTIONARY_BYTES_PER_ROW * column.num_values:
            as_dictionary.append(name)
        else:
            at_once = min(at_once, _UNPACKED_BYTES // (pc.max(pc.binary_length(values)).as_py() or 1))
    return max(1, min(MAX_BLOCK_ROWS, at_once)), as_dictionary


def _read(
    source: Any,
    metadata: pq.FileMetaData,
    groups: Sequence[int],
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
        yield from file.iter_batches(at_once, row_groups=groups, columns=[*names])


def _check_columns(metadata: pq.FileMetaData, groups: range, names: Sequence[str]) -> None:
    """Raises ValueError for row groups whose columns are not as the footer says."""
    for group, name in itertools.product(groups, names):
        column = _column(metadata, group, name)
        sizes = (column.num_values, column.total_compressed_size, column.total_uncompressed_size)
        if min(sizes) < 0 or column.num_values != metadata.row_group(group).num_rows:
            raise ValueError("a column of another length")


def _column(metadata: pq.FileMetaData, group: int, name: str) -> pq.ColumnChunkMetaData:
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    return metadata.row_group(group).column(paths.index(name))


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
