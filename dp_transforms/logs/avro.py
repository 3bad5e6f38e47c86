"""Avro logs. fastavro decodes each block of records in one call, within the limits of `avro_schema` and of this module.

A block is decoded as one Avro array of records: the same bytes with a count before and a zero after them. Measured:
twice as fast as `fastavro.block_reader`, since no cell becomes text or a datetime on the way.

A block that is too large for that goes record by record. Avro writes the length of a text before it, so a text that is
too long for an id costs only its record: it is skipped and never held in memory. Nothing else is skipped: a block must
not exceed MAX_BLOCK_BYTES, or the caller's limit, without such cells.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO, Any

import fastavro
import pyarrow as pa

from dp_transforms.core.event_batch import MAX_ID_BYTES
from dp_transforms.logs import id_columns
from dp_transforms.logs.avro_schema import (
    Branch,
    EventSchema,
    RecordSchema,
    check_schema,
    column_of,
    id_type,
    record_schema,
    time_type,
)
from dp_transforms.logs.estimate import AHEAD_BYTES, MOST_FIELDS, OTHER, SAMPLE_ROWS, FieldSample, FileSample, kind_of
from dp_transforms.logs.log_chunk import (
    EventFields,
    EventFileError,
    LogChunk,
    ReadBlock,
    damaged_error,
    faults_of_store,
    log_size,
    open_log,
    paused_collection,
)
from dp_transforms.logs.text_files import ByteShares
from dp_transforms.stores import avro_container
from dp_transforms.stores.avro_container import BlockTooLargeError, DamagedContainerError
from dp_transforms.stores.remote_files import StoredFile

MAX_BLOCK_BYTES = 16 << 20  # without the long cells; writers make blocks of 16 kB to a few MB
_RECORDS_AT_ONCE = 4096
_BYTES_AT_ONCE = 1 << 20
_BLOCK_ROWS = 1 << 18
_BLOCK_BYTES = 32 << 20
# A block that unpacks to more is not decoded in one call: a byte of it can become 200 bytes of Python's objects.
_WHOLE_BLOCK_BYTES = 4 << 20
_WHOLE_BLOCK_BYTES_OF_REPEATS = 1 << 20
_MAX_HEADER_BYTES = 1 << 20
_HEADER_AHEAD_BYTES = 64 << 10


def decode_one_by_one(
    pieces: Iterator[bytes], count: int, schema: RecordSchema, keys: Sequence[str]
) -> Iterator[list[dict[str, Any]]]:
    """The records of a block, some at a time, with only the fields of these keys.

    pieces: the unpacked bytes of the block. count: the number of its records, as the file claims it. most_bytes: limit
    of the block without its long cells, each of which takes about a microsecond; None: MAX_BLOCK_BYTES.
    Raises BlockTooLargeError, and any error for a block that does not hold exactly so many records.
    """
    writer = fastavro.parse_schema(schema.record)
    used = [field for field in schema.record["fields"] if field["name"] in keys]
    reader = fastavro.parse_schema({**schema.record, "fields": used})
    cells = _Cells(pieces)
    records: list[dict[str, Any]] = []
    given = 0
    for _ in range(count):
        records.append(fastavro.schemaless_reader(cells, writer, reader))
        if len(records) == _RECORDS_AT_ONCE or cells.returned - given > _BYTES_AT_ONCE:
            yield records
            records, given = [], cells.returned
    if not cells.is_at_end():
        raise ValueError("not the records claimed")
    if records:
        yield records


class _LongCell(bytes):
    """Replaces a cell that is longer than an id may be, so that it is rejected. Its ``len`` is that of the cell."""

    _length = 0

    @classmethod
    def of_length(cls, length: int) -> _LongCell:
        cell = cls(MAX_ID_BYTES + 1)
        cell._length = length
        return cell

    def __len__(self) -> int:
        return self._length


class _Cells:
    """The file that fastavro reads. It returns the bytes of the block, and a `_LongCell` in place of each long cell.

    returned: how many bytes it has returned.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece, self._at = b"", 0
        self._kept = 0  # bytes of the block, without those skipped
        self.returned = 0

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes. Raises ValueError if there are fewer."""
        begin, end = self._at, self._at + size
        if begin <= end <= len(self._piece) and size <= MAX_ID_BYTES:
            self._at = end
            self.returned += size
            return self._piece[begin:end]
        if size < 0:
            raise ValueError("negative length")
        if size > MAX_ID_BYTES:
            self._skip(size)
            self.returned += MAX_ID_BYTES + 1
            return _LongCell.of_length(size)
        parts = []
        left = size
        while left:
            if self._at == len(self._piece):
                self._next_piece()
            part = self._piece[self._at : self._at + left]
            self._at += len(part)
            left -= len(part)
            parts.append(part)
        self.returned += size
        return b"".join(parts)

    def is_at_end(self) -> bool:
        return self._at == len(self._piece) and not any(self._pieces)

    def _skip(self, size: int) -> None:
        while size:
            if self._at == len(self._piece):
                self._next_piece()
            step = min(size, len(self._piece) - self._at)
            self._at += step
            self._kept -= step
            size -= step

    def _next_piece(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            raise ValueError("a record that ends after its block")
        self._piece, self._at = piece, 0
        self._kept += len(piece)
        if self._kept > MAX_BLOCK_BYTES + len(piece):
            raise BlockTooLargeError


def find_chunks(path: str, fields: EventFields, stored: StoredFile | None = None) -> list[LogChunk]:
    """The file as one chunk, if it has records. Raises EventFileError if its header or schema cannot be used.

    Of a stored file only the header is read: to count its records takes a request for each block.
    """
    try:
        with open_log(path, stored, _HEADER_AHEAD_BYTES) as file, faults_of_store(path, file):
            header = read_avro_header(path, file)
            check_schema(path, header.schema, fields)
            if stored is not None:
                return [LogChunk(path, "avro", None, None, stored.size, stored=stored)]
            try:
                events: int | None = sum(count for count, _, _ in avro_container.iter_frames(file, header))
            except DamagedContainerError:
                events = None  # reading will reach the damage and say where it is
    except OSError:
        raise damaged_error(path, "Avro") from None
    return [] if events == 0 else [LogChunk(path, "avro", None, events, log_size(path, stored))]


def cut_chunk(chunk: LogChunk, fields: EventFields, parts: int) -> list[LogChunk]:
    """A local file in about so many parts, at ends of blocks. A stored one stays whole, since to find its blocks takes
    a request for each; so does a damaged one, which is for `read_chunk` to report."""
    del fields
    if chunk.stored is not None or chunk.events is None:
        return [chunk]
    cut: list[LogChunk] = []
    begin, first_row, row, end = 0, 0, 0, 0
    try:
        with open_log(chunk.path, None) as file:
            header = read_avro_header(chunk.path, file)
            for count, data, length in avro_container.iter_frames(file, header):
                row, end = row + count, avro_container.end_of_frame(data, length)
                if end - begin >= chunk.bytes // parts or end == chunk.bytes:
                    span = (begin, end)
                    cut.append(
                        dataclasses.replace(
                            chunk, events=row - first_row, bytes=end - begin, first_row=first_row, span=span
                        )
                    )
                    begin, first_row = end, row
    except (EventFileError, DamagedContainerError, OSError):
        return [chunk]
    return cut if (end, row) == (chunk.bytes, chunk.events) else [chunk]  # else it was changed meanwhile


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The records, in blocks of about a quarter of a million, or of some 32 MB of text."""
    shares = ByteShares(chunk.bytes)
    begin, end = chunk.span or (0, None)
    rows_decoded = chunk.first_row
    try:
        with open_log(chunk.path, chunk.stored) as file, faults_of_store(chunk.path, file):
            header = read_avro_header(chunk.path, file)
            schema = check_schema(chunk.path, header.schema, fields)
            parts: list[ArrowColumns] = []
            first_row, size, read_to = rows_decoded + 1, 0, 0

            def blocks_of(parts: list[ArrowColumns], read_to: int) -> Iterator[ReadBlock]:
                share = shares.up_to(read_to - begin)
                return id_columns.blocks_of_rows(chunk.path, to_columns(parts, fields), first_row, share)

            for part, read_to in _parts(file, header, schema, begin, end):
                parts.append(part)
                rows_decoded += len(part[2])
                size += sum(column.nbytes for column in part)
                if rows_decoded - first_row + 1 >= _BLOCK_ROWS or size > _BLOCK_BYTES:
                    yield from blocks_of(parts, read_to)
                    parts, first_row, size = [], rows_decoded + 1, 0
            if parts:
                yield from blocks_of(parts, read_to)
    except EventFileError:
        raise
    except BlockTooLargeError:
        problem = (
            f"it has a block of more than {MAX_BLOCK_BYTES >> 20} MB after row {rows_decoded}, not counting long cells."
        )
        raise EventFileError(chunk.path, f"{problem} Write it with smaller blocks.") from None
    except Exception:
        # The decoder's own message may contain bytes of the file.
        raise damaged_error(chunk.path, "Avro", rows_decoded) from None
    yield ReadBlock(id_columns.empty_batch(), (), 0, shares.rest())


