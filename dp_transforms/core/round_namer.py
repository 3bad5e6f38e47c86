"""Which items are named in each round of looks, of one shard of items: noisy sums against the threshold of the round.

Guarantee and conditions are those of `item_namer`, over all rounds together (docs/guarantee.md, "Rounds"). In round 0 a
sum above 0 is looked at, of an item in a block of windows. In a later round each pair (window, item) that is a
candidate is drawn for, with a sum or without: were it drawn for only with one, a low threshold would betray a lone
holder. The round before the last one leaves out what stays a whole level below its threshold: it would hardly be named,
and users keep what it would cost.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.named_items import NamedItems, levels_and_sizes
from dp_transforms.core.noise_table import noise_bounds
from dp_transforms.core.randomness import StreamKeys, Words
from dp_transforms.core.round_candidates import Candidates
from dp_transforms.core.tables import window_item_keys
from dp_transforms.plan.plan import Plan

# Second looks: in the last round, at the pairs (window, item) that earlier rounds have named, for their sizes.
#
# Those were looked at with small weights, and a small weight shows little of how many users hold an item. What users
# have left buys a better size: all that is named is drawn for once more, held or not, with new noise
# (docs/guarantee.md, "Rounds"). Which pairs are named does not depend on it.


class SizingTests:
    """Of one shard of items."""

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self._plan, self._table = plan, noise_bounds(plan.paid_contributions.noise)
        self._uniforms = keys.round_uniforms(len(plan.units_of_rounds) - 1)

    def size(self, named: NamedItems, sums: ItemSums, drawn: int, windows: int) -> tuple[NamedItems, ItemSums]:
        """The same names, each with the higher one of two levels and sizes, and the other sums.

        named: by earlier rounds. sums: all of the last round. drawn: for how many names of all shards it draws in so
        many windows.
        """
        if not len(named):
            return named, sums
        is_named = named.contain(sums)
        values, digests = _placed(named, sums.select(is_named))
        noisy_sums = values + self._table.sample(self._uniforms(named.windows, named.hashes, digests))
        terms = self._plan.terms_of_sizing(drawn, windows)
        found = levels_and_sizes(noisy_sums, terms.threshold, self._plan, terms)
        levels, users = (np.where(noisy_sums < terms.threshold, 0, each) for each in found)
        sized = dataclasses.replace(
            named,
            levels=np.maximum(named.levels, levels),
            at_least_users=np.maximum(named.at_least_users, users),
        )
        return sized, sums.select(~is_named)


def _placed(named: NamedItems, sums: ItemSums) -> tuple[Whole, Words]:
    """The sum and the digest of each name, 0 for none."""
    (cells, asked), _ = window_item_keys([named, sums])
    places = np.searchsorted(cells, asked)
    values, digests = np.zeros(len(named), dtype=np.int64), np.zeros((len(named), 2), dtype=np.uint64)
    values[places], digests[places] = sums.sums, sums.digests
    return values, digests


Whole = npt.NDArray[np.int64]
_CELLS_AT_ONCE = 1 << 20


class RoundNamer:
    """Names the items of one shard. Holds no state: names are a function of sums and of what earlier rounds named."""

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self._plan = plan
        self._keys = keys
        self._table = noise_bounds(plan.paid_contributions.noise)
        self._terms = functools.cache(plan.terms_of_round)  # the same for all shards of a round

    def name_in_blocks(self, sums: ItemSums) -> NamedItems:
        """Round 0. The windows of the sums, and of the names, are blocks: their first windows."""
        terms = self._plan.terms_of_round(0, 0, self._plan.schedule.horizon)
        uniforms = self._keys.block_uniforms()(sums.windows, sums.hashes, sums.digests)
        named = np.flatnonzero(self._table.passes(uniforms, terms.threshold - sums.sums) & (sums.sums > 0))
        noisy_sums = sums.sums[named] + self._table.sample(uniforms[named])
        levels, at_least_users = levels_and_sizes(noisy_sums, terms.threshold, self._plan, terms)
        windows, items = sums.windows[named], sums.items[named]
        return NamedItems(windows, items, levels, at_least_users, sums.table).select(slice(None))

    def name_in_windows(
        self, number: int, sums: ItemSums, candidates: Candidates, shard: int, shards: int
    ) -> NamedItems:
        """A later round: what it names or leaves out. sums: of all candidates of the shard that have one. candidates:
        of all shards.

        Raises ValueError for a sum of a pair that is not a candidate.
        """
        of_windows = candidates.of_windows
        terms = self._terms(number, candidates.drawn, of_windows.end - of_windows.first)
        of_shard = candidates.of_shard(shard, shards)
        size = len(of_shard.table)
        of_sums = of_shard.places_of(sums)
        at = sums.windows * size + of_sums  # ascends, as the cells that are drawn for do
        uniforms_of = self._keys.round_uniforms(number)
        found, left_out = [(_NOTHING, _NOTHING, _NOTHING)], of_shard.with_nothing_left_out()
        done = 0
        for windows, items in of_shard.cells(_CELLS_AT_ONCE):
            cells = windows * size + items
            end = done + int(np.searchsorted(at[done:], cells[-1], side="right")) if len(cells) else done
            places = np.searchsorted(cells, at[done:end])
            if not np.array_equal(cells[places], at[done:end]):
                raise ValueError("there is a sum of a pair that is not drawn for.")
            values, digests = np.zeros(len(cells), dtype=np.int64), np.zeros((len(cells), 2), dtype=np.uint64)
            values[places], digests[places] = sums.sums[done:end], sums.digests[done:end]
            uniforms = uniforms_of(windows, of_shard.table.hashes.take(items, axis=0), digests)
            named = np.flatnonzero(self._table.passes(uniforms, terms.threshold - values))
            found.append((windows[named], items[named], values[named] + self._table.sample(uniforms[named])))
            if terms.least is not None:
                rows = np.flatnonzero(~self._table.passes(uniforms, terms.least - values))
                left_out.leave_out(windows[rows], items[rows])
            done = end
        if done != len(sums) or (of_sums < 0).any():
            raise ValueError("there is a sum of a pair that is not drawn for.")
        windows, items, noisy_sums = map(np.concatenate, zip(*found, strict=True))
        levels, at_least = levels_and_sizes(noisy_sums, terms.threshold, self._plan, terms)
        of_names = NamedItems(windows, items, levels, at_least, of_shard.table)
        return NamedItems.merge([of_names, left_out.told_left_out()]).select(slice(None))


_NOTHING = np.zeros(0, dtype=np.int64)
