"""The items of a known domain in a worker: keyed hashes in order, with their labels."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_transforms.mechanisms.randomness import IdHasher, Words
from dp_transforms.monitor.item_domain import ItemDomain
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


class HashesItems(Protocol):
    """Keyed functions of a run, or of several with the same key."""

    @property
    def hash_items(self) -> IdHasher: ...


@dataclasses.dataclass(frozen=True)
class DomainFile:
    """The domain of a plan, by the path of its file."""

    path: str
    size: int
    fingerprint: str

    def table(self, keys: HashesItems) -> DomainTable:
        """Its items by their keyed hashes: once in a process, for all steps of a run that need them.

        Raises ValueError unless the file holds the domain of the plan.
        """
        which = self, which_keys(keys)
        if which not in _TABLES:
            labels = ItemDomain.read(self.path).checked(self.size, self.fingerprint).labels
            _TABLES.clear()
            _TABLES[which] = DomainTable.of_labels(labels, keys.hash_items)
        return _TABLES[which]


_TABLES: dict[tuple[DomainFile, str], DomainTable] = {}  # at most one


def which_keys(keys: HashesItems) -> str:
    """Differs from key to key, and does not reveal the key: the keyed hash of a fixed text."""
    return keys.hash_items(pa.array(["which item hashes are these?"])).tobytes().hex()
