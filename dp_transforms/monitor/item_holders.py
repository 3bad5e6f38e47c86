"""Who holds which item in which window: cells (window, item), each with its holders."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys, Words
from dp_transforms.monitor.equal_rows import concatenated_ranges, group_slices, group_starts
from dp_transforms.monitor.item_pairs import ItemPairs
from dp_transforms.monitor.item_table import TABLE_KINDS, ItemTable
from dp_transforms.monitor.packed_arrays import (
    HASHES,
    NARROW,
    WHOLE,
    check_unpacked,
    count_of_packed,
    narrowest,
    pack_arrays,
    unpack_arrays,
)
from dp_transforms.monitor.user_pairs import UserPairs
from dp_transforms.plan.window_schedule import MOST_WINDOWS

_NARROW_LIMIT = 2**32


@dataclasses.dataclass(frozen=True, eq=False)
class ItemHolders:
    """c cells (window, item), distinct, sorted by window and then by the keyed hash of the item.

    windows: int64[c], window index. items: int64[c], position in ``table``. splits: int64[c + 1], rows of each cell.
    holders: uint64[n], keyed hashes of the users of each cell; distinct within it, in no particular order.
    terms: how each holder counts, int64[n], of `terms_of`; None: each has weight 1 and pays for hits.

    A cell without holders is one of `empty_items`: an item of a known domain that is published if nobody holds it.
    """

    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int64]
    holders: npt.NDArray[np.uint64]
    table: ItemTable
    terms: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Number of holders of each cell: raw, never to be published. int64[c]."""
        return np.diff(self.splits)

    @property
    def sums(self) -> npt.NDArray[np.int64]:
        """The weights of the holders of each cell together: raw, never to be published. int64[c]."""
        return self.counts if self.terms is None else sums_of_groups(weights_of(self.terms), self.splits)

    def members(self, keys: StreamKeys) -> Words:
        """Each row as the 128 bits that digests add up: who counts, with which weight, on which price list.
        Returns uint64[n, 2]."""
        return keys.widen_users(self.holders) if self.terms is None else keys.widen_holders(self.holders, self.terms)

    @classmethod
    def none(cls) -> ItemHolders:
        """No cells."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls.without_holders(nothing, nothing, ItemTable.none())

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
        return cls._of_ordered_rows(rows[order], pairs.users[pairs.user_codes()[order]], None, pairs.table)

    @classmethod
    def of_terms(cls, pairs: UserPairs | ItemPairs, terms: npt.NDArray[np.int64]) -> ItemHolders:
        """These pairs with how each counts. terms: int64[len(pairs)]; pairs without a weight do not count."""
        counted = np.flatnonzero(weights_of(terms))
        rows = pairs.windows[counted] * len(pairs.table) + pairs.items[counted]
        order = np.argsort(rows, kind="stable")
        counted = counted[order]
        users = pairs.users[pairs.user_codes()[counted]]
        cells = cls._of_ordered_rows(rows[order], users, terms[counted], pairs.table)
        return cells if len(counted) == len(pairs) else cells.select(np.arange(len(cells)))

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
        terms = _joined_terms(parts)
        held = cls._of_ordered_rows(rows[order], holders[order], None if terms is None else terms[order], table)
        empty = np.concatenate([cell[part.counts == 0] for cell, part in zip(cells, parts, strict=True)])
        return held._with_empty_cells(empty) if len(empty) else held

    @classmethod
    def _of_ordered_rows(
        cls,
        rows: npt.NDArray[np.int64],
        holders: npt.NDArray[np.uint64],
        terms: npt.NDArray[np.int64] | None,
        table: ItemTable,
    ) -> ItemHolders:
        """rows: ``window * len(table) + item``, ascending."""
        starts = group_starts(rows)
        windows, items = np.divmod(rows[starts], max(1, len(table)))
        return cls(windows, items, np.append(starts, len(rows)), holders, table, terms)

    def _with_empty_cells(self, rows: npt.NDArray[np.int64]) -> ItemHolders:
        """rows: ``window * len(table) + item`` of cells without holders; those that have holders here are left out."""
        held = self.windows * len(self.table) + self.items
        rows = np.concatenate([held, np.setdiff1d(rows, held)])
        counts = np.zeros(len(rows), dtype=np.int64)
        counts[: len(self)] = self.counts
        order = np.argsort(rows)
        windows, items = np.divmod(rows[order], len(self.table))
        splits = np.concatenate([[0], np.cumsum(counts[order])])
        return ItemHolders(windows, items, splits, self.holders, self.table, self.terms)

    def rows_of(self, cells: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows of these cells one after the other, int64[r], and where each begins, int64[k + 1]."""
        return concatenated_ranges(self.splits[cells], self.splits[cells + 1] - self.splits[cells])

    def select(self, cells: npt.NDArray[np.int64]) -> ItemHolders:
        """These cells (ascending positions), with a table of their items alone."""
        rows, splits = self.rows_of(cells)
        used, items = np.unique(self.items[cells], return_inverse=True)
        table, terms = self.table.take(used), None if self.terms is None else self.terms[rows]
        return ItemHolders(self.windows[cells], items.reshape(-1), splits, self.holders[rows], table, terms)

    def select_range(self, cells: slice) -> ItemHolders:
        """Consecutive cells, as views; the table stays whole."""
        low, high = self.splits[cells.start], self.splits[cells.stop]
        return ItemHolders(
            self.windows[cells],
            self.items[cells],
            self.splits[cells.start : cells.stop + 1] - low,
            self.holders[low:high],
            self.table,
            None if self.terms is None else self.terms[low:high],
        )

    def select_rows(self, rows: npt.NDArray[np.bool_]) -> ItemHolders:
        """All cells with these of their holders alone, perhaps with none. rows: bool[n]."""
        splits = np.concatenate([[0], np.cumsum(rows)])[self.splits]
        terms = None if self.terms is None else self.terms[rows]
        return ItemHolders(self.windows, self.items, splits, self.holders[rows], self.table, terms)

    def by_window(self) -> Iterator[tuple[int, slice]]:
        """Each window and the slice of its cells, in order."""
        for cells in group_slices(self.windows):
            yield int(self.windows[cells.start]), cells

    def by_slab(self, windows_per_slab: int) -> Iterator[tuple[int, ItemHolders]]:
        """The cells in slabs of so many consecutive windows: ``(slab, cells)``; slabs without cells are left out."""
        slabs = self.windows // windows_per_slab
        for cells in group_slices(slabs):
            is_all = cells.stop - cells.start == len(self)
            part = self if is_all else self.select(np.arange(cells.start, cells.stop))
            yield int(slabs[cells.start]), part

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
            *(() if self.terms is None else (narrowest(self.terms) if _is_narrow(self.terms) else self.terms,)),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ItemHolders:
        """Inverse of `to_bytes`. Raises ValueError for bytes in which a cell has no window, item or holders, or a
        holder no weight."""
        kinds = (WHOLE, NARROW, NARROW, NARROW, HASHES, *TABLE_KINDS)
        has_terms = count_of_packed(data) > len(kinds)
        arrays = unpack_arrays(data, *kinds, *([(*NARROW, *WHOLE)] if has_terms else []))
        terms = arrays.pop().astype(np.int64) if has_terms else None
        first, windows, items, counts, holders, *of_table = arrays
        table = ItemTable.from_arrays(*of_table)
        check_unpacked(terms is None or bool(len(terms) == len(holders) and (weights_of(terms) > 0).all()))
        splits = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        check_unpacked(len(windows) == len(items) == len(counts) and splits[-1] == len(holders))
        check_unpacked(len(first) == min(1, len(windows)))
        if len(windows):
            check_unpacked(0 <= first[0] < MOST_WINDOWS and items.max() < len(table))
            check_unpacked((windows[1:] >= windows[:-1]).all())
        return cls(windows + first, items.astype(np.int64), splits, holders, table, terms)


def terms_of(weights: npt.NDArray[np.int64], pays_hits: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """How users count: what each adds to an item, and whether it pays for hits. Both, and the result: [n]."""
    return 2 * weights + pays_hits


def weights_of(terms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return terms >> 1


def pays_hits_of(terms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return (terms & 1).astype(np.bool_)


def sums_of_groups(values: npt.NDArray[np.int64], splits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum of each group of rows. values: int64[n]. splits: int64[k + 1]. Returns int64[k]."""
    return np.diff(np.concatenate([[0], np.cumsum(values)])[splits])


def _joined_terms(parts: Sequence[ItemHolders]) -> npt.NDArray[np.int64] | None:
    """Of all holders of the parts; a part that has none may come without."""
    if all(part.terms is None for part in parts):
        return None
    if any(part.terms is None and len(part.holders) for part in parts):
        raise ValueError("holders with weights and holders without cannot be in one cell.")
    return np.concatenate([part.terms for part in parts if part.terms is not None])


def _is_narrow(terms: npt.NDArray[np.int64]) -> bool:
    return not len(terms) or bool(terms.max() < _NARROW_LIMIT)
