"""Mutations of Parquet files: numbers and texts of the footer, the headers of pages, and what is in the pages."""

from __future__ import annotations

import base64
import contextlib
import random
import struct
from collections.abc import Iterator

from tests.fuzz.format_mutators import BrokenFormatError, inside, or_any
from tests.fuzz.mutators import BOUNDARIES, flip_bits, varint, zigzag

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
