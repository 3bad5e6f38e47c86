"""Avro containers of bytes of one's own choice, for files that claim what is not so."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pyarrow as pa

PACK: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda data: data,
    "deflate": lambda data: zlib.compress(data, wbits=-15),
    "zstandard": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    "snappy": lambda data: pa.Codec("snappy").compress(data, asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
}


def varint(number: int) -> bytes:
    """An unsigned number, seven bits a byte; of a negative one the 64 bits of its two's complement."""
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def zigzag(number: int) -> bytes:
    """A signed number as Avro and Thrift write it."""
    return varint((number << 1) ^ (number >> 63))


def avro_container(metadata: dict[str, bytes], blocks: list[tuple[int, bytes]]) -> bytes:
    """blocks: (number of records, packed bytes)."""
    sync = b"S" * 16
    entries = b"".join(zigzag(len(key)) + key.encode() + zigzag(len(text)) + text for key, text in metadata.items())
    head = b"Obj\x01" + zigzag(len(metadata)) + entries + b"\0" + sync
    return head + b"".join(zigzag(count) + zigzag(len(data)) + data + sync for count, data in blocks)
