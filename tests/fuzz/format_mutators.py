"""Mutations that know a format: they change a number, a token or what is packed inside, and leave the rest in order.

Where the bytes are no longer of the format (an earlier mutation broke them), the bytes are flipped as any others.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterator

import pyarrow as pa

from tests.fuzz.mutators import ANY_BYTES, BOUNDARIES, Mutator, flip_bits, varint, zigzag


class BrokenFormatError(Exception):
    """The bytes are not of the format."""


def or_any(mutator: Mutator) -> Mutator:
    @functools.wraps(mutator)
    def tried(rng: random.Random, data: bytes) -> bytes:
        try:
            return mutator(rng, data)
        except (BrokenFormatError, IndexError, ValueError, zlib.error, EOFError, OSError, struct.error):
            return flip_bits(rng, data)

    return tried


def inside(rng: random.Random, data: bytes) -> bytes:
    """One mutation of bytes that know no format: for what was unpacked."""
    return rng.choice(ANY_BYTES)(rng, data)


# JSON

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|[A-Za-z]+|[{}\[\],:]', re.DOTALL)
_TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"false", b"NaN", b"-Infinity", b'""', b'"\\ud800"']
_TOKENS += [b'"\\u0000"', b'"\\u202e\\u001b[2J"', b"-0", b"0.5", b"1e400", b"-1e-400", b"1.5e308", b"9" * 30, b"9" * 5000]
_TOKENS += [b"[]", b"{}", b"[[]]", b'{"a":1}', b'"2017-10-01T03:00:00Z"', b'"9999-12-31T23:59:59Z"', b'"nan"']


@or_any
def replace_token(rng: random.Random, data: bytes) -> bytes:
    found = list(_TOKEN.finditer(data))
    one = found[rng.randrange(len(found))]
    token = rng.choice(_TOKENS) if rng.random() < 0.6 else str(rng.choice(BOUNDARIES)).encode()
    if rng.random() < 0.25:
        token = found[rng.randrange(len(found))][0]
    return data[: one.start()] + token + data[one.end() :]


@or_any
def drop_or_repeat_token(rng: random.Random, data: bytes) -> bytes:
    found = list(_TOKEN.finditer(data))
    first = rng.randrange(len(found))
    begin, end = found[first].start(), found[min(len(found) - 1, first + rng.choice([0, 1, 3, 4, 8]))].end()
    piece = b"" if rng.random() < 0.5 else data[begin:end] + rng.choice([b"", b","]) + data[begin:end]
    return data[:begin] + piece + data[end:]


@or_any
def nest(rng: random.Random, data: bytes) -> bytes:
    found = list(_TOKEN.finditer(data))
    one, depth = found[rng.randrange(len(found))], rng.choice([1, 10, 190, 205, 1000, 5000])
    before, after = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    return data[: one.start()] + before * depth + one[0] + after * depth + data[one.end() :]


JSON = (replace_token, replace_token, drop_or_repeat_token, nest)


# gzip


@or_any
def mutate_unpacked(rng: random.Random, data: bytes) -> bytes:
    return gzip.compress(inside(rng, gzip.decompress(data)), mtime=0)


@or_any
def mutate_members(rng: random.Random, data: bytes) -> bytes:
    """Several members, empty ones, something behind the last one, or a trailer that lies."""
    kind = rng.randrange(6)
    if kind == 0:
        text = gzip.decompress(data)
        at = rng.randrange(len(text) + 1)
        return gzip.compress(text[:at], mtime=0) + gzip.compress(text[at:], mtime=0)
    if kind == 1:
        return data + gzip.compress(b"", mtime=0) * rng.choice([1, 50])
    if kind == 2:
        return data + rng.choice([b"\0", b"\0" * 512, b"junk", b"\x1f\x8b", data[: len(data) // 2], data])
    if kind == 3:
        return data[:-8] + flip_bits(rng, data[-8:])
    if kind == 4:  # flags: text, header checksum, extra field, name, comment; method and version
        at = rng.randrange(2, 10)
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    header = b"\x1f\x8b\x08\x0c\0\0\0\0\0\x03" + struct.pack("<H", 6) + b"extra!" + b"name\0"
    return header + data[10:]


GZIP = (mutate_unpacked, mutate_unpacked, mutate_members)


# Thrift's compact protocol, in which Parquet writes its footer and the header of each page

_BINARY, _LIST, _SET, _MAP, _STRUCT = 8, 9, 10, 11, 12
_MAX_DEPTH = 30


class ThriftWalk:
    """Where a struct holds numbers and texts.

    numbers: (begin, end) of each varint. texts: (begin of its length, begin, end). end: behind the struct.
    """

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.numbers: list[tuple[int, int]] = []
        self.texts: list[tuple[int, int, int]] = []
        self.by_field: dict[int, int] = {}  # of the outermost struct: field -> value, of its numbers
        self.end = self._struct(at, 0)

    def _varint(self, at: int, *, note: bool = True) -> tuple[int, int]:
        begin, value, shift = at, 0, 0
        while True:
            byte = self._data[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
            if shift > 70:
                raise BrokenFormatError
        if note:
            self.numbers.append((begin, at))
        return value, at

    def _struct(self, at: int, depth: int) -> int:
        field = 0
        while True:
            head = self._data[at]
            at += 1
            if head == 0:
                return at
            if head >> 4:
                field += head >> 4
            else:
                field, at = self._varint(at, note=False)
            before = len(self.numbers)
            at = self._value(head & 15, at, depth)
            if depth == 0 and len(self.numbers) == before + 1:
                raw, _ = self._varint(self.numbers[before][0], note=False)
                self.by_field[field] = (raw >> 1) ^ -(raw & 1)

    def _value(self, kind: int, at: int, depth: int) -> int:
        if depth > _MAX_DEPTH:
            raise BrokenFormatError
        if kind in (1, 2):
            return at
        if kind == 3:
            return at + 1
        if kind in (4, 5, 6):
            return self._varint(at)[1]
        if kind == 7:
            return at + 8
        if kind == _BINARY:
            length, begin = self._varint(at, note=False)
            if begin + length > len(self._data):
                raise BrokenFormatError
            self.texts.append((at, begin, begin + length))
            return begin + length
        if kind in (_LIST, _SET):
            return self._list(at, depth)
        if kind == _STRUCT:
            return self._struct(at, depth + 1)
        raise BrokenFormatError

    def _list(self, at: int, depth: int) -> int:
        head = self._data[at]
        count, at = (head >> 4, at + 1) if head >> 4 < 15 else self._varint(at + 1)
        for _ in range(count):
            at = at + 1 if head & 15 in (1, 2) else self._value(head & 15, at, depth + 1)
        return at


def _other_number(rng: random.Random, written: bytes) -> bytes:
    """Another varint: near the old one, or at a boundary; often of the same width, so that what follows stays put."""
    value = 0
    for shift, byte in enumerate(written):
        value |= (byte & 0x7F) << (7 * shift)
    signed = (value >> 1) ^ -(value & 1)
    kind = rng.randrange(4)
    if kind == 0:
        new = zigzag(signed + rng.choice([-2, -1, 1, 2, 10, -10]))
    elif kind == 1:
        new = zigzag(rng.choice(BOUNDARIES) % 2**63)
    elif kind == 2:
        new = varint(rng.choice(BOUNDARIES))
    else:
        new = zigzag(-signed if rng.random() < 0.5 else signed * rng.choice([0, 2, 100, 10_000]) % 2**63)
    if len(new) < len(written):
        new = new[:-1] + bytes([new[-1] | 0x80]) + b"\x80" * (len(written) - len(new) - 1) + b"\0"
    return new


def _footer(data: bytes) -> int:
    """Where the footer of a Parquet file begins."""
    if len(data) < 12 or data[-4:] != b"PAR1":
        raise BrokenFormatError
    begin = len(data) - 8 - struct.unpack_from("<I", data, len(data) - 8)[0]
    if begin < 4:
        raise BrokenFormatError
    return begin


def _with_footer(data: bytes, footer: bytes) -> bytes:
    return data[: _footer(data)] + footer + struct.pack("<I", len(footer)) + b"PAR1"


@or_any
def mutate_footer_number(rng: random.Random, data: bytes) -> bytes:
    footer = data[_footer(data) : -8]
    begin, end = rng.choice(ThriftWalk(footer, 0).numbers)
    return _with_footer(data, footer[:begin] + _other_number(rng, footer[begin:end]) + footer[end:])


@or_any
def mutate_footer_text(rng: random.Random, data: bytes) -> bytes:
    """Names, statistics, and the Arrow schema, which is a flatbuffer in base64."""
    footer = data[_footer(data) : -8]
    length_at, begin, end = rng.choice(ThriftWalk(footer, 0).texts)
    text = footer[begin:end]
    if len(text) > 200 and rng.random() < 0.9:
        text = base64.b64encode(inside(rng, base64.b64decode(text)))
    else:
        text = inside(rng, text)[:4096]
    return _with_footer(data, footer[:length_at] + varint(len(text)) + text + footer[end:])


def _pages(data: bytes) -> Iterator[tuple[int, ThriftWalk]]:
    """Where the header of each page begins, and what is in it. Field 3 is the page's size in the file."""
    at, end = 4, _footer(data)
    with contextlib.suppress(BrokenFormatError, IndexError):
        while at < end:
            walk = ThriftWalk(data[:end], at)
            yield at, walk
            size = walk.by_field.get(3, -1)
            if size < 0:
                return
            at = walk.end + size


