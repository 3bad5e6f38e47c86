"""The framing of an Avro container file, of logs and of reports, read with limits: header, blocks, codecs.

The Avro library believes the lengths and counts that a file claims. Here each is checked against what it could be
before any memory is taken for it. Errors hold nothing of the file; the caller names it.
"""

from __future__ import annotations

import dataclasses
import io
import zlib
from collections.abc import Iterable, Iterator
from typing import IO

CODECS = ("null", "deflate", "snappy", "zstandard")
_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_SNAPPY_BYTES = 64 << 20  # packed and unpacked: it is unpacked as a whole
_MAX_UNPACKED_BYTES = 1 << 30  # in pieces
_PIECE_BYTES = 1 << 16
_MAX_LONG_BYTES = 10
_USUAL_HEADER_BYTES = 1 << 16  # read first; a larger header costs a second read


class DamagedContainerError(ValueError):
    """A file that is not an Avro container, or is damaged."""


class HeaderTooLargeError(ValueError):
    """A header that is larger than the caller's limit."""


class BlockTooLargeError(ValueError):
    """A block that is larger than the caller's limit."""


@dataclasses.dataclass(frozen=True)
class Header:
    """metadata: with the schema, a JSON text, under ``avro.schema``. end: where the first block begins."""

    metadata: dict[bytes, bytes]
    sync: bytes
    end: int

    @property
    def schema(self) -> bytes:
        return self.metadata.get(b"avro.schema", b"")

    @property
    def codec(self) -> str:
        """Empty if it is not one of CODECS."""
        name = self.metadata.get(b"avro.codec", b"null").decode("ascii", "replace")
        return name if name in CODECS else ""


def read_header(file: IO[bytes], most_bytes: int) -> Header:
    """The header at the beginning of a file. Raises DamagedContainerError; HeaderTooLargeError above ``most_bytes``."""
    head = file.read(min(most_bytes, _USUAL_HEADER_BYTES))
    try:
        return _header(head, most_bytes)
    except DamagedContainerError:
        if len(head) < _USUAL_HEADER_BYTES or not head.startswith(_MAGIC):
            raise
    return _header(head + file.read(most_bytes - len(head)), most_bytes)


def _header(head: bytes, most_bytes: int) -> Header:
    if not head.startswith(_MAGIC):
        raise DamagedContainerError
    stream = io.BytesIO(head)
    stream.seek(len(_MAGIC))
    metadata: dict[bytes, bytes] = {}
    try:
        while count := read_long(stream):
            if count < 0:  # the size of this part of the map, in bytes, follows
                count = -count
                read_long(stream)
            for _ in range(count):
                key = _exactly(stream, read_long(stream))
                metadata[key] = _exactly(stream, read_long(stream))
        sync = _exactly(stream, _SYNC_BYTES)
    except DamagedContainerError:
        if len(head) == most_bytes:
            raise HeaderTooLargeError from None
        raise
    return Header(metadata, sync, stream.tell())


def read_long(stream: IO[bytes]) -> int:
    """A zigzag number of at most 64 bits. Raises DamagedContainerError if there is none."""
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
    raise DamagedContainerError


def _exactly(stream: io.BytesIO, size: int) -> bytes:
    data = stream.read(max(0, size))
    if len(data) != size:
        raise DamagedContainerError
    return data


def iter_frames(
    file: IO[bytes], header: Header, begin: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """(claimed number of records, where the packed bytes begin, their number) of each block, by seeking.

    begin, end: only of the blocks from one position in the file up to another one, where blocks begin.
    Raises DamagedContainerError where the framing is broken.
    """
    file.seek(0, 2)
    size = file.tell()
    at = max(begin, header.end)
    while at < (size if end is None else min(end, size)):
        file.seek(at)
        numbers = io.BytesIO(file.read(2 * _MAX_LONG_BYTES))
        count, length = read_long(numbers), read_long(numbers)
        data = at + numbers.tell()
        if count < 0 or not 0 <= length <= size - data - _SYNC_BYTES:
            raise DamagedContainerError
        yield count, data, length
        at = end_of_frame(data, length)


def end_of_frame(begin: int, length: int) -> int:
    """Of the block whose ``length`` packed bytes begin at ``begin``: where the next one begins."""
    return begin + length + _SYNC_BYTES


def read_block(file: IO[bytes], header: Header, begin: int, length: int, limit: int) -> bytes:
    """The unpacked bytes of a block. Raises DamagedContainerError where they or the marker after them are broken, and
    BlockTooLargeError where they are more than ``limit``."""
    if length > limit:
        raise BlockTooLargeError
    file.seek(begin)
    data = file.read(length + _SYNC_BYTES)
    if data[length:] != header.sync:
        raise DamagedContainerError
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

    Raises DamagedContainerError where they or the marker after them are broken, and BlockTooLargeError for a block
    that can only be unpacked as a whole and is too large for that, or unpacks to more than any log has.
    """
    if header.codec == "snappy":
        yield read_block(file, header, begin, length, _MAX_SNAPPY_BYTES)
        return
    file.seek(begin + length)
    if file.read(_SYNC_BYTES) != header.sync:
        raise DamagedContainerError
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
            yield from _unpack_zstandard(packed)
    except (zlib.error, OSError):
        raise DamagedContainerError from None


def _inflate(packed: Iterable[bytes]) -> Iterator[bytes]:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    for data in packed:
        while piece := inflater.decompress(data, _PIECE_BYTES):
            yield piece
            data = inflater.unconsumed_tail
    if not inflater.eof:
        raise DamagedContainerError


def _unpack_zstandard(packed: _Part) -> Iterator[bytes]:
    import pyarrow as pa  # heavy, and codecs that need it are rare

    try:
        with pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd") as stream:
            while piece := stream.read(_PIECE_BYTES):
                yield piece
    except pa.ArrowException:
        raise DamagedContainerError from None


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
            raise DamagedContainerError
        byte = packed[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80 or shift > 35:
            break
    if length > limit:
        raise BlockTooLargeError
    import pyarrow as pa

    try:
        unpacked: bytes = pa.Codec("snappy").decompress(packed, length, asbytes=True)
    except (pa.ArrowException, OSError):
        raise DamagedContainerError from None
    if zlib.crc32(unpacked) != int.from_bytes(checksum, "big"):
        raise DamagedContainerError
    return unpacked
