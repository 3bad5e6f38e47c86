"""Avro logs: fastavro decodes records, by a schema that `avro_schema` builds, out of blocks that are unpacked here.

fastavro trusts a file: a schema of 5 KB ends the process, and a small block may unpack to any size. So it is given
neither. A block is decoded as one Avro array of records, the same bytes with a count before and a zero after them:
measured, that takes five sixths of the time of its own reader of blocks. Records of a large block come some at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import fastavro
import pyarrow as pa
from fastavro.read import HEADER_SCHEMA, MAGIC, SYNC_SIZE

from dp_transforms.logs import id_columns
from dp_transforms.logs.avro_schema import EventSchema, RecordSchema, check_schema, column_of
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
_MAX_HEADER_BYTES = 1 << 20
# A byte of a block can become 200 bytes of Python's objects: of larger ones some records at a time.
_WHOLE_BLOCK_BYTES = 1 << 20
_RECORDS_AT_ONCE = 4096
_BLOCK_ROWS, _BLOCK_BYTES = 1 << 18, 32 << 20

CODECS = ("null", "deflate", "snappy", "zstandard")
_HEADER = fastavro.parse_schema(HEADER_SCHEMA)
DAMAGE = (EOFError, IndexError, ValueError)  # fastavro raises the second inside of a number
_LONG = fastavro.parse_schema("long")
_LONGS = [{"name": name, "type": "long"} for name in ("records", "size")]
_FRAME = fastavro.parse_schema({"type": "record", "name": "frame", "fields": _LONGS})
_MOST_FRAME_BYTES = 20


class Header(NamedTuple):
    """schema: a JSON text. end: where the first block begins."""

    schema: bytes
    codec: str
    sync: bytes
    end: int


class Frame(NamedTuple):
    """A block: how many records it claims, and where its packed bytes begin and end."""

    records: int
    begin: int
    end: int

    @property
    def next(self) -> int:
        """Where the next one begins."""
        return self.end + int(SYNC_SIZE)


def read_avro_header(path: str, file: IO[bytes]) -> Header:
    """Raises EventFileError for a file that is not Avro, a header of over 1 MB and an unknown codec."""
    head = io.BytesIO(data := file.read(_MAX_HEADER_BYTES))
    header: Any = None
    with contextlib.suppress(Exception):  # whose words may hold bytes of the file
        header = fastavro.schemaless_reader(head, _HEADER, None)
    if header is None and data.startswith(MAGIC) and len(data) == _MAX_HEADER_BYTES:
        raise EventFileError(path, "its header has more than 1 MB, or is damaged. Write it with a smaller schema.")
    if header is None or header["magic"] != MAGIC:
        raise damaged_error(path, "Avro")
    codec = header["meta"].get("avro.codec", b"null").decode("ascii", "replace")
    if codec not in CODECS:
        raise EventFileError(path, f"its codec is not supported. Write it with one of {', '.join(CODECS)}.")
    return Header(header["meta"].get("avro.schema", b""), codec, header["sync"], head.tell())


def frames(file: IO[bytes], header: Header, begin: int = 0, end: int | None = None) -> Iterator[Frame]:
    """The blocks from one position up to another, where blocks begin; by seeking. Raises one of DAMAGE where they are
    damaged."""
    size = file.seek(0, io.SEEK_END)
    at, end = max(begin, header.end), size if end is None else min(end, size)
    while at < end:
        file.seek(at)
        numbers = io.BytesIO(file.read(_MOST_FRAME_BYTES))
        claimed: Any = fastavro.schemaless_reader(numbers, _FRAME, None)
        first = at + numbers.tell()
        frame = Frame(claimed["records"], first, first + claimed["size"])
        if claimed["records"] < 0 or claimed["size"] < 0 or frame.next > size:
            raise ValueError("a block that is not in the file")
        yield frame
        at = frame.next


class _TooLargeError(Exception):
    """A block of more than MAX_BLOCK_BYTES."""


def unpacked(file: IO[bytes], header: Header, frame: Frame) -> bytes:
    """The bytes of the records of a block. Raises `_TooLargeError`, and other errors where they are damaged."""
    if frame.end - frame.begin > MAX_BLOCK_BYTES:
        raise _TooLargeError
    file.seek(frame.begin)
    packed, sync = file.read(frame.end - frame.begin), file.read(SYNC_SIZE)
    if sync != header.sync:
        raise ValueError("no marker behind a block")
    data = packed
    if header.codec == "deflate":
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        data = inflater.decompress(packed, MAX_BLOCK_BYTES + 1)
        if not inflater.eof and len(data) <= MAX_BLOCK_BYTES:
            raise ValueError("packed bytes that end too early")
    elif header.codec == "zstandard":
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            data = stream.read(MAX_BLOCK_BYTES + 1)
    elif header.codec == "snappy":
        data = _unpack_snappy(packed)
    if len(data) > MAX_BLOCK_BYTES:
        raise _TooLargeError
    return data


def _unpack_snappy(packed: bytes) -> bytes:
    """It begins with the number of the unpacked bytes; Avro appends their checksum."""
    number: Any = fastavro.schemaless_reader(io.BytesIO(packed), _LONG, None)
    length = 2 * number if number >= 0 else -2 * number - 1  # as it stands there, not as a long of Avro
    if length > MAX_BLOCK_BYTES:
        raise _TooLargeError
    data: bytes = pa.Codec("snappy").decompress(packed[:-4], length, asbytes=True)
    if zlib.crc32(data) != int.from_bytes(packed[-4:], "big"):
        raise ValueError("another checksum")
    return data


def records_of(data: bytes, count: int, schema: RecordSchema) -> Iterator[list[dict[str, Any]]]:
    """The records of a block, some at a time. Raises anything for one that does not hold ``count`` of them and nothing
    else.

    All fields are decoded. When fastavro skips a field it does not notice the end of the bytes, and an array that
    claims to be endless keeps it busy forever.
    """
    if count > len(data) // schema.min_record_bytes:
        raise ValueError("more records claimed than fit")
    if count and len(data) > _WHOLE_BLOCK_BYTES:
        stream = io.BytesIO(data)
        for begin in range(0, count, _RECORDS_AT_ONCE):
            some = range(min(_RECORDS_AT_ONCE, count - begin))
            records: Any = [fastavro.schemaless_reader(stream, schema.record, None) for _ in some]
            if begin + len(some) == count:
                _check_end(stream)
            yield records
        return
    fastavro.schemaless_writer(number := io.BytesIO(), _LONG, count)
    stream = io.BytesIO(b"".join([number.getvalue(), data, b"\0"] if count else [b"\0", data]))
    searches = gc.isenabled()
    gc.disable()  # looking for cycles, which records do not have, took a quarter of the time
    try:
        records = fastavro.schemaless_reader(stream, schema.array, None)
    finally:
        if searches:
            gc.enable()
    if len(records) != count:
        raise ValueError("not the records claimed")
    _check_end(stream)
    yield records


def _check_end(stream: IO[bytes]) -> None:
    if stream.read(1):
        raise ValueError("other bytes than the records claimed")


def find_chunks(path: str, fields: EventFields, stored: StoredFile | None = None) -> list[LogChunk]:
    """The file as one chunk, if it has records. Raises EventFileError if its header or schema cannot be used.

    Of a stored file only the header is read: to count its records takes a request for each block.
    """
    try:
        with opened_log(path, stored, _MAX_HEADER_BYTES) as file:
            header = read_avro_header(path, file)
            check_schema(path, header.schema, fields)
            if stored is not None:
                return [LogChunk(path, "avro", None, None, stored.size, stored=stored)]
            try:
                events: int | None = sum(frame.records for frame in frames(file, header))
            except DAMAGE:
                events = None  # reading will reach the damage and say where it is
    except OSError:
        raise damaged_error(path, "Avro") from None
    return [] if events == 0 else [LogChunk(path, "avro", None, events, log_size(path, stored))]


def cut_chunk(chunk: LogChunk, parts: int) -> list[LogChunk]:
    """A local file in about so many parts, at ends of blocks. A stored one stays whole, since to find its blocks takes
    a request for each; so does a damaged one, which is for `read_chunk` to report."""
    if chunk.stored is not None or chunk.events is None:
        return [chunk]
    cut: list[LogChunk] = []
    begin = first_row = row = end = 0
    try:
        with opened_log(chunk.path, None) as file:
            for frame in frames(file, read_avro_header(chunk.path, file)):
                row, end = row + frame.records, frame.next
                if end - begin >= chunk.bytes // parts or end == chunk.bytes:
                    count, size = row - first_row, end - begin
                    cut.append(
                        dataclasses.replace(chunk, events=count, bytes=size, first_row=first_row, span=(begin, end))
                    )
                    begin, first_row = end, row
    except (*DAMAGE, OSError):
        return [chunk]
    return cut if (end, row) == (chunk.bytes, chunk.events) else [chunk]  # else it was changed meanwhile


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The records, in blocks of about a quarter of a million, or of some 32 MB of text."""
    first_row, rows, size, given = chunk.first_row, 0, 0, 0
    parts: list[ArrowColumns] = []
    try:
        for columns, bytes_read in _decoded(chunk, fields):
            parts.append(columns)
            rows, size = rows + len(columns[0]), size + sum(column.nbytes for column in columns)
            if rows >= _BLOCK_ROWS or size > _BLOCK_BYTES:
                yield from _blocks(chunk.path, parts, fields, first_row, bytes_read - given)
                first_row, rows, size, given, parts = first_row + rows, 0, 0, bytes_read, []
        if parts:
            yield from _blocks(chunk.path, parts, fields, first_row, chunk.bytes - given)
            given = chunk.bytes
    except EventFileError:
        raise
    except _TooLargeError:
        problem = f"it has a block of more than {MAX_BLOCK_BYTES >> 20} MB after row {first_row + rows}."
        raise EventFileError(chunk.path, f"{problem} Write it with smaller blocks.") from None
    except Exception:  # the decoder's own message may contain bytes of the file
        raise damaged_error(chunk.path, "Avro", first_row + rows) from None
    yield ReadBlock(id_columns.empty_batch(), (), 0, chunk.bytes - given)


