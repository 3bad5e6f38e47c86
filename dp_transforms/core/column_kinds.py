"""What a column of a table may be: how its values are packed, and what rows that coincide have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.core.item_table import TABLE_KINDS, ItemTable
from dp_transforms.core.packed_arrays import HASHES, NARROW, WHOLE, Kind, check_unpacked, narrowest
from dp_transforms.core.randomness import sum_modulo_2_128
from dp_transforms.plan.window_schedule import MOST_WINDOWS

_NARROW_LIMIT = 2**32
Join = Callable[[npt.NDArray, npt.NDArray[np.int64]], npt.NDArray]  # of a column and where each group of rows begins
LEAST, MOST, ADDED = np.minimum.reduceat, np.maximum.reduceat, np.add.reduceat


def first_of(values: npt.NDArray, starts: npt.NDArray[np.int64]) -> npt.NDArray:
    return values[starts]


@dataclasses.dataclass(frozen=True)
class Column:
    """One column, packed as it is.

    stored: the types that it may have when it is unpacked. of: what has one value each; columns of the same things
    have one length. into: the column in which its values are positions. join: what rows that coincide have in common.
    """

    stored: Kind = HASHES
    of: str = "row"
    into: str | None = None
    join: Join = first_of

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of the arrays that it is packed in."""
        return (self.stored,)

    def pack(self, values: Any) -> tuple[npt.NDArray, ...]:
        return (values,)

    def unpack(self, *arrays: npt.NDArray, size: int) -> Any:
        """Inverse of `pack`. Raises ValueError for values that it cannot have. size: of all bytes that were packed, and
        no table has more rows."""
        return arrays[0]

    def count(self, values: Any) -> int:
        """Of how many things there is a value."""
        return len(values)

    def none(self) -> Any:
        return self.unpack(*(np.zeros(0, dtype=kind[0]) for kind in self.kinds), size=0)


@dataclasses.dataclass(frozen=True)
class Narrow(Column):
    """Whole numbers, at least 0, packed in as few bytes as they need."""

    stored: Kind = (*NARROW, *WHOLE)

    def pack(self, values: npt.NDArray[np.int64]) -> tuple[npt.NDArray, ...]:
        return (values if len(values) and values.max() >= _NARROW_LIMIT else narrowest(values),)

    def unpack(self, *arrays: npt.NDArray, size: int) -> npt.NDArray[np.int64]:
        check_unpacked(arrays[0].dtype != np.int64 or not len(arrays[0]) or arrays[0].min() >= 0)
        return arrays[0].astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Windows(Narrow):
    """Numbers of windows: the first one, and how far the others are from it."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return WHOLE, NARROW

    def pack(self, values: npt.NDArray[np.int64]) -> tuple[npt.NDArray, ...]:
        first = values.min(keepdims=True) if len(values) else np.zeros(1, dtype=np.int64)
        return first, narrowest(values - first)

    def unpack(self, *arrays: npt.NDArray, size: int) -> npt.NDArray[np.int64]:
        first, later = arrays
        check_unpacked(len(first) == 1 and 0 <= first[0] < MOST_WINDOWS)
        return later + first  # type: ignore[no-any-return]

    def none(self) -> npt.NDArray[np.int64]:
        return np.zeros(0, dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class Splits(Narrow):
    """Where the rows of each thing begin, and where the last ones end. parts: what the rows are rows of."""

    stored: Kind = NARROW
    parts: str = "part"

    def pack(self, values: npt.NDArray[np.int64]) -> tuple[npt.NDArray, ...]:
        return (narrowest(np.diff(values)),)

    def unpack(self, *arrays: npt.NDArray, size: int) -> npt.NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(arrays[0], dtype=np.int64)])

    def count(self, values: npt.NDArray[np.int64]) -> int:
        return len(values) - 1


@dataclasses.dataclass(frozen=True)
class Codes(Narrow):
    """Positions that ascend from row to row, packed as how many rows each has."""

    stored: Kind = NARROW

    def pack(self, values: npt.NDArray[np.int64]) -> tuple[npt.NDArray, ...]:
        return (narrowest(np.bincount(values)),)

    def unpack(self, *arrays: npt.NDArray, size: int) -> npt.NDArray[np.int64]:
        check_unpacked(arrays[0].sum(dtype=np.int64) <= size)
        return np.repeat(np.arange(len(arrays[0])), arrays[0])


@dataclasses.dataclass(frozen=True)
class Digests(Column):
    """Numbers of 128 bits, uint64[n, 2]."""

    join: Join = sum_modulo_2_128

    def pack(self, values: npt.NDArray[np.uint64]) -> tuple[npt.NDArray, ...]:
        return (values.reshape(-1),)

    def unpack(self, *arrays: npt.NDArray, size: int) -> npt.NDArray[np.uint64]:
        check_unpacked(len(arrays[0]) % 2 == 0)
        return arrays[0].reshape(-1, 2)


@dataclasses.dataclass(frozen=True)
class Items(Column):
    """An `ItemTable`."""

    of: str = "item"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return TABLE_KINDS

    def pack(self, values: ItemTable) -> tuple[npt.NDArray, ...]:
        return values.arrays()

    def unpack(self, *arrays: npt.NDArray, size: int) -> ItemTable:
        return ItemTable.from_arrays(*arrays)

    def none(self) -> ItemTable:
        return ItemTable.none()
