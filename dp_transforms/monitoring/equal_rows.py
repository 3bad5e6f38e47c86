"""Runs of equal rows in sorted columns."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt


def run_starts(*columns: npt.NDArray) -> npt.NDArray[np.int64]:
    """Rows at which any of the columns (of one length) differs from the row before; row 0 too, if there is one."""
    changes = np.zeros(len(columns[0]), dtype=np.bool_)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)


def concatenated_ranges(
    starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The ranges ``start .. start + count - 1`` one after the other, int64[r], and where each begins, int64[k + 1]."""
    splits = np.concatenate([[0], np.cumsum(counts)])
    return np.arange(splits[-1]) + np.repeat(starts - splits[:-1], counts), splits


def run_slices(*columns: npt.NDArray) -> list[slice]:
    """The runs of equal rows as slices, in order."""
    bounds = [*run_starts(*columns).tolist(), len(columns[0])]
    return [slice(low, high) for low, high in itertools.pairwise(bounds)]
