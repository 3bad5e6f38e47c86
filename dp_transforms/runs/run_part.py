"""A part of a run, as workers need it: its windows, and what users and items carry into them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dp_transforms.monitor.columns import ByUser
from dp_transforms.monitor.contribution_counters import Hits
from dp_transforms.monitor.equal_rows import places_of
from dp_transforms.monitor.followed_items import KnownItems
from dp_transforms.monitor.packed_arrays import check_unpacked
from dp_transforms.monitor.purses import PurseEntries
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.records import StateError
from dp_transforms.runs.state_cells import BUCKETS, Kind, are_of_bucket, buckets_of_shard, hit_bound_of_cell
from dp_transforms.runs.state_file import StateFile
from dp_transforms.runs.state_header import at_path

_Entries = TypeVar("_Entries", bound=ByUser)


@dataclasses.dataclass(frozen=True)
class RunPart:
    """The windows ``first .. end - 1`` of a run, and where the state before them is.

    state_path: a file that every worker can read; None: nothing is carried, as before the first window.
    state_fingerprint: of that state: a worker that finds another one refuses it.
    draws_as: by what its noise differs from that of another part with these windows: a nonce (`fresh_nonce`), which is
        in the intent (`StateHeader.draws_as`) before anything is drawn; "" of a first part, and of a stream.

    What is carried is read for the users and items that are asked for alone. Each method raises StateError for a file
    that cannot be used.
    """

    first: int
    end: int
    state_path: str | None = None
    state_fingerprint: str = ""
    draws_as: str = ""

    @classmethod
    def whole(cls, schedule: WindowSchedule) -> RunPart:
        """All windows of a run, before which nothing is carried."""
        return cls(0, schedule.horizon)

    @property
    def windows(self) -> int:
        """How many windows the part has."""
        return self.end - self.first

    def purses(self, users: npt.NDArray[np.uint64], kind: Kind = Kind.PURSES) -> PurseEntries:
        """The purses of those of these users that have one. users: keyed hashes, ascending."""
        return self._of_users(PurseEntries, kind, users)

    def hits(self, users: npt.NDArray[np.uint64]) -> Hits:
        """Those of these users that have paid hits, ascending, and how many each has paid."""
        return self._of_users(Hits, Kind.BUDGETS, users)

    @property
    def hit_bound(self) -> int:
        return max((hit_bound_of_cell(cell) for cell in self._cells(Kind.HIT_BOUND, [0])), default=0)

    def known(self, shard: int = 0, shards: int = 1) -> KnownItems:
        """The known items of a shard."""
        parts = []
        for bucket in buckets_of_shard(shard, shards):
            for cell in self._cells(Kind.KNOWN, [bucket]):
                known = KnownItems.from_bytes(cell)
                hashes = known.table.hashes[:, 1]
                check_unpacked(are_of_bucket(hashes, bucket))
                check_unpacked(bool((known.last_named < self.first).all() and (known.last_named >= 0).all()))
                parts.append(known.select(hashes % np.uint64(shards) == shard))
        return KnownItems.merge(parts)

    def state(self) -> StateFile | None:
        """The state before the part; None where nothing is carried."""
        if self.state_path is None:
            return None
        state = StateFile(self.state_path)
        if state.fingerprint != self.state_fingerprint or state.header.closed_through != self.first:
            raise at_path(
                self.state_path,
                StateError("it is not the state that this part began with. Do not change it while a part runs."),
            )
        return state

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
        state = _opened(self)
        return [] if state is None else list(state.cells_of(kind, buckets))


@functools.lru_cache(maxsize=1)
def _opened(part: RunPart) -> StateFile | None:
    """The state that this process read last, so that each of its cells is checked once and not for each shard."""
    return part.state()
