"""Second looks: in the last round, at the pairs (window, item) that earlier rounds have named, for their sizes.

Those were looked at with small weights, and a small weight shows little of how many users hold an item. What users have
left buys a better size: all that is named is drawn for once more, held or not, with new noise (docs/guarantee.md,
"Rounds"). Which pairs are named does not depend on it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.noise_table import noise_bounds
from dp_transforms.mechanisms.randomness import StreamKeys, Words
from dp_transforms.monitor.columns import cell_keys
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.named_items import NamedItems, levels_and_sizes
from dp_transforms.plan.plan import Plan

Whole = npt.NDArray[np.int64]


class SecondLooks:
    """Of one shard of items."""

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self._plan, self._table = plan, noise_bounds(plan.paid_looks.noise)
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
        terms = self._plan.terms_of_second_looks(drawn, windows)
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
    table, (of_named, of_sums) = ItemTable.merge([named.table, sums.table])
    cells, asked = (cell_keys(each, len(table), of) for each, of in ((named, of_named), (sums, of_sums)))
    places = np.searchsorted(cells, asked)
    values, digests = np.zeros(len(named), dtype=np.int64), np.zeros((len(named), 2), dtype=np.uint64)
    values[places], digests[places] = sums.sums, sums.digests
    return values, digests
