"""Known items: what was named lately, and so is public. A function of what was published alone.

Of a stream, or of one shard of its items.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dp_transforms.monitor.item_table import TABLE_KINDS, ItemTable
from dp_transforms.monitor.packed_arrays import WHOLE, Packed, check_unpacked, pack_arrays, unpack_arrays

_MOST_CELL_BYTES = 8_000_000


class Cells(Protocol):
    """Cells (window, item). windows: int64[n]. items: int64[n], position in ``table``."""

    @property
    def windows(self) -> npt.NDArray[np.int64]: ...
    @property
    def items(self) -> npt.NDArray[np.int64]: ...
    @property
    def table(self) -> ItemTable: ...


@dataclasses.dataclass(frozen=True, eq=False)
class KnownItems:
    """k items in the order of their keyed hashes, with the window in which each was last named.

    table: ItemTable of length k. last_named: int64[k].
    """

    table: ItemTable
    last_named: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.table)

    @classmethod
    def none(cls) -> KnownItems:
        return cls(ItemTable.none(), np.zeros(0, dtype=np.int64))

    def after(self, named: Cells, next_window: int, forget_after: int) -> KnownItems:
        """What is known in ``next_window``, if after these items were named no others are, up to that window.

        An item is known in window t if it was named in one of the windows ``t - forget_after .. t - 1``.
        """
        is_known = self.last_named >= next_window - forget_after
        is_new = named.windows >= next_window - forget_after
        if not is_new.any():
            if is_known.all():
                return self
            return KnownItems(self.table.take(np.flatnonzero(is_known)), self.last_named[is_known])
        table, (old, new) = ItemTable.merge([self.table, named.table])
        last_named = np.full(len(table), -1, dtype=np.int64)
        last_named[old] = self.last_named
        np.maximum.at(last_named, new[named.items], named.windows)
        kept = np.flatnonzero((last_named >= 0) & (last_named >= next_window - forget_after))
        return KnownItems(table.take(kept), last_named[kept])

    def last_named_of(self, table: ItemTable) -> npt.NDArray[np.int64]:
        """The window in which each of these items was last named, -1 for one that is not here. Returns int64[k]."""
        union, (here, asked) = ItemTable.merge([self.table, table])
        last_named = np.full(len(union), -1, dtype=np.int64)
        last_named[here] = self.last_named
        return last_named[asked]

    def since(self, window: int) -> KnownItems:
        """Those that were last named in this window or later."""
        rows = np.flatnonzero(self.last_named >= window)
        return KnownItems(self.table.take(rows), self.last_named[rows])

    @classmethod
    def join(cls, parts: Sequence[KnownItems]) -> KnownItems:
        """The items of all parts, each with the latest of its windows."""
        if not parts:
            return cls.none()
        table, positions = ItemTable.merge([part.table for part in parts])
        last_named = np.full(len(table), -1, dtype=np.int64)
        for part, position in zip(parts, positions, strict=True):
            np.maximum.at(last_named, position, part.last_named)
        return cls(table, last_named)

    def to_cells(self) -> list[bytes]:
        """As byte strings under 10 MB, for state that an engine keeps; none for no items."""
        return list(self._cells())

    def _cells(self) -> Iterator[bytes]:
        if not len(self):
            return
        data = pack_arrays(self.last_named, *self.table.arrays())
        if len(data) <= _MOST_CELL_BYTES or len(self) == 1:
            yield data
            return
        middle = len(self) // 2
        for rows in (np.arange(middle), np.arange(middle, len(self))):
            yield from KnownItems(self.table.take(rows), self.last_named[rows])._cells()

    @classmethod
    def from_cells(cls, cells: Iterable[Packed]) -> KnownItems:
        """Inverse of `to_cells`, in any order. Raises ValueError for cells that do not fit together."""
        tables, windows = [], []
        for cell in cells:
            last_named, *arrays = unpack_arrays(cell, WHOLE, *TABLE_KINDS)
            table = ItemTable.from_arrays(*arrays)
            check_unpacked(len(last_named) == len(table))
            tables.append(table)
            windows.append(last_named)
        if not tables:
            return cls.none()
        table, positions = ItemTable.merge(tables)
        check_unpacked(len(table) == sum(map(len, tables)))
        ordered = np.empty(len(table), dtype=np.int64)
        ordered[np.concatenate(positions)] = np.concatenate(windows)
        return cls(table, ordered)