ArrowColumns = tuple[pa.Array, ...]  # as `EventFields.names`


def _decoded(chunk: LogChunk, fields: EventFields) -> Iterator[tuple[ArrowColumns, int]]:
    """Some records at a time; and the bytes of the chunk up to the end of their block."""
    begin, end = chunk.span or (0, None)
    with opened_log(chunk.path, chunk.stored) as file:
        header = read_avro_header(chunk.path, file)
        schema = check_schema(chunk.path, header.schema, fields)
        for frame in frames(file, header, begin, end):
            for records in records_of(unpacked(file, header, frame), frame.records, schema.records):
                yield to_arrow(records, schema), frame.next - begin


def to_arrow(records: Sequence[Any], schema: EventSchema) -> ArrowColumns:
    """records: as fastavro returns them."""
    columns = zip(schema.keys, schema.types, strict=True)
    return tuple(column_of([record[key] for record in records], arrow_type) for key, arrow_type in columns)


def _blocks(
    path: str, parts: Sequence[ArrowColumns], fields: EventFields, first_row: int, byte_share: int
) -> Iterator[ReadBlock]:
    columns = id_columns.event_columns([pa.concat_arrays(column) for column in zip(*parts, strict=True)], fields)
    return id_columns.blocks_of_rows(path, columns, first_row + 1, byte_share)