@or_any
def mutate_page_header(rng: random.Random, data: bytes) -> bytes:
    _, walk = rng.choice(list(_pages(data)))
    begin, end = rng.choice(walk.numbers)
    return data[:begin] + _other_number(rng, data[begin:end])[: end - begin] + data[end:]


@or_any
def mutate_page(rng: random.Random, data: bytes) -> bytes:
    """Bytes of a page, which are indices of a dictionary, levels or values, where it is not packed."""
    _, walk = rng.choice(list(_pages(data)))
    begin = walk.end
    page = data[begin : begin + walk.by_field.get(3, 0)]
    changed = bytearray(flip_bits(rng, page) if rng.random() < 0.5 else inside(rng, page))
    changed = changed[: len(page)].ljust(len(page), b"\xff")
    return data[:begin] + bytes(changed) + data[begin + len(page) :]


PARQUET = (mutate_footer_number, mutate_footer_text, mutate_page_header, mutate_page, mutate_page)


# Avro

PACK: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda data: data,
    "deflate": lambda data: zlib.compress(data, wbits=-15),
    "zstandard": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    "snappy": lambda data: pa.Codec("snappy").compress(data, asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
}


def avro_container(metadata: dict[str, bytes], blocks: list[tuple[int, bytes]], sync: bytes = b"S" * 16) -> bytes:
    """blocks: (number of records, packed bytes)."""
    entries = b"".join(zigzag(len(key)) + key.encode() + zigzag(len(text)) + text for key, text in metadata.items())
    head = b"Obj\x01" + zigzag(len(metadata)) + entries + b"\0" + sync
    return head + b"".join(zigzag(count) + zigzag(len(data)) + data + sync for count, data in blocks)


