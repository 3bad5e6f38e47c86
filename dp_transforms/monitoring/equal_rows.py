"""Groups of equal rows in sorted columns."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

_SORT_KEY_LIMIT = 2**62


def group_starts(*columns: npt.NDArray) -> npt.NDArray[np.int64]:
    """The first row of each group: any of the columns (of one length) differs there from the row before."""
    changes = np.zeros(len(columns[0]), dtype=np.bool_)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)


def sort_rows(rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows ascending, and where each was; equal ones keep their order. rows: int64[n], at least 0.

    Where it fits, row and place are sorted as one integer, about twice as fast as `argsort`.
    """
    bits = len(rows).bit_length()
    if int(rows.max(initial=0)) << bits >= _SORT_KEY_LIMIT:
        order = np.argsort(rows, kind="stable")
        return rows[order], order
    packed = (rows << bits) | np.arange(len(rows))
    packed.sort()
    return packed >> bits, packed & ((1 << bits) - 1)


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
