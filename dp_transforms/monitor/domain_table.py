"""The items of a known domain in a worker: keyed hashes in order, with their labels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_transforms.mechanisms.randomness import IdHasher, Words
from dp_transforms.monitor.item_table import ItemTable


class DomainTable:
    """All items of a known domain. 16 bytes and the label for each."""

    def __init__(self, table: ItemTable) -> None:
        self.items = table
        self._high = np.ascontiguousarray(table.hashes[:, 0])

    @classmethod
    def of_labels(cls, labels: pa.StringArray, hash_items: IdHasher) -> DomainTable:
        return cls(ItemTable.of_labels(labels, hash_items)[0])

    def __len__(self) -> int:
        return len(self.items)

    def contains(self, hashes: Words) -> npt.NDArray[np.bool_]:
        """Whether each item is in the domain. hashes: uint64[n, 2]. Returns bool[n]."""
        high, low = hashes[:, 0], hashes[:, 1]
        at = np.searchsorted(self._high, high)
        found = np.zeros(len(hashes), dtype=np.bool_)
        while True:  # again only if two items of the domain share a high word
            place = np.minimum(at, len(self) - 1)
            same_high = (at < len(self)) & (self._high[place] == high)
            found |= same_high & (self.items.hashes[place, 1] == low)
            if not np.any(same_high & ~found):
                return found
            at = at + 1
