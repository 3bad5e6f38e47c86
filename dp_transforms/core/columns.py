"""Columns of numbers: packed into bytes and back, and groups of equal rows in sorted columns.

Beam would encode anything else element by element. An Arrow IPC stream takes ten times as long for a small table, and
cannot hold columns of different lengths.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

_SORT_KEY_LIMIT = 2**62
_HASHES_AT_ONCE = 1 << 18
MOST_MESSAGE_BYTES = 8_000_000  # engines refuse values of 80 MB, and copy each one several times
_MAGIC = b"SHH1"
_DTYPES = (np.dtype("<u1"), np.dtype("<u4"), np.dtype("<i8"), np.dtype("<u8"), np.dtype("<u2"))

Whole = npt.NDArray[np.int64]
Packed = bytes | memoryview
Kind = tuple[np.dtype, ...]
BYTES, WORDS, WHOLE, HASHES, _SHORTS = ((dtype,) for dtype in _DTYPES)
NARROW: Kind = (*BYTES, *_SHORTS, *WORDS)


def pack_arrays(*arrays: npt.NDArray) -> bytes:
    """One-dimensional arrays of uint8, uint16, uint32, int64 or uint64."""
    headers = [struct.pack("<4sI", _MAGIC, len(arrays))]
    headers += [struct.pack("<IQ", _DTYPES.index(array.dtype), len(array)) for array in arrays]
    return b"".join([*headers, *(array.tobytes() for array in arrays)])


def unpack_arrays(data: Packed, *kinds: Kind) -> list[npt.NDArray]:
    """Inverse of `pack_arrays`; the arrays are read-only views of the bytes.

    kinds: for each array the types that it may have; none: arrays of any number and type.
    Raises ValueError for any other bytes, also cut or longer ones, and for other arrays.
    """
    if len(data) < 8 or data[:4] != _MAGIC:
        raise ValueError("the bytes are not packed arrays of this version.")
    count = int.from_bytes(data[4:8], "little")
    position = 8 + 12 * count
    check_unpacked(position <= len(data) and (not kinds or len(kinds) == count))
    arrays = []
    for index in range(count):
        dtype_index, length = struct.unpack_from("<IQ", data, 8 + 12 * index)
        check_unpacked(dtype_index < len(_DTYPES))
        dtype = _DTYPES[dtype_index]
        check_unpacked(length * dtype.itemsize <= len(data) - position)
        check_unpacked(not kinds or dtype in kinds[index])
        arrays.append(np.frombuffer(data, dtype, length, position))
        position += length * dtype.itemsize
    check_unpacked(position == len(data))
    return arrays


def check_unpacked(fits: bool | np.bool_) -> None:
    """Raises ValueError unless what was unpacked fits together."""
    if not fits:
        raise ValueError("the packed arrays are damaged. Go on from an older state, or start the run again.")


def narrowest(values: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """The same values, at least 0, in the narrowest dtype that packs: a shuffle costs several copies."""
    bits = int(values.max(initial=0)).bit_length()
    return values.astype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# Groups of equal rows
# ---------------------------------------------------------------------------------------------------------------------


def group_starts(*columns: npt.NDArray) -> Whole:
    """The first row of each group: any of the columns (of one length) differs there from the row before."""
    changes = np.zeros(len(columns[0]), dtype=np.bool_)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)


def are_ascending(*columns: npt.NDArray) -> bool:
    """Whether the rows of these columns (of one length, any number) are distinct, and in order by the first column,
    then by the next ones."""
    if not columns:
        return True
    *earlier, last = columns
    is_later = last[1:] > last[:-1]
    for column in reversed(earlier):
        is_later &= column[1:] == column[:-1]
        is_later |= column[1:] > column[:-1]
    return bool(is_later.all())


def sort_distinct(
    parts: Sequence[Sequence[npt.NDArray[np.integer]]],
    sizes: Sequence[int],
    kind: Literal["quicksort", "stable"] = "quicksort",
) -> list[Whole]:
    """The distinct rows of some tables, ascending by the first column, then by the next ones.

    parts: the columns of each table, of one length. sizes: column k has values of ``0 .. sizes[k] - 1``. kind: "stable"
    is several times as fast where the rows are a few parts that are in order. Rows are sorted as one integer where it
    fits: ten times faster than column by column, and each table may be as narrow as it was packed.
    """
    bits = [(size - 1).bit_length() for size in sizes]
    if sizes[0] << sum(bits[1:]) >= _SORT_KEY_LIMIT:
        columns = [np.concatenate(of_parts, dtype=np.int64) for of_parts in zip(*parts, strict=True)]
        order = np.lexsort(columns[::-1])
        ordered = [column[order] for column in columns]
        kept = group_starts(*ordered)
        return [column[kept] for column in ordered]
    rows = np.empty(sum(len(columns[0]) for columns in parts), dtype=np.int64)
    at = 0
    for first, *others in parts:
        of_part = rows[at : at + len(first)]
        of_part[:] = first
        for column, width in zip(others, bits[1:], strict=True):
            of_part <<= width
            of_part |= column
        at += len(first)
    rows.sort(kind=kind)
    rows = rows[group_starts(rows)]
    found = []
    for width in reversed(bits[1:]):
        found.append(rows & ((1 << width) - 1))
        rows >>= width
    return [rows, *reversed(found)]


def concatenated_ranges(starts: Whole, counts: Whole) -> Whole:
    """The ranges ``start .. start + count - 1`` one after the other. starts, counts: int64[k]."""
    ends = np.cumsum(counts)
    rows: Whole = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + counts, counts)
    return rows


def group_slices(*columns: npt.NDArray) -> list[slice]:
    """The groups of equal rows as slices, in order."""
    bounds = [*group_starts(*columns).tolist(), len(columns[0])]
    return [slice(low, high) for low, high in itertools.pairwise(bounds)]


def order_in_groups(codes: Whole, hashes_of: Callable[[slice], npt.NDArray[np.uint64]]) -> Whole:
    """Positions that sort by code, then by hash. codes: int64[n], at least 0. hashes_of: of these rows, uint64[k, 2],
    distinct in a group and spread evenly; they are asked for part by part, since there may be millions. Returns
    int64[n].

    By as much of a hash as fits into one number beside the code, ten times as fast as by all; where that leaves a tie,
    which is rare, by all.
    """
    bits = np.uint64(max(1, int(codes.max(initial=0)).bit_length()))
    numbers = codes.astype(np.uint64)
    numbers <<= np.uint64(64) - bits
    for low in range(0, len(codes), _HASHES_AT_ONCE):
        some = slice(low, low + _HASHES_AT_ONCE)
        numbers[some] |= hashes_of(some)[:, 0] >> bits
    ordered = np.argsort(numbers)
    numbers = numbers[ordered]
    if (numbers[1:] > numbers[:-1]).all():
        return ordered
    hashes = hashes_of(slice(None))
    return np.lexsort((hashes[:, 1], hashes[:, 0], codes))
