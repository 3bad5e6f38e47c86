"""The parallel front of mode `looks` with hits: which cells of a shard of items the sequential monitor has to look at.

These are the cells that pass the first stage of their draw (`look_noise`). In an open domain a known item is looked at
in every window, held or not. Which items are known, the monitor alone can tell, since it depends on who is excluded.
But what it names has passed here. So an item is known only within `forget_after` windows of a pass, and in all of these
windows it is drawn for here, too, where nobody holds it. A cell without holders is then tested only if its item is
known. What is drawn here besides is a function of the key alone, and is never published.
"""

from __future__ import annotations

import numpy as np

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.followed_items import NO_ROW, Passes, Whole, follow
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.look_noise import LookNoise
from dp_transforms.plan.plan import Plan


class LookCandidates:
    """Finds the candidates of one shard of items. Holds no state."""

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self._plan = plan
        self._noise = LookNoise(plan.paid_looks.noise, plan.known_threshold, keys)

    def find(self, cells: ItemHolders, passed: KnownItems, first: int, end: int) -> ItemHolders:
        """The candidates of the windows ``first .. end - 1``. They do not depend on how a run is cut.

        cells: all cells of these windows in one shard of items. passed: which of its items passed lately before window
        ``first``; `KnownItems.after` tells the same for window ``end``, if the candidates are taken as named.

        Raises ValueError for cells of other windows, and for cells without holders in an open domain.
        """
        if not 0 <= first < end <= self._plan.schedule.horizon:
            raise ValueError(f"windows {first} .. {end - 1} are not windows of the run.")
        if len(cells) and not first <= cells.windows[0] <= cells.windows[-1] < end:
            raise ValueError(f"the cells must be of the windows {first} .. {end - 1}.")
        passes = self._noise.may_pass(cells)
        held = cells.select(np.flatnonzero(passes))
        if self._plan.domain_size:
            return held
        if len(cells) and not cells.counts.min() > 0:
            raise ValueError("a cell without holders belongs to a known domain, and the domain is open.")
        if self._plan.known is None or not (len(held) or len(passed)):
            return held
        nobody = self._nobody(cells, passes, passed, first, end)
        return ItemHolders.merge([held, nobody]) if len(nobody) else held

    def _nobody(self, cells: ItemHolders, passes: np.ndarray, passed: KnownItems, first: int, end: int) -> ItemHolders:
        """The cells without holders of items that passed lately, and pass by noise alone."""
        items, (of_cells, of_passed) = ItemTable.merge([cells.table, passed.table])
        is_followed = np.zeros(len(items), dtype=np.bool_)
        is_followed[of_cells[cells.items[passes]]] = is_followed[of_passed] = True
        rows = np.flatnonzero(is_followed[of_cells[cells.items]])
        rows = rows[np.argsort(of_cells[cells.items[rows]], kind="stable")]  # by item, then window
        item, window = of_cells[cells.items[rows]], cells.windows[rows]
        held = _passes(item, window, rows, window).take(passes[rows])
        before = np.full(len(passed), first - 1)
        earlier = _passes(of_passed, passed.last_named, np.full(len(passed), NO_ROW), before)

        def draw_nobody(items_of_draws: Whole, windows: Whole) -> np.ndarray:
            return self._noise.nobody_passes(windows, items.hashes.take(items_of_draws, axis=0))

        found, _ = follow(held.joined(earlier), (item, window), end, self._plan.known_for, draw_nobody)
        found = found.take((found.rows == NO_ROW) & (found.windows >= first))
        empty = ItemHolders.without_holders(found.windows, found.items, items)
        return empty.select(np.lexsort((found.items, found.windows)))


def _passes(items: Whole, windows: Whole, rows: Whole, drawn_to: Whole) -> Passes:
    """Each of them makes its item one that is drawn for."""
    return Passes(items, windows, np.ones(len(items), dtype=np.bool_), rows, drawn_to)
