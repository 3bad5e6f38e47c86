"""The framing of an Avro container file, read with limits: header, blocks, codecs.

The Avro library believes the lengths and counts that a file claims. Here each is checked against what it could be
before any memory is taken for it.
"""

from __future__ import annotations

import dataclasses
import io
import zlib
from collections.abc import Iterable, Iterator
from typing import IO

import pyarrow as pa

from dp_transforms.event_files.log_chunk import EventFileError, damaged_error

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_HEADER_BYTES = 1 << 20
MAX_BLOCK_BYTES = 16 << 20  # without long cells, which are passed over; writers make blocks of 16 kB to a few MB
_MAX_SNAPPY_BYTES = 64 << 20  # packed as well as unpacked: it is unpacked as a whole
_MAX_UNPACKED_BYTES = 1 << 30  # with long cells
_PIECE_BYTES = 1 << 16
_MAX_VARINT_BYTES = 10
CODECS = ("null", "deflate", "snappy", "zstandard")


class BlockTooLargeError(ValueError):
    """A block that is larger than what it is read with."""


@dataclasses.dataclass(frozen=True)
class Header:
    """schema: JSON text. end: where the first block begins."""

    schema: bytes
    codec: str
    sync: bytes
    end: int


def read_header(path: str, file: IO[bytes]) -> Header:
    """Raises EventFileError for what is no Avro file, has a header of over 1 MB or an unknown codec."""
    head = file.read(_MAX_HEADER_BYTES)
    if not head.startswith(_MAGIC):
        raise damaged_error(path, "Avro")
    metadata: dict[bytes, bytes] = {}
    try:
        at = len(_MAGIC)
        while True:
            count, at = _varint(head, at)
            if count < 0:
                count, (_, at) = -count, _varint(head, at)
            if count == 0:
                break
            for _ in range(min(count, len(head))):
                key, at = _cell(head, at)
                metadata[key], at = _cell(head, at)
        sync = head[at : at + _SYNC_BYTES]
        if len(sync) < _SYNC_BYTES:
            raise IndexError
        codec = metadata.get(b"avro.codec", b"null").decode()
    except (IndexError, ValueError):
        if len(head) == _MAX_HEADER_BYTES:
            raise EventFileError(path, "its header has more than 1 MB. Write it with a smaller schema.") from None
        raise damaged_error(path, "Avro") from None
    if codec not in CODECS:
        raise EventFileError(path, f"its codec is not read. Write it with one of {', '.join(CODECS)}.")
    return Header(metadata.get(b"avro.schema", b""), codec, sync, at + _SYNC_BYTES)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag number, and where it ends. IndexError if there is none."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift >= 7 * _MAX_VARINT_BYTES:
            raise IndexError


def _cell(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _varint(data, at)
    if not 0 <= length <= len(data) - at:
        raise IndexError
    return data[at : at + length], at + length


def iter_frames(file: IO[bytes], header: Header) -> Iterator[tuple[int, int, int]]:
    """(claimed number of records, where the packed bytes begin, their number) of each block, by seeking.

    Raises ValueError where the framing is broken, with nothing of the file in it.
    """
    file.seek(0, 2)
    size = file.tell()
    at = header.end
    while at < size:
        file.seek(at)
        numbers = file.read(2 * _MAX_VARINT_BYTES)
        try:
            count, used = _varint(numbers, 0)
            length, used = _varint(numbers, used)
        except IndexError:
            raise ValueError("broken block") from None
        begin = at + used
        if count < 0 or not 0 <= length <= size - begin - _SYNC_BYTES:
            raise ValueError("broken block")
        yield count, begin, length
        at = begin + length + _SYNC_BYTES


def read_block(file: IO[bytes], header: Header, begin: int, length: int, limit: int) -> bytes:
    """The unpacked bytes of a block. Raises ValueError where they or the marker behind them are broken, and
    BlockTooLargeError where they are more than ``limit``."""
    if length > limit:
        raise BlockTooLargeError
    file.seek(begin)
    data = file.read(length + _SYNC_BYTES)
    if data[length:] != header.sync:
        raise ValueError("broken block")
    unpacked = _unpack(header.codec, data[:length], limit)
    if len(unpacked) > limit:
        raise BlockTooLargeError
    return unpacked


def _unpack(codec: str, data: bytes, limit: int) -> bytes:
    """Unpacks little more than is allowed."""
    if codec == "null":
        return data
    if codec == "snappy":
        return _unpack_snappy(data, limit)
    unpacked, size = [], 0
    for piece in _pieces(codec, io.BytesIO(data), len(data)):
        unpacked.append(piece)
        size += len(piece)
        if size > limit:
            break
    return b"".join(unpacked)


def block_pieces(file: IO[bytes], header: Header, begin: int, length: int) -> Iterator[bytes]:
    """The unpacked bytes of a block, however large it is, in pieces.

    Raises ValueError where they or the marker behind them are broken, and BlockTooLargeError for a block that can only
    be unpacked as a whole and is too large for that, or unpacks to more than any log has.
    """
    if header.codec == "snappy":
        yield read_block(file, header, begin, length, _MAX_SNAPPY_BYTES)
        return
    file.seek(begin + length)
    if file.read(_SYNC_BYTES) != header.sync:
        raise ValueError("broken block")
    file.seek(begin)
    size = 0
    for piece in _pieces(header.codec, file, length):
        size += len(piece)
        if size > _MAX_UNPACKED_BYTES:
            raise BlockTooLargeError
        yield piece


def _pieces(codec: str, file: IO[bytes], length: int) -> Iterator[bytes]:
    """Reads ``length`` bytes of a file, and unpacks them."""
    packed = _Part(file, length)
    try:
        if codec == "null":
            yield from packed
        elif codec == "deflate":
            yield from _inflate(packed)
        else:
            with pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd") as stream:
                while piece := stream.read(_PIECE_BYTES):
                    yield piece
    except (zlib.error, pa.ArrowException, OSError):
        raise ValueError("broken block") from None


def _inflate(packed: Iterable[bytes]) -> Iterator[bytes]:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    for data in packed:
        while piece := inflater.decompress(data, _PIECE_BYTES):
            yield piece
            data = inflater.unconsumed_tail
    if not inflater.eof:
        raise ValueError("broken block")


class _Part:
    """The next ``length`` bytes of a file, as a file; iterates over pieces of them."""

    closed = False

    def __init__(self, file: IO[bytes], length: int) -> None:
        self._file, self._left = file, length

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read(_PIECE_BYTES):
            yield piece

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(data)
        return data

    def close(self) -> None:
        self.closed = True


def _unpack_snappy(data: bytes, limit: int) -> bytes:
    """Avro appends the checksum of the unpacked bytes; snappy itself begins with their number."""
    packed, checksum = data[:-4], data[-4:]
    length = shift = at = 0
    while True:
        if at == len(packed):
            raise ValueError("broken block")
        byte = packed[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80 or shift > 35:
            break
    if length > limit:
        raise BlockTooLargeError
    try:
        unpacked: bytes = pa.Codec("snappy").decompress(packed, length, asbytes=True)
    except (pa.ArrowException, OSError):
        raise ValueError("broken block") from None
    if zlib.crc32(unpacked) != int.from_bytes(checksum, "big"):
        raise ValueError("broken block")
    return unpacked
