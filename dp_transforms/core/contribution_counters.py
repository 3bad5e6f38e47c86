"""Hits paid by each user: [KMS21] Algorithm 5, [CL23] Algorithm 5; docs/guarantee.md, "The mechanism of hits".

`HolderCounters` are those of the holders of some candidates, matched to their users once, for all windows of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dp_transforms.core.equal_rows import distinct_hashes
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.messages import WORDS, Packed
from dp_transforms.core.tables import MOST, ByUser, Column


@dataclasses.dataclass(frozen=True, eq=False)
class Hits(ByUser):
    """Of u users, 12 bytes each: users uint64[u], keyed hashes, ascending and distinct, and their hits, uint32[u].

    `merge` keeps the most hits of each user: hits are never taken back.
    """

    users: npt.NDArray[np.uint64]
    hits: npt.NDArray[np.uint32]

    SCHEMA: ClassVar = {"users": Column(), "hits": Column(WORDS, join=MOST)}
    ROWS_OF_CHUNK = 700_000


class ContributionCounters:
    """Counters of the users that were ever charged; all others are 0. 12 bytes a user.

    Stored as blobs, byte strings under 10 MB. A user may be in several, and its highest counter counts: hits are never
    taken back. So what a window charges is appended, without rewriting what is there, and a blob that is stored twice
    charges nobody twice.
    """

    def __init__(self, blobs: Iterable[Packed] = ()) -> None:
        stored = Hits.of_messages(blobs)
        self._users, self._hits = stored.users, stored.hits.copy()
        self._charged = np.zeros(0, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self._users)

    def places(self, users: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Where each of these users has its counter, or would have it. As long as none is added. Returns int64[n]."""
        return np.searchsorted(self._users, users)

    def hits(
        self, users: npt.NDArray[np.uint64], places: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.uint32]:
        """Hits paid so far. users: uint64[n], keyed hashes. places: theirs, if known. Returns uint32[n]."""
        hits = np.zeros(len(users), dtype=np.uint32)
        places = self.places(users) if places is None else places
        is_here = self._are_at(places, users)
        hits[is_here] = self._hits[places[is_here]]
        return hits

    def charge(
        self,
        users: npt.NDArray[np.uint64],
        hits: npt.NDArray[np.uint32],
        places: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Adds hits. users: uint64[n], distinct, ascending. places: theirs, if known. One pass over the counters:
        O(counters + n)."""
        places = self.places(users) if places is None else places
        is_here = self._are_at(places, users)
        self._charged = np.union1d(self._charged, users)
        self._hits[places[is_here]] += hits[is_here]
        if not is_here.all():
            self._insert(users[~is_here], hits[~is_here], places[~is_here])

    def _are_at(self, places: npt.NDArray[np.int64], users: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Whether there is a counter of each of these users."""
        if not len(self):
            return np.zeros(len(users), dtype=np.bool_)
        are_here: npt.NDArray[np.bool_] = self._users.take(places, mode="clip") == users
        return are_here

    def _insert(
        self, users: npt.NDArray[np.uint64], hits: npt.NDArray[np.uint32], places: npt.NDArray[np.int64]
    ) -> None:
        """Users without a counter, ascending. As `np.insert`, but both columns at once."""
        inserted = places + np.arange(len(places))
        is_kept = np.ones(len(self) + len(users), dtype=np.bool_)
        is_kept[inserted] = False
        kept = np.flatnonzero(is_kept)
        all_users, all_hits = np.empty(len(is_kept), dtype=np.uint64), np.empty(len(is_kept), dtype=np.uint32)
        all_users[kept], all_hits[kept] = self._users, self._hits
        all_users[inserted], all_hits[inserted] = users, hits
        self._users, self._hits = all_users, all_hits

    def charged_blobs(self) -> list[bytes]:
        """The counters of those that were charged since the blobs were read, as blobs to append to them."""
        return Hits(self._charged, self.hits(self._charged)).to_chunks()

    def to_blobs(self) -> list[bytes]:
        return Hits(self._users, self._hits).to_chunks()


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
    def of(cls, parts: Sequence[ItemHolders], budgets: ContributionCounters) -> HolderCounters:
        """Of all holders of these parts."""
        holders = parts[0].holders if len(parts) == 1 else np.concatenate([part.holders for part in parts])
        users, user_of_row = distinct_hashes(holders)
        places = budgets.places(users)
        paid = budgets.hits(users, places)
        return cls(users, user_of_row, paid.copy(), paid, places)

    def of_rows(self, low: int, high: int) -> HolderCounters:
        """The same counters, for these rows alone."""
        return dataclasses.replace(self, user_of_row=self.user_of_row[low:high])

    def charge(self, budgets: ContributionCounters) -> None:
        """Adds to the budgets what was added to the counters. Once, and to the budgets that these were made of."""
        changed = np.flatnonzero(self.hits != self.paid)
        budgets.charge(self.users[changed], self.hits[changed] - self.paid[changed], self.places[changed])
