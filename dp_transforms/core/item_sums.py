"""How much the users of each item add to it in each window: cells (window, item), each with one sum."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dp_transforms.core.column_kinds import ADDED, Column, Digests, Items, Narrow, Splits, Windows
from dp_transforms.core.columns import Cells, Rows, cell_keys, used
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.equal_rows import concatenated_ranges, group_starts, sort_with_codes
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.packed_arrays import NARROW
from dp_transforms.core.randomness import StreamKeys, Words, sum_modulo_2_128


@dataclasses.dataclass(frozen=True, eq=False)
class ItemSums(Cells):
    """c cells (window, item), distinct, sorted by window and then by the keyed hash of the item.

    windows: int64[c], window index. items: int64[c], position in ``table``. sums: int64[c], the weights of all holders
    together: raw, never to be published. digests: uint64[c, 2], which holders with which weights.

    A sum is above 0. Only in a known domain there are cells with sum and digest 0: `empty_items`, which are named if
    nobody holds them.
    """

    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    sums: npt.NDArray[np.int64]
    digests: Words
    table: ItemTable

    SCHEMA: ClassVar = {
        "windows": Windows(),
        "items": Narrow(NARROW, into="table"),
        "sums": Narrow(join=ADDED),  # 10^8 users of weight 12,000 are far below 2^63
        "digests": Digests(),
        "table": Items(),
    }

    @classmethod
    def of_weights(cls, pairs: Contributions, weights: npt.NDArray[np.int64], keys: StreamKeys) -> ItemSums:
        """What the users of these pairs add to their items. weights: int64[len(pairs)]; pairs with 0 do not count."""
        if not weights.any():
            return cls.none()
        codes, rows = pairs.codes, pairs.windows * len(pairs.table) + pairs.items
        if not weights.all():
            counted = np.flatnonzero(weights != 0)  # many times as fast as of the numbers themselves
            codes, rows, weights = codes[counted], rows[counted], weights[counted]
        # What is added to digests is computed once for each user, if each has one weight in all its rows.
        of_users = np.zeros(len(pairs.users), dtype=np.int64)
        of_users[codes] = weights
        users = pairs.users
        if not np.array_equal(of_users[codes], weights):
            users, of_users, codes = users[codes], weights, np.arange(len(codes))
        rows, codes = sort_with_codes(rows, codes)
        digests = keys.widen_holders(users, of_users).take(codes, axis=0)
        starts = group_starts(rows)
        windows, items = np.divmod(rows[starts], len(pairs.table))
        sums = np.add.reduceat(of_users[codes], starts)
        return cls(windows, items, sums, sum_modulo_2_128(digests, starts), pairs.table).select(slice(None))


# Who holds which item in which window: cells (window, item), each with its holders.


@dataclasses.dataclass(frozen=True, eq=False)
class ItemHolders(Cells):
    """c cells (window, item), distinct, sorted by window and then by the keyed hash of the item.

    windows: int64[c], window index. items: int64[c], position in ``table``. splits: int64[c + 1], rows of each cell.
    holders: uint64[n], keyed hashes of the users of each cell; distinct within it, in no particular order.

    A cell without holders is one of `empty_items`: an item of a known domain that is published if nobody holds it.
    """

    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int64]
    holders: npt.NDArray[np.uint64]
    table: ItemTable

    SCHEMA: ClassVar = {
        "windows": Windows(),
        "items": Narrow(NARROW, into="table"),
        "splits": Splits(parts="holder"),
        "holders": Column(of="holder"),
        "table": Items(),
    }

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
    def of_pairs(cls, pairs: Contributions) -> ItemHolders:
        """The same pairs, turned from user order into item order."""
        rows = pairs.windows * len(pairs.table) + pairs.items if len(pairs) else pairs.windows
        order = np.argsort(rows, kind="stable")
        return cls._of_ordered_rows(rows[order], pairs.users[pairs.codes[order]], pairs.table)

    @classmethod
    def _merged(cls, parts: Sequence[ItemHolders]) -> ItemHolders:
        """Of parts that hold different users (their cells may coincide)."""
        table, item_maps = ItemTable.merge([part.table for part in parts])
        cells = [cell_keys(part, len(table), item_map) for part, item_map in zip(parts, item_maps, strict=True)]
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

    def select(self, rows: Rows) -> ItemHolders:
        """These cells (ascending positions, a slice, or bool[c]), with a table of their items alone."""
        cells = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.arange(len(self))[rows]
        of_holders, splits = self.rows_of(cells)
        items, places = used(len(self.table), self.items[cells])
        table = self.table if items is None else self.table.take(items)
        return ItemHolders(self.windows[cells], places, splits, self.holders[of_holders], table)

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

    def select_rows(self, rows: npt.NDArray[np.bool_]) -> ItemHolders:
        """All cells with these of their holders alone, perhaps with none. rows: bool[n]."""
        splits = np.concatenate([[0], np.cumsum(rows)])[self.splits]
        return ItemHolders(self.windows, self.items, splits, self.holders[rows], self.table)

    def halves(self) -> tuple[ItemHolders, ...]:
        """A cell with very many holders is cut too, so two parts may hold the same cell."""
        if len(self) > 1:
            return super().halves()
        which = np.arange(len(self.holders)) < len(self.holders) // 2
        return (self.select_rows(which), self.select_rows(~which)) if which.any() else ()
