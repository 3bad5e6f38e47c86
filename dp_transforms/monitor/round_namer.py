"""Which items are named in each round of looks, of one shard of items: noisy sums against the threshold of the round.

Guarantee and conditions are those of `item_namer`, over all rounds together (docs/guarantee.md, "Rounds"). In round 0 a
sum above 0 is looked at, of an item in a block of windows. In a later round each pair (window, item) that is a
candidate is drawn for, with a sum or without: were it drawn for only with one, a low threshold would betray a lone
holder.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.noise_table import noise_bounds
from dp_transforms.mechanisms.priced_weights import stated_users
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.round_candidates import Candidates
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import RoundTerms, terms_of_blocks

Whole = npt.NDArray[np.int64]
_CELLS_AT_ONCE = 1 << 20


class RoundNamer:
    """Names the items of one shard. Holds no state: names are a function of sums and of what earlier rounds named."""

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self._plan = plan
        self._keys = keys
        self._table = noise_bounds(plan.paid_looks.noise)

    def name_in_blocks(self, sums: ItemSums) -> NamedItems:
        """Round 0. The windows of the sums, and of the names, are blocks: their first windows."""
        plan = self._plan
        terms = terms_of_blocks(plan.paid_looks, plan.paid_rounds, plan.threshold, plan.max_users)
        uniforms = self._keys.block_uniforms()(sums.windows, sums.hashes, sums.digests)
        named = np.flatnonzero(self._table.passes(uniforms, terms.threshold - sums.sums) & (sums.sums > 0))
        sizes = self._stated(sums.sums[named] + self._table.sample(uniforms[named]), terms)
        return NamedItems(sums.windows[named], sums.items[named], *sizes, sums.table).select(slice(None))

    def name_in_windows(
        self, number: int, sums: ItemSums, candidates: Candidates, shard: int, shards: int
    ) -> NamedItems:
        """A later round. sums: of all candidates of the shard that have one. candidates: of all shards.

        Raises ValueError for a sum of a pair that is not a candidate.
        """
        of_windows = candidates.of_windows
        terms = self._plan.terms_of_round(number, candidates.drawn, of_windows.end - of_windows.first)
        of_shard = candidates.of_shard(shard, shards)
        size = len(of_shard.table)
        of_sums = of_shard.places_of(sums)
        at = sums.windows * size + of_sums  # ascends, as the cells that are drawn for do
        uniforms_of = self._keys.round_uniforms(number)
        found = [(_NOTHING, _NOTHING, _NOTHING)]
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
            done = end
        if done != len(sums) or (of_sums < 0).any():
            raise ValueError("there is a sum of a pair that is not drawn for.")
        windows, items, noisy_sums = map(np.concatenate, zip(*found, strict=True))
        levels, at_least_users = self._stated(noisy_sums, terms)
        return NamedItems(windows, items, levels, at_least_users, of_shard.table).select(slice(None))

    def _stated(self, noisy_sums: Whole, terms: RoundTerms) -> tuple[Whole, Whole]:
        """Levels and sizes. Weights of early rounds are small: levels count what users would add with the largest of
        all rounds, so that they compare."""
        spacing = self._plan.paid_looks.spacing
        boundaries = terms.threshold + (noisy_sums - terms.threshold) // spacing * spacing
        users = stated_users(boundaries, terms.likely_noise, terms.largest_weight)
        in_largest = boundaries * max(self._plan.largest_in_rounds[1:]) // terms.largest_weight
        return 1 + (in_largest - terms.threshold) // spacing, users


_NOTHING = np.zeros(0, dtype=np.int64)
