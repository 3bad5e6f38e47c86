"""The parallel front of the monitor, which works in order: which cells of a shard of items it has to look at.

These are the cells that pass the first stage of their draw (docs/guarantee.md, "Draws in two stages").
An item has at most as many active holders as holders. So if its full count plus noise stays below the threshold, it is
not published, whatever the counters of its holders are. Only the bit "reaches it" is drawn here. The sequential stage
draws the noise conditioned on that bit. The transcript has exactly the sequential algorithm's
distribution. Mode ``kms21`` has no such bit: there every cell is a candidate.

With looks an open domain has known items, which are looked at in every window, held or not. Which items are known, the
monitor alone can tell, since it depends on who is excluded. But what it names has passed here. So an item is known only
within `forget_after` windows of a pass, and in all of these windows it is drawn for here, too, where nobody holds it. A
cell without holders is then tested only if its item is known. What is drawn here besides is a function of the key
alone, and is never published.
"""

from __future__ import annotations

import numpy as np

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.followed_items import NO_ROW, follow
from dp_transforms.monitor.hit_rules import query_noise
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.query_noise import LookNoise
from dp_transforms.plan.plan import Plan


def find_candidates(cells: ItemHolders, plan: Plan, keys: StreamKeys) -> ItemHolders:
    """The cells that may be published. ``cells`` must contain all holders of its items."""
    if not len(cells):
        return cells
    return cells.select(np.flatnonzero(query_noise(plan, keys).may_pass(cells)))


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
        found, _, items = follow(
            cells,
            passed,
            first,
            end,
            self._plan.known_for,
            names_anew=passes,  # each of them makes its item one that is drawn for
            reaches=lambda rows: passes[rows],
            nobody_passes=self._noise.nobody_passes,
            before=ItemHolders.none(),
        )
        found = found.take(found.rows == NO_ROW)
        nobody = ItemHolders.without_holders(found.windows, found.items, items).select(slice(None))
        return ItemHolders.merge([held, nobody])
