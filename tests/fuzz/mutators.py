"""Mutations of bytes that know no format. Each takes a seeded generator and bytes, and gives bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

Mutator = Callable[[random.Random, bytes], bytes]

MAX_BYTES = 1 << 16  # of a mutated input: small ones are read in milliseconds

BOUNDARIES = [0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53]
BOUNDARIES += [2**62, 2**63 - 1, 2**63, 2**64 - 1]
BOUNDARIES += [-number for number in BOUNDARIES if 0 < number <= 2**63]

_PIECES = [b"\0", b"\xff", b'"', b'""', b"\n", b"\r", b"\r\n", b",", b"\t", b"{", b"}", b"[", b"]", b"\\", b"\\u0000"]
_PIECES += [
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\x1b[31m",
    b"\x1f\x8b\x08",
    b"PAR1",
    b"Obj\x01",
]
_PIECES += [
    b"\x1f\x8b\x08",
    "\u2028".encode(),
    "\u202e".encode(),
    b"NaN",
    b"Infinity",
    b"1e400",
    b"null",
    b"-0",
    b" " * 50,
]


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


def _place(rng: random.Random, data: bytes) -> int:
    return rng.randrange(len(data) + 1)


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    """Most are short."""
    begin = _place(rng, data)
    return begin, min(len(data), begin + rng.choice([1, 2, 4, 8, 16, 100, len(data)]))


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def set_bytes(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        out[rng.randrange(len(out))] = rng.choice([0, 1, 127, 128, 254, 255, rng.randrange(256)])
    return bytes(out)


def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: _place(rng, data)]


def behead(rng: random.Random, data: bytes) -> bytes:
    return data[_place(rng, data) :]


def insert(rng: random.Random, data: bytes) -> bytes:
    at = _place(rng, data)
    piece = rng.choice(_PIECES) if rng.random() < 0.7 else rng.randbytes(rng.choice([1, 2, 4, 8, 64]))
    return data[:at] + piece * rng.choice([1, 1, 1, 2, 30]) + data[at:]


def delete(rng: random.Random, data: bytes) -> bytes:
    begin, end = _span(rng, data)
    return data[:begin] + data[end:]


def duplicate(rng: random.Random, data: bytes) -> bytes:
    begin, end = _span(rng, data)
    return data[:end] + data[begin:end] * rng.choice([1, 1, 2, 20]) + data[end:]


def overwrite(rng: random.Random, data: bytes) -> bytes:
    begin, end = _span(rng, data)
    filling = rng.choice([b"\0", b"\xff", b"\x80", b" ", rng.randbytes(1)])
    return data[:begin] + filling * (end - begin) + data[end:]


def move(rng: random.Random, data: bytes) -> bytes:
    begin, end = _span(rng, data)
    rest = data[:begin] + data[end:]
    at = _place(rng, rest)
    return rest[:at] + data[begin:end] + rest[at:]


def set_number(rng: random.Random, data: bytes) -> bytes:
    """A boundary value over the bytes at some place, little or big endian, of any width, or a varint."""
    at, number = _place(rng, data), rng.choice(BOUNDARIES)
    kind = rng.choice(["<B", "<H", "<I", "<Q", ">I", ">Q", "varint", "zigzag", "grown varint"])
    if kind == "grown varint":
        return data[:at] + varint(number) + data[at + 1 :]
    if kind in ("varint", "zigzag"):
        written = varint(number) if kind == "varint" else zigzag(number)
    else:
        written = struct.pack(kind, number % (1 << (8 * struct.calcsize(kind))))
    return data[:at] + written + data[at + len(written) :]


ANY_BYTES: Sequence[Mutator] = (
    *(flip_bits, flip_bits, set_bytes, set_bytes, set_number, set_number),
    *(truncate, behead, insert, delete, duplicate, overwrite, move),
)


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """The head of one and the tail of the other, or a span of the other within the one."""
    if rng.random() < 0.5:
        return data[: _place(rng, data)] + other[_place(rng, other) :]
    at, (begin, end) = _place(rng, data), _span(rng, other)
    return data[:at] + other[begin:end] + data[at:]


def mutate(rng: random.Random, data: bytes, others: Sequence[bytes], own: Sequence[Mutator]) -> bytes:
    """One to four mutations of ``data``. others: whole inputs to splice with. own: mutators that know the format."""
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4])):
        if own and rng.random() < 0.5:
            data = rng.choice(own)(rng, data)
        elif others and rng.random() < 0.08:
            data = splice(rng, data, rng.choice(others))
        else:
            data = rng.choice(ANY_BYTES)(rng, data)
        data = data[:MAX_BYTES]
    return data