def read_avro_header(path: str, file: IO[bytes]) -> avro_container.Header:
    """Where a log begins. Raises EventFileError for a file that is not Avro, a header of over 1 MB and an unknown
    codec."""
    try:
        header = avro_container.read_header(file, _MAX_HEADER_BYTES)
    except avro_container.HeaderTooLargeError:
        raise EventFileError(path, "its header has more than 1 MB. Write it with a smaller schema.") from None
    except DamagedContainerError:
        raise damaged_error(path, "Avro") from None
    if not header.codec:
        codecs = ", ".join(avro_container.CODECS)
        raise EventFileError(path, f"its codec is not supported. Write it with one of {codecs}.")
    return header


def _parts(
    file: IO[bytes], header: avro_container.Header, schema: EventSchema, begin: int, end: int | None
) -> Iterator[tuple[ArrowColumns, int]]:
    """Some records of the blocks from ``begin`` up to ``end``, and how far the file is read with them."""
    decoder = BlockDecoder(schema.records)
    whole_bytes = _WHOLE_BLOCK_BYTES_OF_REPEATS if schema.records.has_repeats else _WHOLE_BLOCK_BYTES
    for count, at, length in avro_container.iter_frames(file, header, begin, end):
        try:
            data = avro_container.read_block(file, header, at, length, whole_bytes)
        except BlockTooLargeError:
            pieces = avro_container.block_pieces(file, header, at, length)
            for records in decode_one_by_one(pieces, count, schema.records, schema.keys):
                yield to_arrow(records, schema), at + length
        else:
            yield to_arrow(decoder.decode(count, data), schema), at + length