class AvroParts:
    """A container taken apart. Raises for broken ones."""

    def __init__(self, data: bytes) -> None:
        if not data.startswith(b"Obj\x01"):
            raise BrokenFormatError
        self._data, self._at = data, 4
        self.metadata: dict[str, bytes] = {}
        while (count := self._long()) != 0:
            for _ in range(min(abs(count), 20)):
                key = self._bytes(self._long()).decode()
                self.metadata[key] = self._bytes(self._long())
        self.sync = self._bytes(16)
        self.blocks: list[tuple[int, bytes]] = []
        while self._at < len(data):
            count = self._long()
            self.blocks.append((count, self._bytes(self._long())))
            self._bytes(16)
        self.codec = self.metadata.get("avro.codec", b"null").decode()

    def _long(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            value |= (byte & 0x7F) << shift
            self._at, shift = self._at + 1, shift + 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    def _bytes(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data) - self._at:
            raise BrokenFormatError
        self._at += length
        return self._data[self._at - length : self._at]

    def put_together(self) -> bytes:
        return avro_container(self.metadata, self.blocks, self.sync)


def _unpack(codec: str, data: bytes) -> bytes:
    if codec == "deflate":
        return zlib.decompress(data, wbits=-15)
    if codec == "zstandard":
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            return bytes(stream.read(1 << 20))
    if codec == "snappy":
        length = shift = 0
        for byte in data:
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if length > 1 << 20:
            raise BrokenFormatError
        return bytes(pa.Codec("snappy").decompress(data[:-4], length, asbytes=True))
    return data


@or_any
def mutate_avro_block(rng: random.Random, data: bytes) -> bytes:
    """The records of a block, packed again as they were: lengths, counts and branches of unions change."""
    parts = AvroParts(data)
    index = rng.randrange(len(parts.blocks))
    count, packed = parts.blocks[index]
    unpacked = inside(rng, _unpack(parts.codec, packed))[:65536]
    parts.blocks[index] = (count, PACK[parts.codec](unpacked) if parts.codec in PACK else unpacked)
    return parts.put_together()


@or_any
def mutate_avro_counts(rng: random.Random, data: bytes) -> bytes:
    """A count or a length that lies, a block more or less, another codec than the one told."""
    parts = AvroParts(data)
    kind = rng.randrange(4)
    index = rng.randrange(len(parts.blocks))
    count, packed = parts.blocks[index]
    if kind == 0:
        parts.blocks[index] = (rng.choice([count + 1, count - 1, -count, *BOUNDARIES]) % 2**64 - 2**63, packed)
        if rng.random() < 0.7:
            parts.blocks[index] = (count + rng.choice([-1, 1, 10, 1000, 10**6]), packed)
        return parts.put_together()
    if kind == 1:
        whole = parts.put_together()
        at = whole.index(zigzag(len(packed)) + packed)
        return whole[:at] + zigzag(rng.choice(BOUNDARIES) % 2**63) + packed + whole[at + len(packed) + 1 :]
    if kind == 2:
        parts.metadata["avro.codec"] = rng.choice([*PACK, "bzip2", "xz", ""]).encode()
        return parts.put_together()
    parts.blocks[index : index + 1] = [(count, packed)] * rng.choice([0, 2, 5]) + [(0, b"")] * rng.choice([0, 1])
    return parts.put_together()


@or_any
def mutate_avro_schema(rng: random.Random, data: bytes) -> bytes:
    parts = AvroParts(data)
    key = rng.choice(list(parts.metadata))
    parts.metadata[key] = rng.choice((*JSON, *AVRO_SCHEMA_TEXT))(rng, parts.metadata[key])[:65536]
    return parts.put_together()


_TYPES = [b'"null"', b'"boolean"', b'"int"', b'"long"', b'"float"', b'"double"', b'"bytes"', b'"string"', b'"Event"']
_TYPES += [b'{"type":"array","items":"null"}', b'{"type":"map","values":"null"}', b'["null","string"]', b"[]"]
_TYPES += [b'{"type":"fixed","name":"F","size":1048577}', b'{"type":"fixed","name":"F","size":0}', b'["null",["int"]]']
_TYPES += [b'{"type":"fixed","name":"F","size":-1}', b'{"type":"enum","name":"E","symbols":[]}']
_TYPES += [b'{"type":"record","name":"R","fields":[]}', b'{"type":{"type":{"type":"string"}}}', b'{"type":["null","long"]}']
_TYPES += [b'{"type":"record","name":"R","fields":[{"name":"next","type":["null","R"]}]}', b'{"type":null}']
_TYPES += [b'{"type":"long","logicalType":"timestamp-nanos"}', b'{"type":"bytes","logicalType":"decimal","scale":1e9}']


@or_any
def replace_type(rng: random.Random, data: bytes) -> bytes:
    """Another type at some place of a schema."""
    places = [m for m in re.finditer(rb'"type" ?: ?("[^"]*")', data)]
    one = rng.choice(places)
    return data[: one.start(1)] + rng.choice(_TYPES) + data[one.end(1) :]


AVRO_SCHEMA_TEXT = (replace_type, replace_type)
AVRO = (mutate_avro_block, mutate_avro_block, mutate_avro_counts, mutate_avro_schema)
