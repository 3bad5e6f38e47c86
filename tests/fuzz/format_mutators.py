"""Mutations that know a format: they change a number, a token or what is packed inside, and leave the rest in order.

Where the bytes are no longer of the format (an earlier mutation broke them), the bytes are flipped as any others.
"""

from __future__ import annotations

import functools
import gzip
import json
import random
import re
import struct
import zlib

from dp_transforms.plan.stored import fingerprint_of
from tests.fuzz.mutators import ANY_BYTES, BOUNDARIES, Mutator, flip_bits


class BrokenFormatError(Exception):
    """The bytes are not of the format."""


_NOT_OF_THE_FORMAT = (
    *(BrokenFormatError, IndexError, ValueError, OverflowError, RecursionError),
    *(zlib.error, EOFError, OSError, struct.error),
)


def or_any(mutator: Mutator) -> Mutator:
    @functools.wraps(mutator)
    def tried(rng: random.Random, data: bytes) -> bytes:
        try:
            return mutator(rng, data)
        except (
            BrokenFormatError,
            IndexError,
            ValueError,
            zlib.error,
            EOFError,
            OSError,
            struct.error,
            RecursionError,
            OverflowError,
        ):
            return flip_bits(rng, data)

    return tried


def inside(rng: random.Random, data: bytes) -> bytes:
    """One mutation of bytes that know no format: for what was unpacked."""
    return rng.choice(ANY_BYTES)(rng, data)


# JSON

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|[A-Za-z]+|[{}\[\],:]', re.DOTALL)
_TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"false", b"NaN", b"-Infinity", b'""', b'"\\ud800"']
_TOKENS += [b'"\\u0000"', b'"\\u202e\\u001b[2J"', b"-0", b"0.5", b"1e400", b"-1e-400", b"1.5e308", b"9" * 30]
_TOKENS += [
    b"9" * 5000,
    b"[]",
    b"{}",
    b"[[]]",
    b'{"a":1}',
    b'"2017-10-01T03:00:00Z"',
    b'"9999-12-31T23:59:59Z"',
    b'"nan"',
]


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


def sealed(plan: bytes) -> bytes:
    """A plan with the fingerprint of what it says. Raises ValueError for what is not a JSON object."""
    fields = json.loads(plan)
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    fields.pop("fingerprint", None)
    return json.dumps({**fields, "fingerprint": fingerprint_of(fields)}, indent=2, allow_nan=False).encode()


@or_any
def change_and_seal(rng: random.Random, data: bytes) -> bytes:
    """Behind the fingerprint of a plan are its other checks."""
    return sealed(rng.choice((replace_token, drop_or_repeat_token, nudge_number))(rng, data))


@or_any
def nudge_number(rng: random.Random, data: bytes) -> bytes:
    """A number a little, or by a factor, beside what it was."""
    one = rng.choice(list(re.finditer(rb"-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?", data)))
    number = json.loads(one[0])
    other = number + rng.choice([-1, 1]) if rng.random() < 0.5 else number * rng.choice([0, -1, 0.5, 2, 10, 1000, 1e-9])
    other = int(other) if isinstance(number, int) and rng.random() < 0.9 else other
    return data[: one.start()] + json.dumps(other).encode() + data[one.end() :]


JSON = (replace_token, replace_token, drop_or_repeat_token, nest)
PLAN = (*JSON, change_and_seal, change_and_seal, change_and_seal, change_and_seal)


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
