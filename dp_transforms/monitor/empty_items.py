"""Items of a known domain that are named although nobody adds to them, drawn without visiting the others.

As `zero_items` does for the modes that count users: in each window their number is drawn, and then which (the same law
as one look for each, at a cost that grows with what is named). A cell with a sum is looked at by itself, and
`ItemSums.merge` drops the empty item that was drawn for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.domain_table import DomainTable
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.zero_items import ZeroItemDraws

_CELLS_AT_ONCE = 100_000


class EmptyItems:
    """The empty items of a run, as cells with sum 0 and digest 0."""

    def __init__(self, domain: DomainTable, settings: NamingSettings, keys: StreamKeys) -> None:
        tails = settings.noise.upper_tail_integers()
        tail = tails[settings.known_threshold - 1] if settings.known_threshold <= len(tails) else 0
        self._draws = ZeroItemDraws(len(domain), tail, keys.zero_item_uniforms())
        self._items = domain.items
        self._horizon = settings.schedule.horizon

    def of_run(self, shards: int, first: int = 0, end: int | None = None) -> Iterator[tuple[int, ItemSums]]:
        """Of all windows, or of ``first .. end - 1``: parts with some of the cells of a shard of items, ``(shard,
        cells)``."""
        windows: list[np.ndarray] = []
        items: list[np.ndarray] = []
        size = 0
        for window, of_window in self._draws.by_window(self._horizon if end is None else end, first):
            windows.append(np.full(len(of_window), window))
            items.append(of_window)
            size += len(of_window)
            if size >= _CELLS_AT_ONCE:
                yield from self._cells(np.concatenate(windows), np.concatenate(items)).shard_by_item(shards)
                windows, items, size = [], [], 0
        if size:
            yield from self._cells(np.concatenate(windows), np.concatenate(items)).shard_by_item(shards)

    def of_window(self, window: int, shard: int, shards: int) -> ItemSums:
        """The same cells, of one window and shard of items."""
        items = self._draws.of_window(window)
        cells = self._cells(np.full(len(items), window), items)
        return dict(cells.shard_by_item(shards)).get(shard, ItemSums.none())

    def _cells(self, windows: np.ndarray, items: np.ndarray) -> ItemSums:
        digests = np.zeros((len(items), 2), dtype=np.uint64)
        cells = ItemSums(windows, items, np.zeros_like(items), digests, self._items)
        return cells.select(np.arange(len(items)))
