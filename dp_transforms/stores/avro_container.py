"""Avro's object container files, of logs and of reports: the header, and blocks, which are unpacked here.

fastavro trusts a file: a schema of 5 KB ends the process, and a small block may unpack to any size. So it is given
neither. Who reads decodes the blocks, by a schema that was looked at.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import fastavro
from fastavro.read import HEADER_SCHEMA, MAGIC, SYNC_SIZE

CODECS = ("null", "deflate", "snappy", "zstandard")
MAX_BLOCK_BYTES = 64 << 20  # unpacked; writers make blocks of 16 kB to a few MB, or of one record that is larger
MAX_HEADER_BYTES = (1 << 20) + (1 << 16)  # with the largest header of a report
LONG = fastavro.parse_schema("long")
_HEADER = fastavro.parse_schema(HEADER_SCHEMA)
_LONG_BYTES = 10  # at most


class Header(NamedTuple):
    """meta: by name. end: where the first block begins."""

    meta: dict[str, bytes]
    sync: bytes
    end: int

    @property
    def schema(self) -> bytes:
        """A JSON text."""
        return self.meta.get("avro.schema", b"")

    @property
    def codec(self) -> str:
        return self.meta.get("avro.codec", b"null").decode("ascii", "replace")


class TooLargeError(Exception):
    """A block of more than MAX_BLOCK_BYTES."""


def read_header(file: IO[bytes]) -> Header:
    """Raises ValueError for a file that is not Avro, and for a header of more than 1 MB."""
    head = io.BytesIO(file.read(MAX_HEADER_BYTES))
    header: Any = None
    with contextlib.suppress(Exception):  # whose words may hold bytes of the file
        header = fastavro.schemaless_reader(head, _HEADER, None)
    if header is None or header["magic"] != MAGIC:
        raise ValueError("no header of Avro")
    return Header(header["meta"], header["sync"], head.tell())


def blocks(file: IO[bytes], header: Header) -> Iterator[tuple[int, bytes]]:
    """How many records each block claims, and their bytes. Raises `TooLargeError`, and others where it is damaged."""
    at = header.end
    while numbers := _read_at(file, at, 2 * _LONG_BYTES):
        stream = io.BytesIO(numbers)
        count, size = _long(stream), _long(stream)
        if min(count, size) < 0:
            raise ValueError("a negative number")
        if size > MAX_BLOCK_BYTES:
            raise TooLargeError
        packed, sync = _read_at(file, at + stream.tell(), size), file.read(SYNC_SIZE)
        if sync != header.sync:
            raise ValueError("no marker behind a block")
        yield count, _unpacked(packed, header.codec)
        at += stream.tell() + size + SYNC_SIZE


def _read_at(file: IO[bytes], at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def _long(stream: IO[bytes]) -> int:
    number: Any = fastavro.schemaless_reader(stream, LONG, None)
    return int(number)


def _unpacked(packed: bytes, codec: str) -> bytes:
    data = packed
    if codec == "deflate":
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        data = inflater.decompress(packed, MAX_BLOCK_BYTES + 1)
        if not inflater.eof and len(data) <= MAX_BLOCK_BYTES:
            raise ValueError("packed bytes that end too early")
    elif codec in ("zstandard", "snappy"):
        import pyarrow as pa  # reports need none of it

        if codec == "zstandard":
            with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
                data = stream.read(MAX_BLOCK_BYTES + 1)
        else:  # it begins with the number of the unpacked bytes; Avro appends their checksum
            number = _long(io.BytesIO(packed))
            length = 2 * number if number >= 0 else -2 * number - 1  # as it stands there, not as a long of Avro
            if length > MAX_BLOCK_BYTES:
                raise TooLargeError
            data = pa.Codec("snappy").decompress(packed[:-4], length, asbytes=True)
            if zlib.crc32(data) != int.from_bytes(packed[-4:], "big"):
                raise ValueError("another checksum")
    elif codec != "null":
        raise ValueError("an unknown codec")
    if len(data) > MAX_BLOCK_BYTES:
        raise TooLargeError
    return data
