"""A part of a run, as workers need it: its windows, and what users and items carry into them.

Nothing is carried into a run; `dp_transforms.runs.stored_part` has parts with a state before them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from dp_transforms.core.contribution_counters import Hits
from dp_transforms.core.equal_rows import places_of
from dp_transforms.core.followed_items import FollowedItems
from dp_transforms.core.messages import check_unpacked
from dp_transforms.core.state_chunks import BUCKETS, Kind, are_of_bucket, buckets_of_shard, hit_bound_of_chunk
from dp_transforms.core.tables import ByUser
from dp_transforms.core.user_budgets import BudgetEntries
from dp_transforms.plan.window_schedule import WindowSchedule

_Entries = TypeVar("_Entries", bound=ByUser)


@dataclasses.dataclass(frozen=True)
class RunPart:
    """The windows ``first .. end - 1`` of a run, into which nothing is carried.

    is_first: whether nothing is carried.
    draws_as: by what its noise differs from that of another part with these windows: a nonce (`fresh_nonce`), which is
        in the intent (`StateHeader.draws_as`) before anything is drawn; "" of a first part, and of a stream.

    What is carried is read for the users and items that are asked for alone.
    """

    is_first: ClassVar[bool] = True

    first: int
    end: int
    draws_as: str = ""

    @classmethod
    def whole(cls, schedule: WindowSchedule) -> RunPart:
        """All windows of a run, before which nothing is carried."""
        return cls(0, schedule.horizon)

    @property
    def windows(self) -> int:
        """How many windows the part has."""
        return self.end - self.first

    def purses(self, users: npt.NDArray[np.uint64], kind: Kind = Kind.PURSES) -> BudgetEntries:
        """The purses of those of these users that have one. users: keyed hashes, ascending."""
        return self._of_users(BudgetEntries, kind, users)

    def hits(self, users: npt.NDArray[np.uint64]) -> Hits:
        """Those of these users that have paid hits, ascending, and how many each has paid."""
        return self._of_users(Hits, Kind.BUDGETS, users)

    @property
    def hit_bound(self) -> int:
        return max((hit_bound_of_chunk(cell) for cell in self._cells(Kind.HIT_BOUND, [0])), default=0)

    def known(self, shard: int = 0, shards: int = 1) -> FollowedItems:
        """The known items of a shard."""
        parts = []
        for bucket in buckets_of_shard(shard, shards):
            for cell in self._cells(Kind.KNOWN, [bucket]):
                known = FollowedItems.from_bytes(cell)
                hashes = known.table.hashes[:, 1]
                check_unpacked(are_of_bucket(hashes, bucket))
                check_unpacked(bool((known.last_named < self.first).all() and (known.last_named >= 0).all()))
                parts.append(known.select(hashes % np.uint64(shards) == shard))
        return FollowedItems.merge(parts)

    def _of_users(self, table: type[_Entries], kind: Kind, users: npt.NDArray[np.uint64]) -> _Entries:
        buckets = users % np.uint64(BUCKETS)
        found = self._entries(table, kind, np.unique(buckets).tolist())
        return table.merge([held.select(places_of(held.users, users[buckets == bucket])) for bucket, held in found])

    def _entries(self, table: type[_Entries], kind: Kind, buckets: Iterable[int]) -> Iterator[tuple[int, _Entries]]:
        """By bucket, each cell of this kind."""
        for bucket in buckets:
            for cell in self._cells(kind, [bucket]):
                held = table.from_bytes(cell)
                check_unpacked(are_of_bucket(held.users, bucket))
                yield bucket, held

    def _cells(self, kind: Kind, buckets: list[int]) -> list[memoryview]:
        """What is carried of this kind, in these buckets."""
        return []
