"""Which items of one shard are named in which windows: the noisy sums against their thresholds.

Guarantee: with the weights, units and thresholds of a plan, what is named in all windows together is
(epsilon, delta)-DP for adding or removing one user with all its events. Condition: what the weights of each user cost
together never exceeds its purse. Source: docs/guarantee.md, "Looks".

A cell with a sum above 0 is looked at. In an open domain a known item is looked at in every window, whether anybody
adds to it or not: were it looked at only while somebody does, the threshold of known items would betray a lone holder.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.noise_table import noise_bounds
from dp_transforms.mechanisms.randomness import StreamKeys, Words
from dp_transforms.monitor.followed_items import NO_ROW, KnownItems, follow
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.named_items import NamedItems, levels_and_sizes
from dp_transforms.plan.plan import Plan

Whole = npt.NDArray[np.int64]


class ItemNamer:
    """Names the items of one shard. Holds no state: windows are a function of their sums and of what was known. A draw
    is one keyed uniform for each window and item, and the holders with their weights, inverted by the noise's table.
    """

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self._plan = plan
        self._table = noise_bounds(plan.paid_looks.noise)
        self._uniforms = keys.look_uniforms()
        self._known_threshold = plan.known_threshold

    @property
    def empty_item_tail(self) -> int:
        """``floor(2^128 Pr[Z >= known threshold])``: an item that nobody holds passes with this probability."""
        tails = self._plan.paid_looks.noise.upper_tail_integers()
        return tails[self._known_threshold - 1] if self._known_threshold <= len(tails) else 0

    def name_windows(self, sums: ItemSums, known: KnownItems, first: int, end: int) -> NamedItems:
        """What is named in the windows ``first .. end - 1``, in order. It does not depend on how a run is cut.

        sums: all cells of these windows in one shard of items. known: what is known of the shard before window
        ``first``; `KnownItems.after` then tells what is known in window ``end``.

        Raises ValueError for cells of other windows, and for empty items in an open domain.
        """
        if not 0 <= first < end <= self._plan.schedule.horizon:
            raise ValueError(f"windows {first} .. {end - 1} are not windows of the run.")
        if len(sums) and not first <= sums.windows[0] <= sums.windows[-1] < end:
            raise ValueError(f"the sums must be of the windows {first} .. {end - 1}.")
        if self._plan.domain_size:
            return self._name_in_domain(sums)
        if len(sums) and not sums.sums.min() > 0:
            raise ValueError("a cell without a sum belongs to a known domain, and the domain is open.")
        return self._name_in_open_domain(sums, known, first, end)

    def _name_in_domain(self, sums: ItemSums) -> NamedItems:
        """All items are known for ever. A cell with sum 0 is an empty item, of which is known that it passes."""
        table, threshold = self._table, self._known_threshold
        uniforms = self._uniforms(sums.windows, sums.hashes, sums.digests)
        is_empty = sums.sums == 0
        named = np.flatnonzero(is_empty | table.passes(uniforms, threshold - sums.sums))
        uniforms, is_empty = uniforms[named], is_empty[named]
        noise = np.empty(len(named), dtype=np.int64)
        noise[~is_empty] = table.sample(uniforms[~is_empty])
        noise[is_empty] = table.sample_given_pass(uniforms[is_empty], np.full(int(is_empty.sum()), threshold))
        noisy_sums = sums.sums[named] + noise
        return self._named(
            sums.windows[named], sums.items[named], noisy_sums, np.full(len(named), threshold), sums.table
        )

    def _name_in_open_domain(self, sums: ItemSums, known: KnownItems, first: int, end: int) -> NamedItems:
        table, threshold = self._table, self._plan.threshold
        uniforms = self._uniforms(sums.windows, sums.hashes, sums.digests)
        names_anew = table.passes(uniforms, threshold - sums.sums)
        if not len(known) and not names_anew.any():
            return NamedItems.none()
        named, was_known, items = follow(
            sums,
            known,
            first,
            end,
            self._plan.known_for,
            names_anew=names_anew,
            reaches=lambda cells: table.passes(uniforms[cells], self._known_threshold - sums.sums[cells]),
            nobody_passes=self._nobody_passes,
        )
        noisy_sums = np.empty(len(named), dtype=np.int64)
        has_sum = named.rows != NO_ROW
        rows, nobody = named.rows[has_sum], named.take(~has_sum)
        noisy_sums[has_sum] = sums.sums[rows] + table.sample(uniforms[rows])
        noisy_sums[~has_sum] = table.sample(self._of_nobody(nobody.windows, items.hashes[nobody.items]))
        thresholds = np.where(was_known, self._known_threshold, threshold)
        return self._named(named.windows, named.items, noisy_sums, thresholds, items)

    def _nobody_passes(self, windows: Whole, hashes: Words) -> npt.NDArray[np.bool_]:
        drawn = self._of_nobody(windows, hashes)
        return self._table.passes(drawn, np.full(len(windows), self._known_threshold))

    def _of_nobody(self, windows: Whole, hashes: Words) -> Words:
        """The uniforms of items to which nobody adds anything."""
        return self._uniforms(windows, hashes, np.zeros_like(hashes))

    def _named(
        self, windows: Whole, items: Whole, noisy_sums: Whole, thresholds: Whole, table: ItemTable
    ) -> NamedItems:
        """With levels and sizes, and a table of the named items alone. The columns are in the order of `NamedItems`."""
        levels, at_least_users = levels_and_sizes(noisy_sums, thresholds, self._plan, self._plan.terms_of_looks)
        return NamedItems(windows, items, levels, at_least_users, table).select(slice(None))
