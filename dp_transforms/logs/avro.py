"""Avro logs: fastavro decodes records, by a schema that `avro_schema` builds, out of blocks of `avro_container`.

A block is decoded as one Avro array of records, the same bytes with a count before and a zero after them: measured,
that takes five sixths of the time of fastavro's own reader of blocks.
"""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from typing import IO, Any

import fastavro

from dp_transforms.logs import id_columns
from dp_transforms.logs.avro_schema import RecordSchema, check_schema, column_of
from dp_transforms.logs.log_chunk import (
    EventFields,
    EventFileError,
    LogChunk,
    ReadBlock,
    damaged_error,
    log_size,
    opened_log,
)
from dp_transforms.stores import avro_container
from dp_transforms.stores.avro_container import CODECS, LONG, MAX_HEADER_BYTES, Header, TooLargeError, blocks
from dp_transforms.stores.remote_files import StoredFile

_VALUES_AT_ONCE = 1 << 20  # of fields, each some hundred bytes while it is decoded
_BLOCK_ROWS, _BLOCK_BYTES = 1 << 18, 32 << 20


def read_header(path: str, file: IO[bytes]) -> Header:
    """Raises EventFileError for a file that is not Avro, a header of over 1 MB and an unknown codec."""
    try:
        header = avro_container.read_header(file)
    except ValueError:
        raise damaged_error(path, "Avro") from None
    if header.codec not in CODECS:
        raise EventFileError(path, f"its codec is not supported. Write it with one of {', '.join(CODECS)}.")
    return header


def records_of(data: bytes, count: int, schema: RecordSchema) -> Iterator[list[dict[str, Any]]]:
    """The records of a block, at once; of one with very many, in parts. Raises anything for one that does not hold
    ``count`` of them and nothing else.

    All fields are decoded. When fastavro skips a field it does not notice the end of the bytes, and an array that
    claims to be endless keeps it busy forever.
    """
    if count > len(data) // schema.min_record_bytes:
        raise ValueError("more records claimed than fit")
    most = max(1, _VALUES_AT_ONCE // len(schema.keys))
    if count > most:  # one after the other, which takes longer
        stream = io.BytesIO(data)
        for begin in range(0, count, most):
            parts: Any = [fastavro.schemaless_reader(stream, schema.record, None) for _ in range(begin, count)[:most]]
            yield parts
        if stream.read(1):
            raise ValueError("more bytes than the records claimed")
        return
    fastavro.schemaless_writer(number := io.BytesIO(), LONG, count)
    stream = io.BytesIO(b"".join([number.getvalue(), data, b"\0"] if count else [b"\0", data]))
    searches = gc.isenabled()
    gc.disable()  # looking for cycles, which records do not have, took a quarter of the time
    try:
        records: Any = fastavro.schemaless_reader(stream, schema.array, None)
    finally:
        if searches:
            gc.enable()
    if len(records) != count or stream.read(1):
        raise ValueError("other bytes than the records claimed")
    yield records


def find_chunks(path: str, fields: EventFields, stored: StoredFile | None = None) -> list[LogChunk]:
    """The file as one chunk. Raises EventFileError if its header or schema cannot be used."""
    try:
        with opened_log(path, stored, MAX_HEADER_BYTES) as file:
            check_schema(path, read_header(path, file).schema, fields)
    except OSError:
        raise damaged_error(path, "Avro") from None
    return [LogChunk(path, "avro", None, None, log_size(path, stored), stored=stored)]


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The records, in blocks of about a quarter of a million, or of some 32 MB."""
    rows = size = 0  # of what was yielded, and bytes of what was not
    values: list[list[Any]] = [[] for _ in fields.names]

    def made() -> ReadBlock:
        arrays = list(map(column_of, values, schema.types))
        return id_columns.block_of_rows(chunk.path, id_columns.event_columns(arrays, fields), rows + 1)

    try:
        with opened_log(chunk.path, chunk.stored) as file:
            header = read_header(chunk.path, file)
            schema = check_schema(chunk.path, header.schema, fields)
            for count, data in blocks(file, header):
                for records in records_of(data, count, schema.records):
                    for column, key in zip(values, schema.keys, strict=True):
                        column += [record[key] for record in records]
                size += len(data)
                if len(values[0]) >= _BLOCK_ROWS or size > _BLOCK_BYTES:
                    yield made()
                    rows, size, values = rows + len(values[0]), 0, [[] for _ in fields.names]
            yield made()
    except EventFileError:
        raise
    except TooLargeError:
        problem = (
            f"it has a block of more than {avro_container.MAX_BLOCK_BYTES >> 20} MB after row {rows + len(values[0])}."
        )
        raise EventFileError(chunk.path, f"{problem} Write it with smaller blocks.") from None
    except Exception:  # the decoder's own message may contain bytes of the file
        raise damaged_error(chunk.path, "Avro", rows + len(values[0])) from None