ArrowColumns = tuple[pa.Array, ...]  # as `EventFields.names`


class BlockDecoder:
    """Blocks of records, decoded with all their fields."""

    def __init__(self, schema: RecordSchema) -> None:
        self._schema = schema
        # All fields are decoded. When fastavro skips a field it does not notice the end of the bytes, and an array
        # that claims to be endless keeps it busy forever.
        self._array = fastavro.parse_schema({"type": "array", "items": schema.record})

    def decode(self, count: int, data: bytes) -> list[dict[str, Any]]:
        """Raises anything for a block that does not hold ``count`` records and nothing else."""
        if count > len(data) // self._schema.min_record_bytes:
            raise ValueError("more records claimed than fit")
        framed = io.BytesIO(b"".join([_zigzag(count), data, b"\0"] if count else [b"\0", data]))
        with paused_collection():  # looking for cycles, which records do not have, took a quarter of the time
            records: Any = fastavro.schemaless_reader(framed, self._array, None)
        if len(records) != count or framed.read(1):
            raise ValueError("other bytes than the records claimed")
        return records  # type: ignore[no-any-return]


def to_arrow(records: Sequence[Any], schema: EventSchema) -> ArrowColumns:
    """records: as fastavro returns them."""
    columns = zip(schema.keys, schema.types, strict=True)
    return tuple(column_of([record[key] for record in records], arrow_type) for key, arrow_type in columns)


def _zigzag(number: int) -> bytes:
    """A count as Avro writes it."""
    number <<= 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def to_columns(parts: Sequence[ArrowColumns], fields: EventFields) -> id_columns.Columns:
    """The columns of at least one decoded block, joined."""
    arrays = [pa.concat_arrays(columns) for columns in zip(*parts, strict=True)]
    return id_columns.event_columns(arrays, fields)


def sample(path: str, fields: EventFields, stored: StoredFile | None) -> FileSample:
    """See `logs.estimate`. Of a local file the last block too."""
    del fields
    records: list[dict[str, Any]] = []
    rows, is_whole, last = 0, True, None
    with open_log(path, stored, AHEAD_BYTES) as file, faults_of_store(path, file):
        header = read_avro_header(path, file)
        schema = record_schema(path, header.schema)
        for frame in avro_container.iter_frames(file, header):
            rows += frame[0]
            if len(records) < SAMPLE_ROWS:
                first = _first_records(file, header, schema, *frame)
                records += first
                is_whole = is_whole and len(first) == frame[0]
            elif stored is None:
                last, is_whole = frame, False
            else:  # to walk on takes a request for each block
                rows, is_whole = 0, False
                break
        if last is not None:
            records += _first_records(file, header, schema, *last)
    found = tuple(
        _sample_field(name, [record[key] for record in records], schema.branches[name])
        for name, key in itertools.islice(schema.keys.items(), MOST_FIELDS)
    )
    known = rows if rows or is_whole else None
    sees_end = is_whole or stored is None
    return FileSample(path, "avro", found, known, len(records), Counter(), is_whole, sees_end=sees_end)


def _first_records(
    file: IO[bytes], header: avro_container.Header, schema: RecordSchema, count: int, begin: int, length: int
) -> list[dict[str, Any]]:
    """Of a block of any size, about what its first megabyte holds."""
    pieces = avro_container.block_pieces(file, header, begin, length)
    try:
        return next(decode_one_by_one(pieces, count, schema, [*schema.keys.values()]), [])[:SAMPLE_ROWS]
    except Exception:  # the decoder may raise anything, and its words may hold bytes of the file
        raise DamagedContainerError from None


def _sample_field(name: str, values: list[Any], branches: list[Branch]) -> FieldSample:
    arrow_type = time_type(branches) or id_type(branches)
    if arrow_type is None:
        return FieldSample(name, OTHER, None)
    if not branches:
        return FieldSample(name, OTHER, pa.nulls(len(values)))
    return FieldSample(name, kind_of(arrow_type), column_of(values, arrow_type))
