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


def run_slices(*columns: npt.NDArray) -> list[slice]:
    """The runs of equal rows as slices, in order."""
    bounds = [*run_starts(*columns).tolist(), len(columns[0])]
    return [slice(low, high) for low, high in itertools.pairwise(bounds)]
