"""How much the users of each item add to it in each window: cells (window, item), each with one sum."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys, Words, sum_modulo_2_128
from dp_transforms.monitor.column_kinds import ADDED, Digests, Items, Narrow, Windows
from dp_transforms.monitor.columns import Cells
from dp_transforms.monitor.equal_rows import group_starts, sort_with_codes
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.packed_arrays import NARROW
from dp_transforms.monitor.pairs import Pairs


@dataclasses.dataclass(frozen=True, eq=False)
class ItemSums(Cells):
    """c cells (window, item), distinct, sorted by window and then by the keyed hash of the item.

    windows: int64[c], window index. items: int64[c], position in ``table``. sums: int64[c], the weights of all holders
    together: raw, never to be published. digests: uint64[c, 2], which holders with which weights.

    A sum is above 0. Only in a known domain there are cells with sum and digest 0: `empty_items`, which are named if
    nobody holds them.
    """

    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    sums: npt.NDArray[np.int64]
    digests: Words
    table: ItemTable

    SCHEMA: ClassVar = {
        "windows": Windows(),
        "items": Narrow(NARROW, into="table"),
        "sums": Narrow(join=ADDED),  # 10^8 users of weight 12,000 are far below 2^63
        "digests": Digests(),
        "table": Items(),
    }

    @classmethod
    def of_weights(cls, pairs: Pairs, weights: npt.NDArray[np.int64], keys: StreamKeys) -> ItemSums:
        """What the users of these pairs add to their items. weights: int64[len(pairs)]; pairs with 0 do not count."""
        if not weights.any():
            return cls.none()
        codes, rows = pairs.codes, pairs.windows * len(pairs.table) + pairs.items
        if not weights.all():
            counted = np.flatnonzero(weights != 0)  # many times as fast as of the numbers themselves
            codes, rows, weights = codes[counted], rows[counted], weights[counted]
        # What is added to digests is computed once for each user, if each has one weight in all its rows.
        of_users = np.zeros(len(pairs.users), dtype=np.int64)
        of_users[codes] = weights
        users = pairs.users
        if not np.array_equal(of_users[codes], weights):
            users, of_users, codes = users[codes], weights, np.arange(len(codes))
        rows, codes = sort_with_codes(rows, codes)
        digests = keys.widen_holders(users, of_users).take(codes, axis=0)
        starts = group_starts(rows)
        windows, items = np.divmod(rows[starts], len(pairs.table))
        sums = np.add.reduceat(of_users[codes], starts)
        return cls(windows, items, sums, sum_modulo_2_128(digests, starts), pairs.table).select(slice(None))
