"""How much the users of each item add to it in each window: cells (window, item), each with one sum."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys, Words, sum_modulo_2_128
from dp_transforms.monitor.counted_messages import MOST_MESSAGE_BYTES
from dp_transforms.monitor.equal_rows import group_slices, group_starts, sort_rows, sort_with_codes
from dp_transforms.monitor.item_pairs import ItemPairs
from dp_transforms.monitor.item_table import TABLE_KINDS, ItemTable
from dp_transforms.monitor.packed_arrays import (
    HASHES,
    NARROW,
    WHOLE,
    check_unpacked,
    narrowest,
    pack_arrays,
    unpack_arrays,
)
from dp_transforms.monitor.user_pairs import UserPairs
from dp_transforms.plan.window_schedule import MOST_WINDOWS

_NARROW_LIMIT = 2**32


@dataclasses.dataclass(frozen=True, eq=False)
class ItemSums:
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

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def hashes(self) -> Words:
        """Of the item of each cell. uint64[c, 2]."""
        return self.table.hashes.take(self.items, axis=0)

    @classmethod
    def none(cls) -> ItemSums:
        """No cells."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing, np.zeros((0, 2), dtype=np.uint64), ItemTable.none())

    @classmethod
    def of_weights(cls, pairs: UserPairs | ItemPairs, weights: npt.NDArray[np.int64], keys: StreamKeys) -> ItemSums:
        """What the users of these pairs add to their items. weights: int64[len(pairs)]; pairs with 0 do not count."""
        codes, rows = pairs.user_codes(), pairs.windows * len(pairs.table) + pairs.items
        if not weights.all():
            counted = np.flatnonzero(weights)
            codes, rows, weights = codes[counted], rows[counted], weights[counted]
        # What is added to digests is computed once for each user, if each has one weight in all its rows.
        of_users = np.zeros(len(pairs.users), dtype=np.int64)
        of_users[codes] = weights
        users = pairs.users
        if not np.array_equal(of_users[codes], weights):
            users, of_users, codes = users[codes], weights, np.arange(len(codes))
        rows, codes = sort_with_codes(rows, codes)
        digests = keys.widen_holders(users, of_users).take(codes, axis=0)
        return cls._of_ordered_rows(rows, of_users[codes], digests, pairs.table)

    @classmethod
    def merge(cls, parts: Sequence[ItemSums]) -> ItemSums:
        """The sums of parts that hold different users (their cells may coincide)."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.none()
        table, item_maps = ItemTable.merge([part.table for part in parts])
        rows = np.concatenate(
            [part.windows * len(table) + item_map[part.items] for part, item_map in zip(parts, item_maps, strict=True)]
        )
        rows, order = sort_rows(rows)
        sums = np.concatenate([part.sums for part in parts])[order]
        digests = np.concatenate([part.digests for part in parts]).take(order, axis=0)
        return cls._of_ordered_rows(rows, sums, digests, table)

    @classmethod
    def _of_ordered_rows(
        cls, rows: npt.NDArray[np.int64], sums: npt.NDArray[np.int64], digests: Words, table: ItemTable
    ) -> ItemSums:
        """rows: ``window * len(table) + item``, ascending. Items that no row names are dropped."""
        if not len(rows):
            return cls.none()
        starts = group_starts(rows)
        windows, items = np.divmod(rows[starts], len(table))
        sums = np.add.reduceat(sums, starts)  # 10^8 users of weight 12,000 are far below 2^63
        return cls(windows, items, sums, sum_modulo_2_128(digests, starts), table)._with_used_items()

    def _with_used_items(self) -> ItemSums:
        used = np.zeros(len(self.table), dtype=np.bool_)
        used[self.items] = True
        if used.all():
            return self
        items = (np.cumsum(used) - 1)[self.items]
        return ItemSums(self.windows, items, self.sums, self.digests, self.table.take(np.flatnonzero(used)))

    def select(self, cells: npt.NDArray[np.int64]) -> ItemSums:
        """These cells (ascending positions), with a table of their items alone."""
        digests = self.digests.take(cells, axis=0)  # several times as fast as digests[cells]
        part = ItemSums(self.windows[cells], self.items[cells], self.sums[cells], digests, self.table)
        return part._with_used_items()

    def select_range(self, cells: slice) -> ItemSums:
        """Consecutive cells, as views; the table stays whole."""
        return ItemSums(self.windows[cells], self.items[cells], self.sums[cells], self.digests[cells], self.table)

    def by_window(self) -> Iterator[tuple[int, slice]]:
        """Each window and the slice of its cells, in order."""
        for cells in group_slices(self.windows):
            yield int(self.windows[cells.start]), cells

    def by_slab(self, windows_per_slab: int) -> Iterator[tuple[int, ItemSums]]:
        """The parts in slabs of so many consecutive windows: ``(slab, part)``; slabs without cells are left out."""
        slabs = self.windows // windows_per_slab
        for rows in group_slices(slabs):
            is_all = rows.stop - rows.start == len(self)
            yield int(slabs[rows.start]), self if is_all else self.select(np.arange(rows.start, rows.stop))

    def shard_by_item(self, shards: int) -> Iterator[tuple[int, ItemSums]]:
        """The cells by shard of items: ``(shard, cells)``; shards without cells are left out."""
        if shards == 1:
            if len(self):
                yield 0, self
            return
        shard_of_cell = (self.table.hashes[:, 1] % np.uint64(shards)).astype(np.int64)[self.items]
        order = np.argsort(shard_of_cell, kind="stable")
        for part in group_slices(shard_of_cell[order]):
            cells = order[part]
            yield int(shard_of_cell[cells[0]]), self.select(cells)

    def to_bytes(self) -> bytes:
        first = self.windows[:1]  # the smallest one
        fits = not len(self) or self.sums.max() < _NARROW_LIMIT
        return pack_arrays(
            first,
            narrowest(self.windows - first),
            narrowest(self.items),
            narrowest(self.sums) if fits else self.sums,
            self.digests.reshape(-1),
            *self.table.arrays(),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ItemSums:
        """Inverse of `to_bytes`. Raises ValueError for bytes in which a cell has no window, item, sum or digest."""
        kinds = (WHOLE, NARROW, NARROW, (*NARROW, *WHOLE), HASHES, *TABLE_KINDS)
        first, windows, items, sums, digests, *arrays = unpack_arrays(data, *kinds)
        table = ItemTable.from_arrays(*arrays)
        check_unpacked(len(windows) == len(items) == len(sums) and len(digests) == 2 * len(windows))
        check_unpacked(len(first) == min(1, len(windows)))
        if len(windows):
            check_unpacked(0 <= first[0] < MOST_WINDOWS and items.max() < len(table) and sums.min() >= 0)
            rows = windows.astype(np.int64) * len(table) + items
            check_unpacked((rows[1:] > rows[:-1]).all())
        sums, items = sums.astype(np.int64), items.astype(np.int64)
        return cls(windows.astype(np.int64) + first, items, sums, digests.reshape(-1, 2), table)


def sum_messages(sums: ItemSums, most_bytes: int = MOST_MESSAGE_BYTES) -> Iterator[bytes]:
    """Packed parts of ``sums``, each with at least one cell. `ItemSums.merge` joins them again. None for no cells."""
    if not len(sums):
        return
    data = sums.to_bytes()
    if len(data) <= most_bytes or len(sums) == 1:
        yield data
        return
    middle = len(sums) // 2
    for cells in (np.arange(middle), np.arange(middle, len(sums))):
        yield from sum_messages(sums.select(cells), most_bytes)
