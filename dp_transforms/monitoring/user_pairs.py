"""Which items each user holds in each window: distinct (user, window, item), ordered by user."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.equal_rows import group_slices, group_starts
from dp_transforms.monitoring.event_batch import EventBatch
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
from dp_transforms.window_schedule import MOST_WINDOWS, WindowSchedule

_SORT_KEY_LIMIT = 2**62


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
        users = np.sort(np.concatenate([part.users for part in parts]))  # faster than np.unique, which hashes
        users = users[group_starts(users)]
        user_codes = np.concatenate(
            [np.repeat(np.searchsorted(users, part.users), np.diff(part.splits)) for part in parts]
        )
        windows = np.concatenate([part.windows for part in parts])
        items = np.concatenate([item_map[part.items] for part, item_map in zip(parts, item_maps, strict=True)])
        user_codes, windows, items = _sort_distinct(user_codes, windows, items, (len(users), len(table)))
        return cls.from_sorted_codes(users, user_codes, windows, items, table)


def pairs_of_events(
    batch: EventBatch,
    schedule: WindowSchedule,
    keys: StreamKeys,
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
    first_window = schedule.first_window(batch.time_micros)
    inside = first_window >= 0
    if end is not None:
        inside &= first_window < end
    if first_open is not None:
        inside &= first_window + schedule.windows_per_event > first_open
    if not inside.any():
        return
    windows = first_window[inside]
    users, user_of_code = np.unique(keys.hash_users(batch.user.dictionary)[:, 0], return_inverse=True)
    user_codes = user_of_code[batch.user.indices.to_numpy()[inside]]
    table, item_of_code = ItemTable.of_labels(batch.item.dictionary, keys.hash_items)
    items = item_of_code[batch.item.indices.to_numpy()[inside]]
    if schedule.windows_per_event > 1:
        windows = (windows[:, None] + np.arange(schedule.windows_per_event)).reshape(-1)
        user_codes = np.repeat(user_codes, schedule.windows_per_event)
        items = np.repeat(items, schedule.windows_per_event)
        kept = np.ones(len(windows), dtype=np.bool_)
        if first_open is not None:
            kept &= windows >= np.repeat(first_open[inside], schedule.windows_per_event)
        if end is not None:
            kept &= windows < end
        if not kept.all():
            windows, user_codes, items = windows[kept], user_codes[kept], items[kept]

    groups = (windows // windows_per_slab) * shards + (users % np.uint64(shards)).astype(np.int64)[user_codes]
    first_group, last_group = int(groups.min()), int(groups.max())
    # One sort does it all: by group, user, window and item.
    grouped_users, windows, items = _sort_distinct(
        (groups - first_group) * len(users) + user_codes,
        windows,
        items,
        ((last_group - first_group + 1) * len(users), len(table)),
    )
    groups, user_codes = np.divmod(grouped_users, len(users))
    for rows in group_slices(groups):
        slab, shard = divmod(int(groups[rows.start]) + first_group, shards)
        yield slab, shard, UserPairs.from_sorted_codes(users, user_codes[rows], windows[rows], items[rows], table)


def _sort_distinct(
    major: npt.NDArray[np.int64],
    windows: npt.NDArray[np.int64],
    items: npt.NDArray[np.int64],
    ranges: tuple[int, int],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Distinct rows (major, window, item) in this order. ranges: how many values the major and the items can take.

    Rows are sorted as one integer where it fits (ten times faster than by three columns).
    """
    if not len(windows):
        return major, windows, items
    first = int(windows.min())
    window_range = int(windows.max()) - first + 1
    item_bits, window_bits = (ranges[1] - 1).bit_length(), (window_range - 1).bit_length()
    if ranges[0] << (window_bits + item_bits) >= _SORT_KEY_LIMIT:
        order = np.lexsort((items, windows, major))
        major, windows, items = major[order], windows[order], items[order]
        kept = group_starts(major, windows, items)
        return major[kept], windows[kept], items[kept]
    rows = (((major << window_bits) | (windows - first)) << item_bits) | items
    rows.sort()
    rows = rows[group_starts(rows)]
    items = rows & ((1 << item_bits) - 1)
    rows >>= item_bits
    return rows >> window_bits, (rows & ((1 << window_bits) - 1)) + first, items
