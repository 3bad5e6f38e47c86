"""Which items each user holds in each window: distinct (user, window, item), ordered by user."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import IdKeys as IdKeys
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
class UserPairs:
    """n distinct (user, window, item), sorted by user, then window, then item.

    users: uint64[u], distinct keyed hashes, ascending. splits: int64[u + 1], rows of each user.
    windows: int64[n], window index. items: int64[n], position in ``table``.
    """

    users: npt.NDArray[np.uint64]
    splits: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    table: ItemTable

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many rows each user has. int64[u]."""
        return np.diff(self.splits)

    def user_codes(self) -> npt.NDArray[np.int64]:
        """Position in ``users`` of each row. Returns int64[n]."""
        return np.repeat(np.arange(len(self.users)), np.diff(self.splits))

    def to_bytes(self) -> bytes:
        first = self.windows.min() if len(self) else np.int64(0)
        return pack_arrays(
            self.users,
            narrowest(np.diff(self.splits)),
            np.array([first], dtype=np.int64),
            narrowest(self.windows - first),
            narrowest(self.items),
            *self.table.arrays(),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> UserPairs:
        """Inverse of `to_bytes`. Raises ValueError for bytes in which a row names no user, window or item."""
        kinds = (HASHES, NARROW, WHOLE, NARROW, NARROW, *TABLE_KINDS)
        users, counts, first, windows, items, *arrays = unpack_arrays(data, *kinds)
        table = ItemTable.from_arrays(*arrays)
        splits = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        check_unpacked(len(counts) == len(users) and splits[-1] == len(windows) == len(items))
        check_unpacked(len(first) == 1 and 0 <= first[0] < MOST_WINDOWS)
        check_unpacked(not len(items) or items.max() < len(table))
        check_unpacked((users[1:] > users[:-1]).all())
        return cls(users, splits, windows.astype(np.int64) + first[0], items.astype(np.int64), table)

    @classmethod
    def from_sorted_codes(
        cls,
        users: npt.NDArray[np.uint64],
        user_codes: npt.NDArray[np.int64],
        windows: npt.NDArray[np.int64],
        items: npt.NDArray[np.int64],
        table: ItemTable,
    ) -> UserPairs:
        """From rows already distinct and sorted; users and items that no row names are dropped."""
        starts = group_starts(user_codes)
        used = np.zeros(len(table), dtype=np.bool_)
        used[items] = True
        if not used.all():
            table, items = table.take(np.flatnonzero(used)), (np.cumsum(used) - 1)[items]
        return cls(users[user_codes[starts]], np.append(starts, len(user_codes)), windows, items, table)

    @classmethod
    def merge(cls, parts: Sequence[UserPairs]) -> UserPairs:
        """The union; pairs that several parts hold are kept once."""
        if len(parts) == 1:
            return parts[0]
        table, item_maps = ItemTable.merge([part.table for part in parts])
        # "stable" finds the runs that are in order already. And np.unique would hash.
        users = np.sort(np.concatenate([part.users for part in parts]), kind="stable")
        users = users[group_starts(users)]
        user_codes = np.concatenate(
            [np.repeat(np.searchsorted(users, part.users), np.diff(part.splits)) for part in parts]
        )
        windows = np.concatenate([part.windows for part in parts])
        items = np.concatenate([item_map[part.items] for part, item_map in zip(parts, item_maps, strict=True)])
        first = int(windows.min(initial=MOST_WINDOWS))
        sizes = (len(users), int(windows.max(initial=first)) - first + 1, len(table))
        user_codes, windows, items = sort_distinct((user_codes, windows - first, items), sizes, kind="stable")
        return cls.from_sorted_codes(users, user_codes, windows + first, items, table)


def pairs_of_events(
    batch: EventBatch,
    schedule: WindowSchedule,
    keys: IdKeys,
    *,
    windows_per_slab: int,
    shards: int,
    first_open: npt.NDArray[np.int64] | None = None,
    end: int | None = None,
) -> Iterator[tuple[int, int, UserPairs]]:
    """The distinct pairs of a batch, by slab of consecutive windows and shard of users: ``(slab, shard, pairs)``.

    An event counts in every window that holds it; events outside the declared range are left out.
    first_open: int64[len(batch)], the first window for which each event is in time; None: all of them.
    end: windows from this one on are left out; None: none of them.
    """
    events = rows_of_events(batch, schedule, keys, first_open, end)
    if not len(events):
        return
    users = events.users
    groups = (events.windows // windows_per_slab) * shards + (users % np.uint64(shards)).astype(np.int64)[events.codes]
    first_group, groups_in_all = int(groups.min()), int(groups.max()) - int(groups.min()) + 1
    first = int(events.windows.min())
    # One sort does it all: by group, user, window and item.
    grouped_users, windows, items = sort_distinct(
        ((groups - first_group) * len(users) + events.codes, events.windows - first, events.items),
        (groups_in_all * len(users), int(events.windows.max()) - first + 1, len(events.table)),
    )
    windows += first
    groups, user_codes = np.divmod(grouped_users, len(users))
    for rows in group_slices(groups):
        slab, shard = divmod(int(groups[rows.start]) + first_group, shards)
        yield (
            slab,
            shard,
            UserPairs.from_sorted_codes(users, user_codes[rows], windows[rows], items[rows], events.table),
        )
