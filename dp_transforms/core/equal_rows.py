"""Groups of equal rows in sorted columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

_SORT_KEY_LIMIT = 2**62
_HASHES_AT_ONCE = 1 << 18


def group_starts(*columns: npt.NDArray) -> npt.NDArray[np.int64]:
    """The first row of each group: any of the columns (of one length) differs there from the row before."""
    changes = np.zeros(len(columns[0]), dtype=np.bool_)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)


def are_ascending(*columns: npt.NDArray) -> bool:
    """Whether the rows of these columns (of one length, any number) are distinct, and in order by the first column,
    then by the next ones."""
    if not columns or len(columns[0]) < 2:
        return True
    *earlier, last = columns
    is_later = last[1:] > last[:-1]
    for column in reversed(earlier):
        is_later &= column[1:] == column[:-1]
        is_later |= column[1:] > column[:-1]
    return bool(is_later.all())


def sort_rows(rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows ascending, and where each was; equal ones keep their order. rows: int64[n], at least 0."""
    return sort_with_codes(rows, np.arange(len(rows)))


def sort_with_codes(
    rows: npt.NDArray[np.int64], codes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows and codes together, ascending by row; equal rows in any order. rows, codes: int64[n], at least 0.

    Where it fits, row and code are sorted as one integer, more than twice as fast as `argsort`.
    """
    if np.all(rows[1:] >= rows[:-1]):
        return rows, codes
    bits = int(codes.max(initial=0)).bit_length()
    if int(rows.max(initial=0)) << bits >= _SORT_KEY_LIMIT:
        order = np.lexsort((codes, rows))
        return rows[order], codes[order]
    packed = (rows << bits) | codes
    packed.sort()
    return packed >> bits, packed & ((1 << bits) - 1)


def hash_order(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Positions that sort hashes; equal ones keep their order. hashes: uint64[n], spread evenly. Returns int64[n]."""
    return _ordered_hashes(hashes)[0]


def distinct_hashes(hashes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The distinct hashes, ascending, and where each one is among them. hashes: uint64[n], spread evenly.
    Returns uint64[k], int64[n]."""
    order, ordered = _ordered_hashes(hashes)
    is_other = ordered[1:] != ordered[:-1]  # than the one before
    distinct = np.concatenate([ordered[:1], ordered[1:][is_other]])
    del ordered  # so that its memory is used again: fresh memory costs a third of the time here
    numbers = np.zeros(len(hashes), dtype=np.int64)
    np.cumsum(is_other, out=numbers[1:])
    codes = np.empty(len(hashes), dtype=np.int64)
    codes[order] = numbers
    return distinct, codes


def _ordered_hashes(hashes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """`hash_order`, and the hashes in this order.

    The position takes the place of the last bits of a hash, and both are sorted as one integer, several times as fast
    as `argsort`. Two hashes that differ in these bits alone are rare: then `argsort` does it.
    """
    last_bits = np.uint64((1 << max(0, len(hashes) - 1).bit_length()) - 1)
    packed = np.arange(len(hashes), dtype=np.uint64)
    packed |= hashes & ~last_bits
    packed.sort()
    packed &= last_bits
    order = packed.view(np.int64)
    ordered = hashes.take(order)
    if not (ordered[1:] >= ordered[:-1]).all():
        order = np.argsort(hashes, kind="stable")
        ordered = hashes.take(order)
    return order, ordered


def sort_distinct(
    parts: Sequence[Sequence[npt.NDArray[np.integer]]],
    sizes: Sequence[int],
    kind: Literal["quicksort", "stable"] = "quicksort",
) -> list[npt.NDArray[np.int64]]:
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


def concatenated_ranges(
    starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The ranges ``start .. start + count - 1`` one after the other, int64[r], and their splits, int64[k + 1]."""
    splits = np.concatenate([[0], np.cumsum(counts)])
    return np.arange(splits[-1]) + np.repeat(starts - splits[:-1], counts), splits


def group_slices(*columns: npt.NDArray) -> list[slice]:
    """The groups of equal rows as slices, in order."""
    bounds = [*group_starts(*columns).tolist(), len(columns[0])]
    return [slice(low, high) for low, high in itertools.pairwise(bounds)]


def ranks_in_groups(*columns: npt.NDArray) -> npt.NDArray[np.int64]:
    """The number of each row within its group of equal rows (of sorted columns), from 0. Returns int64[n]."""
    starts = group_starts(*columns)
    rows = len(columns[0])
    return np.arange(rows) - np.repeat(starts, np.diff(np.append(starts, rows)))


def order_in_groups(
    codes: npt.NDArray[np.int64], hashes_of: Callable[[slice], npt.NDArray[np.uint64]]
) -> npt.NDArray[np.int64]:
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


def places_of(held: npt.NDArray[np.uint64], asked: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Where those of `asked` are that are held. Both ascending and distinct. Looks up the fewer in the more."""
    if not len(held) or not len(asked):
        return np.zeros(0, dtype=np.int64)
    if len(asked) <= len(held):
        at = np.minimum(np.searchsorted(held, asked), len(held) - 1)
        found: npt.NDArray[np.int64] = at[held[at] == asked]
        return found
    at = np.minimum(np.searchsorted(asked, held), len(asked) - 1)
    return np.flatnonzero(asked[at] == held)
