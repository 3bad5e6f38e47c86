"""What is kept of each user for as long as a run lasts, and the hits that users have paid: the counters of
ThresholdMonitorEvolving, [KMS21] Algorithm 5, [CL23] Algorithm 5; docs/guarantee.md, "The mechanism of hits".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from dp_transforms.core.columns import WORDS
from dp_transforms.core.tables import MOST, ByUser, Column

_Entries = TypeVar("_Entries", bound=ByUser)


class EntriesByUser(Generic[_Entries]):
    """Entries by user. Of several entries of one user that with less left, or with more hits, counts. They are kept as
    long as the run lasts; a user without one has paid nothing.

    They are stored as chunks, byte strings under 10 MB. A user may be in several, in whatever order an engine gives
    them back, and a chunk that is stored twice charges nobody twice. So what a window changes is appended, without
    rewriting what is there.
    """

    def __init__(self, table: type[_Entries], stored: Iterable[_Entries]) -> None:
        self._table = table
        self._stored = list(stored)
        self._added: list[_Entries] = []  # each has more than twice as many entries as the next one

    def __len__(self) -> int:
        """How many entries there are; some users may have several."""
        return sum(map(len, (*self._stored, *self._added)))

    def of_users(self, users: npt.NDArray[np.uint64]) -> _Entries:
        """The newest entries of those of these users that have one. users: uint64[u], ascending."""
        found = []
        for entries in (*self._stored, *self._added):
            at = np.searchsorted(entries.users, users)
            at = at[at < len(entries)]
            found.append(entries.select(at[entries.users[at] == users[: len(at)]]))
        return self._table.merge(found)

    def add(self, entries: _Entries) -> None:
        """Joins it with what has at most twice its length: so there are few tables, and each entry is seldom joined."""
        while self._added and len(self._added[-1]) <= 2 * len(entries):
            entries = self._table.merge([self._added.pop(), entries])
        if len(entries):
            self._added.append(entries)

    def delta(self) -> list[bytes]:
        """What was added since the entries were read, as chunks to append to them."""
        return self._table.merge(self._added).to_chunks()

    def chunks(self) -> list[bytes]:
        """All entries, each user once, in as few chunks as possible, to replace those that were read."""
        return self._table.merge([*self._stored, *self._added]).to_chunks()


@dataclasses.dataclass(frozen=True, eq=False)
class HitEntries(ByUser):
    """Of u users, 12 bytes each: users uint64[u], keyed hashes, ascending and distinct, and their hits, uint32[u].

    `merge` keeps the most hits of each user: hits are never taken back.
    """

    users: npt.NDArray[np.uint64]
    hits: npt.NDArray[np.uint32]

    SCHEMA: ClassVar = {"users": Column(), "hits": Column(WORDS, join=MOST)}


class ContributionCounters(EntriesByUser[HitEntries]):
    """Hits paid by each user that was ever charged; all others have 0."""

    def __init__(self, stored: Iterable[HitEntries] = ()) -> None:
        super().__init__(HitEntries, stored)

    def hits(self, users: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """Hits paid so far. users: uint64[n], keyed hashes, ascending and distinct. Returns uint32[n]."""
        found, hits = self.of_users(users), np.zeros(len(users), dtype=np.uint32)
        hits[np.searchsorted(users, found.users)] = found.hits
        return hits
