"""The counters of the holders of some candidates: matched to their users once, for all windows of these candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.monitor.equal_rows import distinct_hashes
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.user_budgets import UserBudgets


@dataclasses.dataclass(frozen=True)
class Charges:
    """Of one window or of several: users uint64[n], ascending and distinct, and their new hits, uint32[n]."""

    users: npt.NDArray[np.uint64]
    hits: npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True, eq=False)
class HolderCounters:
    """k users, each with a number, and n rows: the holders of some cells, one after the other.

    users: uint64[k], keyed hashes, ascending. user_of_row: int64[n], the number of each holder. hits: uint32[k], paid
    so far; what is charged is added here. paid: uint32[k], hits paid before. places: int64[k], of the users in budgets.
    """

    users: npt.NDArray[np.uint64]
    user_of_row: npt.NDArray[np.int64]
    hits: npt.NDArray[np.uint32]
    paid: npt.NDArray[np.uint32]
    places: npt.NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[ItemHolders], budgets: UserBudgets) -> HolderCounters:
        """Of all holders of these parts."""
        holders = parts[0].holders if len(parts) == 1 else np.concatenate([part.holders for part in parts])
        users, user_of_row = distinct_hashes(holders)
        places = budgets.places(users)
        paid = budgets.hits(users, places)
        return cls(users, user_of_row, paid.copy(), paid, places)

    def of_rows(self, low: int, high: int) -> HolderCounters:
        """The same counters, for these rows alone."""
        return dataclasses.replace(self, user_of_row=self.user_of_row[low:high])

    def charge(self, budgets: UserBudgets) -> Charges:
        """Adds to the budgets what was added to the counters. Once, and to the budgets that these were made of."""
        changed = np.flatnonzero(self.hits != self.paid)
        charges = Charges(self.users[changed], self.hits[changed] - self.paid[changed])
        budgets.charge(charges.users, charges.hits, self.places[changed])
        return charges
