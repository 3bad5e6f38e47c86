"""The rows of a batch of events: who held which item in which window, as codes; not yet distinct, in no order."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import IdKeys
from dp_transforms.monitor.equal_rows import group_starts, hash_order
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.plan.window_schedule import WindowSchedule


@dataclasses.dataclass(frozen=True, eq=False)
class EventRows:
    """users: uint64[u], distinct keyed hashes, ascending. codes: int64[n], position in ``users`` of each row.
    windows: int64[n], window index. items: int64[n], position in ``table``."""

    users: npt.NDArray[np.uint64]
    codes: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    table: ItemTable

    def __len__(self) -> int:
        return len(self.windows)


def rows_of_events(
    batch: EventBatch,
    schedule: WindowSchedule,
    keys: IdKeys,
    first_open: npt.NDArray[np.int64] | None = None,
    end: int | None = None,
) -> EventRows:
    """An event counts in every window that holds it; events outside the declared range are left out.

    first_open: int64[len(batch)], the first window for which each event is in time; None: all of them.
    end: windows from this one on are left out; None: none of them.
    """
    first_window = schedule.first_window(batch.time_micros)
    inside = first_window >= 0
    if end is not None:
        inside &= first_window < end
    if first_open is not None:
        inside &= first_window + schedule.windows_per_event > first_open
    windows = first_window[inside]
    users, user_of_code = _distinct(keys.hash_users(batch.user.dictionary)[:, 0])
    codes = user_of_code[batch.user.indices.to_numpy()[inside]]
    table, item_of_code = ItemTable.of_labels(batch.item.dictionary, keys.hash_items)
    items = item_of_code[batch.item.indices.to_numpy()[inside]]
    if schedule.windows_per_event > 1:
        windows = (windows[:, None] + np.arange(schedule.windows_per_event)).reshape(-1)
        codes = np.repeat(codes, schedule.windows_per_event)
        items = np.repeat(items, schedule.windows_per_event)
        kept = np.ones(len(windows), dtype=np.bool_)
        if first_open is not None:
            kept &= windows >= np.repeat(first_open[inside], schedule.windows_per_event)
        if end is not None:
            kept &= windows < end
        if not kept.all():
            windows, codes, items = windows[kept], codes[kept], items[kept]
    return EventRows(users, codes, windows, items, table)


def _distinct(hashes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The distinct hashes, ascending, and the position of each hash among them."""
    order = hash_order(hashes)
    ordered = hashes.take(order)
    starts = group_starts(ordered)
    positions = np.empty(len(hashes), dtype=np.int64)
    positions[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(hashes)))
    return ordered[starts], positions
