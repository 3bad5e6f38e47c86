"""Avro logs: fastavro decodes records, by a schema that `avro_schema` builds, out of blocks that are unpacked here.

fastavro trusts a file: a schema of 5 KB ends the process, and a small block may unpack to any size. So it is given
neither. A block is decoded as one Avro array of records, the same bytes with a count before and a zero after them:
measured, that takes five sixths of the time of its own reader of blocks.
"""

from __future__ import annotations

import contextlib
import gc
import io
import zlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import fastavro
import pyarrow as pa
from fastavro.read import HEADER_SCHEMA, MAGIC, SYNC_SIZE

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
from dp_transforms.stores.remote_files import StoredFile

MAX_BLOCK_BYTES = 64 << 20  # unpacked; writers make blocks of 16 kB to a few MB, or of one record that is larger
_VALUES_AT_ONCE = 1 << 20  # of fields, each some hundred bytes while it is decoded
_MAX_HEADER_BYTES = 1 << 20
_BLOCK_ROWS, _BLOCK_BYTES = 1 << 18, 32 << 20
_CODECS = ("null", "deflate", "snappy", "zstandard")
_HEADER = fastavro.parse_schema(HEADER_SCHEMA)
_LONG = fastavro.parse_schema("long")
_LONG_BYTES = 10  # at most


class Header(NamedTuple):
    """schema: a JSON text. end: where the first block begins."""

    schema: bytes
    codec: str
    sync: bytes
    end: int


def read_header(path: str, file: IO[bytes]) -> Header:
    """Raises EventFileError for a file that is not Avro, a header of over 1 MB and an unknown codec."""
    head = io.BytesIO(file.read(_MAX_HEADER_BYTES))
    header: Any = None
    with contextlib.suppress(Exception):  # whose words may hold bytes of the file
        header = fastavro.schemaless_reader(head, _HEADER, None)
    if header is None or header["magic"] != MAGIC:
        raise damaged_error(path, "Avro")
    codec = header["meta"].get("avro.codec", b"null").decode("ascii", "replace")
    if codec not in _CODECS:
        raise EventFileError(path, f"its codec is not supported. Write it with one of {', '.join(_CODECS)}.")
    return Header(header["meta"].get("avro.schema", b""), codec, header["sync"], head.tell())


class _TooLargeError(Exception):
    """A block of more than MAX_BLOCK_BYTES."""


def blocks(file: IO[bytes], header: Header) -> Iterator[tuple[int, bytes]]:
    """How many records each block claims, and their bytes. Raises `_TooLargeError`, and others where it is damaged."""
    at = header.end
    while numbers := _read_at(file, at, 2 * _LONG_BYTES):
        stream = io.BytesIO(numbers)
        count, size = _long(stream), _long(stream)
        if min(count, size) < 0:
            raise ValueError("a negative number")
        if size > MAX_BLOCK_BYTES:
            raise _TooLargeError
        packed, sync = _read_at(file, at + stream.tell(), size), file.read(SYNC_SIZE)
        if sync != header.sync:
            raise ValueError("no marker behind a block")
        yield count, _unpacked(packed, header.codec)
        at += stream.tell() + size + SYNC_SIZE


def _read_at(file: IO[bytes], at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def _long(stream: IO[bytes]) -> int:
    number: Any = fastavro.schemaless_reader(stream, _LONG, None)
    return int(number)


def _unpacked(packed: bytes, codec: str) -> bytes:
    data = packed
    if codec == "deflate":
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        data = inflater.decompress(packed, MAX_BLOCK_BYTES + 1)
        if not inflater.eof and len(data) <= MAX_BLOCK_BYTES:
            raise ValueError("packed bytes that end too early")
    elif codec == "zstandard":
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            data = stream.read(MAX_BLOCK_BYTES + 1)
    elif codec == "snappy":  # it begins with the number of the unpacked bytes; Avro appends their checksum
        number = _long(io.BytesIO(packed))
        length = 2 * number if number >= 0 else -2 * number - 1  # as it stands there, not as a long of Avro
        if length > MAX_BLOCK_BYTES:
            raise _TooLargeError
        data = pa.Codec("snappy").decompress(packed[:-4], length, asbytes=True)
        if zlib.crc32(data) != int.from_bytes(packed[-4:], "big"):
            raise ValueError("another checksum")
    if len(data) > MAX_BLOCK_BYTES:
        raise _TooLargeError
    return data


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
    fastavro.schemaless_writer(number := io.BytesIO(), _LONG, count)
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
        with opened_log(path, stored, _MAX_HEADER_BYTES) as file:
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
    except _TooLargeError:
        problem = f"it has a block of more than {MAX_BLOCK_BYTES >> 20} MB after row {rows + len(values[0])}."
        raise EventFileError(chunk.path, f"{problem} Write it with smaller blocks.") from None
    except Exception:  # the decoder's own message may contain bytes of the file
        raise damaged_error(chunk.path, "Avro", rows + len(values[0])) from None
