"""Which items each user holds in each window: distinct (window, item, user), ordered by item.

The same as `user_pairs`, for steps that add up over users: what comes as events in the order of time is nearly in this
order, and needs no second sort.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import IdKeys
from dp_transforms.monitor.equal_rows import group_slices, group_starts, sort_distinct
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.event_rows import rows_of_events
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
from dp_transforms.plan.window_schedule import MOST_WINDOWS, WindowSchedule


@dataclasses.dataclass(frozen=True, eq=False)
class ItemPairs:
    """n distinct (window, item, user), sorted by window, then item, then user.

    users: uint64[u], distinct keyed hashes, ascending. codes: int64[n], position in ``users`` of each row.
    windows: int64[n], window index. items: int64[n], position in ``table``.
    """

    users: npt.NDArray[np.uint64]
    codes: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    table: ItemTable

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many rows each user has. int64[u]."""
        return np.bincount(self.codes, minlength=len(self.users))

    def user_codes(self) -> npt.NDArray[np.int64]:
        """Position in ``users`` of each row. Returns int64[n]."""
        return self.codes

    def select(self, rows: npt.NDArray) -> ItemPairs:
        """These rows (ascending positions, or a slice), with their users and items alone."""
        return self.of_sorted_rows(self.users, self.codes[rows], self.windows[rows], self.items[rows], self.table)

    @classmethod
    def of_sorted_rows(
        cls,
        users: npt.NDArray[np.uint64],
        codes: npt.NDArray[np.int64],
        windows: npt.NDArray[np.int64],
        items: npt.NDArray[np.int64],
        table: ItemTable,
    ) -> ItemPairs:
        """From rows already distinct and sorted; users and items that no row names are dropped."""
        used_users, codes = _used(len(users), codes)
        used_items, items = _used(len(table), items)
        if used_users is not None:
            users = users[used_users]
        if used_items is not None:
            table = table.take(used_items)
        return cls(users, codes, windows, items, table)

    @classmethod
    def merge(cls, parts: Sequence[ItemPairs]) -> ItemPairs:
        """The union; pairs that several parts hold are kept once."""
        if len(parts) == 1:
            return parts[0]
        table, item_maps = ItemTable.merge([part.table for part in parts])
        users = np.sort(np.concatenate([part.users for part in parts]), kind="stable")  # faster than np.unique
        users = users[group_starts(users)]
        codes = np.concatenate([np.searchsorted(users, part.users)[part.codes] for part in parts])
        windows = np.concatenate([part.windows for part in parts])
        items = np.concatenate([item_map[part.items] for part, item_map in zip(parts, item_maps, strict=True)])
        first = int(windows.min(initial=MOST_WINDOWS))
        sizes = (int(windows.max(initial=first)) - first + 1, len(table), len(users))
        windows, items, codes = sort_distinct((windows - first, items, codes), sizes, kind="stable")
        return cls(users, codes, windows + first, items, table)

    def to_bytes(self) -> bytes:
        first = self.windows[:1]  # the smallest one
        return pack_arrays(
            self.users,
            narrowest(self.codes),
            first,
            narrowest(self.windows - first),
            narrowest(self.items),
            *self.table.arrays(),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ItemPairs:
        """Inverse of `to_bytes`. Raises ValueError for bytes in which a row names no user, window or item, or which
        are not in order."""
        users, codes, first, windows, items, *arrays = unpack_arrays(
            data, HASHES, NARROW, WHOLE, NARROW, NARROW, *TABLE_KINDS
        )
        table = ItemTable.from_arrays(*arrays)
        check_unpacked(len(codes) == len(windows) == len(items) and len(first) == min(1, len(windows)))
        check_unpacked((users[1:] > users[:-1]).all())
        if len(windows):
            check_unpacked(0 <= first[0] < MOST_WINDOWS and items.max() < len(table) and codes.max() < len(users))
        pairs = cls(
            users,
            codes.astype(np.int64),
            windows.astype(np.int64) + first[:1],
            items.astype(np.int64),
            table,
        )
        cells = pairs.windows * len(table) + pairs.items
        same = cells[1:] == cells[:-1]
        check_unpacked(((cells[1:] > cells[:-1]) | (same & (pairs.codes[1:] > pairs.codes[:-1]))).all())
        return pairs


def item_pairs_of_events(
    batch: EventBatch, schedule: WindowSchedule, keys: IdKeys, shards: int
) -> Iterator[tuple[int, ItemPairs]]:
    """The distinct pairs of a batch in all windows, by shard of users: ``(shard, pairs)``."""
    events = rows_of_events(batch, schedule, keys)
    if not len(events):
        return
    shard_of_row = (events.users % np.uint64(shards)).astype(np.int64)[events.codes]
    first = int(events.windows.min())
    shard_of_row, windows, items, codes = sort_distinct(
        (shard_of_row, events.windows - first, events.items, events.codes),
        (shards, int(events.windows.max()) - first + 1, len(events.table), len(events.users)),
    )
    windows += first
    for rows in group_slices(shard_of_row):
        yield (
            int(shard_of_row[rows.start]),
            ItemPairs.of_sorted_rows(events.users, codes[rows], windows[rows], items[rows], events.table),
        )


def _used(values: int, codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64]]:
    """Which of so many values have a row, None for all of them; and the codes among these."""
    is_used = np.zeros(values, dtype=np.bool_)
    is_used[codes] = True
    if is_used.all():
        return None, codes
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[codes]
