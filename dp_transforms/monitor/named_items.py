"""Which items were named in which windows, and what is published of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.monitor.equal_rows import group_slices
from dp_transforms.monitor.item_table import TABLE_KINDS, ItemTable
from dp_transforms.monitor.packed_arrays import WHOLE, check_unpacked, pack_arrays, unpack_arrays
from dp_transforms.monitor.window_report import HeavyHitter, WindowReport, release_order
from dp_transforms.plan.plan import Plan

NOT_COUNTED = -1


@dataclasses.dataclass(frozen=True, eq=False)
class NamedItems:
    """n named (window, item), distinct, sorted by window and then by the keyed hash of the item: all of it public.

    windows: int64[n], window index. items: int64[n], position in ``table``. levels: int64[n], from 1 on.
    at_least_users: int64[n], so many users hold the item; all of them in a run, but for `Plan.size_error`.
    """

    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    levels: npt.NDArray[np.int64]
    at_least_users: npt.NDArray[np.int64]
    table: ItemTable

    def __len__(self) -> int:
        return len(self.windows)

    @classmethod
    def none(cls) -> NamedItems:
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing, nothing, ItemTable.none())

    @classmethod
    def merge(cls, parts: Sequence[NamedItems]) -> NamedItems:
        """The union of parts with different cells, such as those of several shards of items."""
        if not parts:
            return cls.none()
        if len(parts) == 1:
            return parts[0]
        table, item_maps = ItemTable.merge([part.table for part in parts])
        windows = np.concatenate([part.windows for part in parts])
        items = np.concatenate([item_map[part.items] for part, item_map in zip(parts, item_maps, strict=True)])
        order = np.lexsort((items, windows))
        levels = np.concatenate([part.levels for part in parts])
        users = np.concatenate([part.at_least_users for part in parts])
        return cls(windows[order], items[order], levels[order], users[order], table)

    def select(self, rows: npt.NDArray[np.int64]) -> NamedItems:
        """These rows (ascending positions), with a table of their items alone."""
        used, items = np.unique(self.items[rows], return_inverse=True)
        return NamedItems(
            self.windows[rows],
            items.reshape(-1),
            self.levels[rows],
            self.at_least_users[rows],
            self.table.take(used),
        )

    def by_slab(self, windows_per_slab: int) -> Iterator[tuple[int, NamedItems]]:
        """The parts in slabs of so many consecutive windows: ``(slab, part)``; slabs without any are left out."""
        slabs = self.windows // windows_per_slab
        for rows in group_slices(slabs):
            yield int(slabs[rows.start]), self.select(np.arange(rows.start, rows.stop))

    def window_reports(
        self, plan: Plan, stream: str, noisy_counts: npt.NDArray[np.int64] | None = None
    ) -> Iterator[tuple[int, WindowReport]]:
        """The report of each window with named items, in order, with the number of its window.

        noisy_counts: int64[n], `NOT_COUNTED` for an item that is not counted; None if none is.

        epsilon_spent is that of the whole run: public output does not say how much of a purse is left.
        """
        labels = self.table.labels
        for rows in group_slices(self.windows):
            counts = [None] * (rows.stop - rows.start) if noisy_counts is None else noisy_counts[rows].tolist()
            columns = (self.items[rows].tolist(), self.levels[rows].tolist(), self.at_least_users[rows].tolist())
            heavy_hitters = [
                HeavyHitter(labels[item].as_py(), None, None if count == NOT_COUNTED else count, level, users)
                for item, level, users, count in zip(*columns, counts, strict=True)
            ]
            window = int(self.windows[rows.start])
            yield (
                window,
                WindowReport(
                    stream=stream,
                    window_start=plan.schedule.window_start_micros(window),
                    window_end=plan.schedule.window_end_micros(window),
                    heavy_hitters=sorted(heavy_hitters, key=release_order),
                    epsilon_total=plan.epsilon,
                    delta=plan.delta,
                    epsilon_spent=plan.epsilon,
                ),
            )

    def to_bytes(self) -> bytes:
        return pack_arrays(self.windows, self.items, self.levels, self.at_least_users, *self.table.arrays())

    @classmethod
    def from_bytes(cls, data: bytes) -> NamedItems:
        """Inverse of `to_bytes`. Raises ValueError for bytes that do not fit together."""
        windows, items, levels, users, *arrays = unpack_arrays(data, WHOLE, WHOLE, WHOLE, WHOLE, *TABLE_KINDS)
        table = ItemTable.from_arrays(*arrays)
        check_unpacked(len(windows) == len(items) == len(levels) == len(users))
        check_unpacked(not len(items) or bool(items.min() >= 0 and items.max() < len(table)))
        return cls(windows, items, levels, users, table)
