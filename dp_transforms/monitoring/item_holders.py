"""Who holds which item in which window: cells (window, item), each with its holders."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.monitoring.equal_rows import concatenated_ranges, group_slices, group_starts
from dp_transforms.monitoring.item_table import TABLE_KINDS, ItemTable
from dp_transforms.monitoring.packed_arrays import (
    HASHES,
    NARROW,
    WHOLE,
    check_unpacked,
    narrowest,
    pack_arrays,
    unpack_arrays,
)
from dp_transforms.monitoring.user_pairs import UserPairs
from dp_transforms.window_schedule import MOST_WINDOWS


@dataclasses.dataclass(frozen=True, eq=False)
class ItemHolders:
    """c cells (window, item), distinct, sorted by window and then by the keyed hash of the item.

    windows: int64[c], window index. items: int64[c], position in ``table``. splits: int64[c + 1], rows of each cell.
    holders: uint64[n], keyed hashes of the users of each cell; distinct within it, in no particular order.

    A cell without holders is one of `zero_items`: an item of a known domain that is published if nobody holds it.
    """

    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int64]
    holders: npt.NDArray[np.uint64]
    table: ItemTable

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Number of holders of each cell: raw, never to be published. int64[c]."""
        return np.diff(self.splits)

    @classmethod
    def without_holders(
        cls, windows: npt.NDArray[np.int64], items: npt.NDArray[np.int64], table: ItemTable
    ) -> ItemHolders:
        """Cells that nobody holds. windows, items: as above."""
        return cls(windows, items, np.zeros(len(windows) + 1, dtype=np.int64), np.zeros(0, dtype=np.uint64), table)

    @classmethod
    def of_pairs(cls, pairs: UserPairs) -> ItemHolders:
        """The same pairs, turned from user order into item order."""
        rows = pairs.windows * len(pairs.table) + pairs.items if len(pairs) else pairs.windows
        order = np.argsort(rows, kind="stable")
        return cls._of_ordered_rows(rows[order], pairs.users[pairs.user_codes()[order]], pairs.table)

    @classmethod
    def merge(cls, parts: Sequence[ItemHolders]) -> ItemHolders:
        """The union of parts that hold different users (their cells may coincide)."""
        if len(parts) == 1:
            return parts[0]
        table, item_maps = ItemTable.merge([part.table for part in parts])
        cells = [
            part.windows * len(table) + item_map[part.items] for part, item_map in zip(parts, item_maps, strict=True)
        ]
        rows = np.concatenate([np.repeat(cell, part.counts) for cell, part in zip(cells, parts, strict=True)])
        order = np.argsort(rows, kind="stable")
        holders = np.concatenate([part.holders for part in parts])
        held = cls._of_ordered_rows(rows[order], holders[order], table)
        empty = np.concatenate([cell[part.counts == 0] for cell, part in zip(cells, parts, strict=True)])
        return held._with_empty_cells(empty) if len(empty) else held

    @classmethod
    def _of_ordered_rows(
        cls, rows: npt.NDArray[np.int64], holders: npt.NDArray[np.uint64], table: ItemTable
    ) -> ItemHolders:
        """rows: ``window * len(table) + item``, ascending."""
        starts = group_starts(rows)
        windows, items = np.divmod(rows[starts], max(1, len(table)))
        return cls(windows, items, np.append(starts, len(rows)), holders, table)

    def _with_empty_cells(self, rows: npt.NDArray[np.int64]) -> ItemHolders:
        """rows: ``window * len(table) + item`` of cells without holders; those that have holders here are left out."""
        held = self.windows * len(self.table) + self.items
        rows = np.concatenate([held, np.setdiff1d(rows, held)])
        counts = np.zeros(len(rows), dtype=np.int64)
        counts[: len(self)] = self.counts
        order = np.argsort(rows)
        windows, items = np.divmod(rows[order], len(self.table))
        splits = np.concatenate([[0], np.cumsum(counts[order])])
        return ItemHolders(windows, items, splits, self.holders, self.table)

    def rows_of(self, cells: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows of these cells one after the other, int64[r], and where each begins, int64[k + 1]."""
        return concatenated_ranges(self.splits[cells], self.splits[cells + 1] - self.splits[cells])

    def select(self, cells: npt.NDArray[np.int64]) -> ItemHolders:
        """These cells (ascending positions), with a table of their items alone."""
        rows, splits = self.rows_of(cells)
        used, items = np.unique(self.items[cells], return_inverse=True)
        return ItemHolders(self.windows[cells], items.reshape(-1), splits, self.holders[rows], self.table.take(used))

    def select_range(self, cells: slice) -> ItemHolders:
        """Consecutive cells, as views; the table stays whole."""
        low, high = self.splits[cells.start], self.splits[cells.stop]
        return ItemHolders(
            self.windows[cells],
            self.items[cells],
            self.splits[cells.start : cells.stop + 1] - low,
            self.holders[low:high],
            self.table,
        )

    def by_window(self) -> Iterator[tuple[int, slice]]:
        """Each window and the slice of its cells, in order."""
        for cells in group_slices(self.windows):
            yield int(self.windows[cells.start]), cells

    def shard_by_item(self, shards: int) -> Iterator[tuple[int, ItemHolders]]:
        """The cells by shard of items: ``(shard, cells)``; shards without cells are left out."""
        if shards == 1:
            if len(self):
                yield 0, self
            return
        shard_of_cell = (self.table.hashes[:, 1] % np.uint64(shards)).astype(np.int64)[self.items]
        for shard in np.unique(shard_of_cell):
            yield int(shard), self.select(np.flatnonzero(shard_of_cell == shard))

    def to_bytes(self) -> bytes:
        first = self.windows[:1]  # the smallest one
        return pack_arrays(
            first,
            narrowest(self.windows - first),
            narrowest(self.items),
            narrowest(self.counts),
            self.holders,
            *self.table.arrays(),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ItemHolders:
        """Inverse of `to_bytes`. Raises ValueError for bytes in which a cell has no window, item or holders."""
        kinds = (WHOLE, NARROW, NARROW, NARROW, HASHES, *TABLE_KINDS)
        first, windows, items, counts, holders, *arrays = unpack_arrays(data, *kinds)
        table = ItemTable.from_arrays(*arrays)
        splits = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        check_unpacked(len(windows) == len(items) == len(counts) and splits[-1] == len(holders))
        check_unpacked(len(first) == min(1, len(windows)))
        if len(windows):
            check_unpacked(0 <= first[0] < MOST_WINDOWS and items.max() < len(table))
            check_unpacked((windows[1:] >= windows[:-1]).all())
        return cls(windows + first, items.astype(np.int64), splits, holders, table)
