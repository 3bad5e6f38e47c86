"""Mutations of Avro containers: counts and lengths, the schema, and what is packed in the blocks."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Callable

import pyarrow as pa

from tests.fuzz.format_mutators import JSON, BrokenFormatError, inside, or_any
from tests.fuzz.mutators import BOUNDARIES, zigzag

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
    """A count or a length that lies, a block more or less, another codec than the one that the header names."""
    parts = AvroParts(data)
    kind = rng.randrange(4)
    index = rng.randrange(len(parts.blocks))
    count, packed = parts.blocks[index]
    if kind == 0:
        other = rng.choice(BOUNDARIES) if rng.random() < 0.3 else count + rng.choice([-1, 1, 10, 1000, 10**6])
        parts.blocks[index] = (max(-(2**63), min(other, 2**63 - 1)), packed)
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
    parts.metadata[key] = rng.choice((*JSON, *SCHEMA_TEXT))(rng, parts.metadata[key])[:65536]
    return parts.put_together()


_TYPES = [
    b'"null"',
    b'"boolean"',
    b'"int"',
    b'"long"',
    b'"float"',
    b'"double"',
    b'"bytes"',
    b'"string"',
    b'"Event"',
    b"[]",
]
_TYPES += [
    json.dumps(kind).encode()
    for kind in (
        *({"type": "array", "items": "null"}, {"type": "map", "values": "null"}, ["null", "string"], ["null", ["int"]]),
        *({"type": "fixed", "name": "F", "size": size} for size in (0, -1, 1_048_577)),
        *({"type": "enum", "name": "E", "symbols": []}, {"type": "record", "name": "R", "fields": []}),
        *({"type": {"type": {"type": "string"}}}, {"type": ["null", "long"]}, {"type": None}),
        {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]},
        {"type": "long", "logicalType": "timestamp-nanos"},
        {"type": "bytes", "logicalType": "decimal", "scale": 1e9},
    )
]


@or_any
def replace_type(rng: random.Random, data: bytes) -> bytes:
    """Another type at some place of a schema."""
    places = list(re.finditer(rb'"type" ?: ?("[^"]*")', data))
    one = rng.choice(places)
    return data[: one.start(1)] + rng.choice(_TYPES) + data[one.end(1) :]


SCHEMA_TEXT = (replace_type, replace_type)
CONTAINER = (mutate_avro_block, mutate_avro_block, mutate_avro_counts, mutate_avro_schema)
