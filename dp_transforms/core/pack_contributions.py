"""Before the steps: events -> packed contributions, by range of windows and shard of users.

From here on users are keyed hashes, and items have one beside their label.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.core.columns import MOST_MESSAGE_BYTES, concatenated_ranges, group_starts
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.operator_counts import EVENTS_OF_OTHER_ITEMS, EVENTS_OUTSIDE_RANGE, EVENTS_READ
from dp_transforms.core.planned_run import RunPart
from dp_transforms.core.randomness import IdKeys
from dp_transforms.core.stage import GroupKey, Sharding
from dp_transforms.plan.window_schedule import WindowSchedule

Whole = npt.NDArray[np.int64]
Packed = tuple[GroupKey, bytes]  # range of windows and shard of users; packed `Contributions`


@dataclasses.dataclass(frozen=True)
class PackContributions:
    """part: events outside of it are skipped, as those outside of the plan; None: the whole run."""

    schedule: WindowSchedule
    sharding: Sharding
    part: RunPart | None = None

    @property
    def run_part(self) -> RunPart:
        return self.part or RunPart.whole(self.schedule)

    def pack(
        self, batch: EventBatch, keys: IdKeys, public_items: ItemTable | None, counts: Counter[str]
    ) -> Iterator[Packed]:
        """Events outside the declared range, and those of other than public items, if these are all, are counted for
        the operator, and left out."""
        schedule, part, cut = self.schedule, self.run_part, self.sharding
        counts[EVENTS_READ] += len(batch)
        first_window = schedule.first_window(batch.time_micros)
        is_inside = (first_window >= 0) & (first_window < part.end)
        is_inside &= first_window + schedule.windows_per_event > part.first
        counts[EVENTS_OUTSIDE_RANGE] += int((~is_inside).sum())
        if public_items is not None:
            is_public = public_items.contains(keys.hash_items(batch.item.dictionary))[batch.item.indices.to_numpy()]
            counts[EVENTS_OF_OTHER_ITEMS] += int((is_inside & ~is_public).sum())
            batch = batch.where(is_public)
        first_open = np.full(len(batch), part.first) if part.first else None
        for number, shard, of_users in contributions_of_events(
            batch,
            schedule,
            keys,
            windows_per_range=cut.windows_per_range,
            shards=cut.shards,
            first_open=first_open,
            end=part.end,
        ):
            yield (number, shard), of_users.to_bytes()


@dataclasses.dataclass(frozen=True)
class MergeContributions:
    """All packed contributions of some users -> the same merged, once for all steps that read them again; an empty
    blob of none.
    most_bytes: of a message; whoever reads several merges them anew."""

    most_bytes: int = MOST_MESSAGE_BYTES

    def start(self, secret: bytes) -> Callable[[tuple[GroupKey, Sequence[bytes]], Counter[str]], Iterator[Packed]]:
        most = self.most_bytes
        return lambda group, counts: (
            (group[0], packed) for packed in [*Contributions.of_messages(filter(len, group[1])).messages(most)] or [b""]
        )


def contributions_of_events(
    batch: EventBatch,
    schedule: WindowSchedule,
    keys: IdKeys,
    *,
    windows_per_range: int,
    shards: int,
    first_open: Whole | None = None,
    end: int | None = None,
) -> Iterator[tuple[int, int, Contributions]]:
    """The contributions of a batch, by range of so many consecutive windows and shard of users: ``(range, shard,
    contributions)``. What has many comes in several parts, of different windows.

    first_open, end: as `rows_of_events` has them.
    """
    for rows in rows_of_events(batch, schedule, keys, first_open, end):
        groups = (rows.windows // windows_per_range) * shards
        if shards > 1:
            groups += (rows.users % np.uint64(shards)).astype(np.int64)[rows.codes]
        first = int(groups.min())
        ordered, (groups,) = Contributions.of_rows([rows], [groups - first])
        for group, contributions in ordered.by_group(groups):
            yield (*divmod(group + first, shards), contributions)


def rows_of_events(
    batch: EventBatch,
    schedule: WindowSchedule,
    keys: IdKeys,
    first_open: Whole | None = None,
    end: int | None = None,
    rows_at_once: int = 1 << 20,
) -> Iterator[Contributions]:
    """A row for each event in every window that holds it, in no order and not distinct; events outside the declared
    range are left out. Rows come in parts of consecutive windows: an event in a thousand windows is not a thousand rows
    at once.

    first_open: int64[len(batch)], the first window for which each event is in time; None: all of them.
    end: windows from this one on are left out; None: none of them. rows_at_once: a part has at most so many
    rows, those of its first window not counted.
    """
    firsts = schedule.first_window(batch.time_micros)
    inside = firsts >= 0
    ends = np.minimum(firsts + schedule.windows_per_event, schedule.horizon if end is None else end)
    if first_open is not None:
        firsts = np.maximum(firsts, first_open)
    inside &= firsts < ends
    if not inside.any():
        return
    firsts, ends = firsts[inside], ends[inside]
    users, user_of_code = np.unique(keys.hash_users(batch.user.dictionary)[:, 0], return_inverse=True)
    codes = user_of_code[batch.user.indices.to_numpy()[inside]]
    table, item_of_code = ItemTable.of_labels(batch.item.dictionary, keys.hash_items)
    items = item_of_code[batch.item.indices.to_numpy()[inside]]
    if schedule.windows_per_event == 1:
        yield Contributions(users, codes, firsts, items, table)
        return
    for low, high in _parts_of_windows(firsts, ends, rows_at_once):
        begins = np.maximum(firsts, low)
        counts = np.maximum(0, np.minimum(ends, high) - begins)
        windows = concatenated_ranges(begins, counts)
        yield Contributions(users, np.repeat(codes, counts), windows, np.repeat(items, counts), table)


def _parts_of_windows(firsts: Whole, ends: Whole, rows_at_once: int) -> Iterator[tuple[np.int64, np.int64]]:
    """Ranges of windows, each with at least one row. firsts, ends: of each event."""
    first = firsts.min()
    opened, closed = (np.bincount(windows - first, minlength=ends.max() - first + 1) for windows in (firsts, ends))
    rows = np.cumsum(np.cumsum(opened - closed))
    begins = first + group_starts(rows // rows_at_once)
    return zip(begins, [*begins[1:], ends.max()], strict=True)
