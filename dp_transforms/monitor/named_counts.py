"""Counts of the largest named items of each window: how many users hold them, with Gaussian noise.

Guarantee: each user pays for its counted pairs out of the purse that pays for its looks, for at most `per_user` of them
(`Counts`). Which items are counted is a function of what was named, so it is public. Source: docs/guarantee.md,
"Proposition (counts)".
In a replay alone: the names of all windows are known before the first count.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.noise_table import noise_bounds
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.equal_rows import ranks_in_groups
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.pairs import ItemPairs, keep_by_hash

Whole = npt.NDArray[np.int64]


def counted_rows(named: NamedItems, most: int) -> Whole:
    """The at most `most` largest named items of each window, as a report orders them: by level, size, label.

    Positions in `named`, ascending. A function of what is published alone.
    """
    if not len(named):
        return np.zeros(0, dtype=np.int64)
    # Labels in the order of their code points, which is that of their UTF-8 bytes.
    places = np.empty(len(named.table), dtype=np.int64)
    places[pc.sort_indices(named.table.labels).to_numpy()] = np.arange(len(named.table))
    order = np.lexsort((places[named.items], -named.at_least_users, -named.levels, named.windows))
    return np.sort(order[ranks_in_groups(named.windows) < most])


def count_holders(pairs: ItemPairs, counted: NamedItems, per_user: int, keys: StreamKeys) -> ItemSums:
    """How many of these users hold each counted item: sums in which each user adds 1.

    ``pairs`` must contain all pairs of its users in the whole run. Of more than `per_user` counted pairs of a
    user so many count, chosen by keyed hash.
    """
    if not len(pairs) or not len(counted):
        return ItemSums.none()
    table, (of_pairs, of_counted) = ItemTable.merge([pairs.table, counted.table])
    wanted = counted.windows * len(table) + of_counted[counted.items]
    wanted.sort()
    cells = pairs.windows * len(table) + of_pairs[pairs.items]
    at = np.minimum(np.searchsorted(wanted, cells), len(wanted) - 1)
    rows = np.flatnonzero(wanted[at] == cells)
    if not len(rows):
        return ItemSums.none()
    chosen = pairs.select(rows)
    kept = keep_by_hash(chosen, np.full(len(chosen.users), per_user), keys)
    return ItemSums.of_weights(chosen, kept.astype(np.int64), keys)


def draw_counts(counted: NamedItems, holders: ItemSums, law: ExponentialPower, keys: StreamKeys) -> Whole:
    """The count of each counted item with its noise; at least 0. holders: of all users. law: of the noise.

    Returns int64[len(counted)].
    """
    table, (of_counted, of_holders) = ItemTable.merge([counted.table, holders.table])
    cells = holders.windows * len(table) + of_holders[holders.items]
    wanted = counted.windows * len(table) + of_counted[counted.items]
    at = np.searchsorted(cells, wanted)
    is_held = np.zeros(len(wanted), dtype=np.bool_)
    inside = at < len(cells)
    is_held[inside] = cells[at[inside]] == wanted[inside]
    counts = np.zeros(len(wanted), dtype=np.int64)
    digests = np.zeros((len(wanted), 2), dtype=np.uint64)
    counts[is_held], digests[is_held] = holders.sums[at[is_held]], holders.digests[at[is_held]]
    uniforms = keys.count_uniforms()(counted.windows, counted.table.hashes.take(counted.items, axis=0), digests)
    noise = noise_bounds(law).sample(uniforms)
    noisy: Whole = np.maximum(0, counts + noise)
    return noisy
