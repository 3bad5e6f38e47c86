"""A part of a run, as workers need it: its windows, and what users and items carry into them."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.packed_arrays import check_unpacked
from dp_transforms.monitor.purses import PurseEntries
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.state_cells import (
    BUCKETS,
    Kind,
    are_of_bucket,
    buckets_of_shard,
    hit_bound_of_cell,
    hits_of_cell,
)
from dp_transforms.runs.state_file import StateFile
from dp_transforms.runs.state_header import StateError, at_path


@dataclasses.dataclass(frozen=True)
class RunPart:
    """The windows ``first .. end - 1`` of a run, and where the state before them is.

    state_path: a file that every worker can read; None: nothing is carried, as before the first window.
    state_fingerprint: of that state: a worker that finds another one refuses it.

    What is carried is read for the users and items that are asked for alone. Each method raises StateError for a file
    that cannot be used.
    """

    first: int
    end: int
    state_path: str | None = None
    state_fingerprint: str = ""

    @classmethod
    def whole(cls, schedule: WindowSchedule) -> RunPart:
        """All windows of a run, before which nothing is carried."""
        return cls(0, schedule.horizon)

    @property
    def windows(self) -> int:
        """How many windows the part has."""
        return self.end - self.first

    def purses(self, users: npt.NDArray[np.uint64]) -> PurseEntries:
        """The purses of those of these users that have one. users: keyed hashes, ascending."""
        parts = [PurseEntries.none()]
        for bucket, asked in self._by_bucket(users):
            for cell in self._cells(Kind.PURSES, [bucket]):
                entries = PurseEntries.from_cell(cell)
                check_unpacked(are_of_bucket(entries.users, bucket))
                parts.append(entries.take(_rows_of(entries.users, asked)))
        filled = [part for part in parts if len(part)]
        return PurseEntries.join(filled) if filled else PurseEntries.none()

    def purses_of_shard(self, shard: int, shards: int) -> PurseEntries:
        """All purses of a shard of users."""
        parts = []
        for bucket in buckets_of_shard(shard, shards):
            for cell in self._cells(Kind.PURSES, [bucket]):
                entries = PurseEntries.from_cell(cell)
                check_unpacked(are_of_bucket(entries.users, bucket))
                parts.append(entries.take(np.flatnonzero(entries.users % np.uint64(shards) == shard)))
        filled = [part for part in parts if len(part)]
        return PurseEntries.join(filled) if filled else PurseEntries.none()

    def all_hits(self) -> list[bytes]:
        """The hits of all users, as blobs of `UserBudgets`."""
        found = []
        for bucket in range(BUCKETS):
            for cell in self._cells(Kind.BUDGETS, [bucket]):
                check_unpacked(are_of_bucket(hits_of_cell(cell)[0], bucket))
                found.append(bytes(cell))
        return found

    def hits(self, users: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """Those of these users that have paid hits, ascending, and how many each has paid."""
        found = [(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint32))]
        for bucket, asked in self._by_bucket(users):
            for cell in self._cells(Kind.BUDGETS, [bucket]):
                charged, hits = hits_of_cell(cell)
                check_unpacked(are_of_bucket(charged, bucket))
                rows = _rows_of(charged, asked)
                found.append((charged[rows], hits[rows]))
        everybody = np.concatenate([charged for charged, _ in found])
        order = np.argsort(everybody, kind="stable")
        return everybody[order], np.concatenate([hits for _, hits in found])[order]

    @property
    def hit_bound(self) -> int:
        return max((hit_bound_of_cell(cell) for cell in self._cells(Kind.HIT_BOUND, [0])), default=0)

    def known(self, kind: Kind, shard: int = 0, shards: int = 1) -> KnownItems:
        """The known items of a shard, or those that passed lately. kind: KNOWN or PASSED."""
        parts = []
        for bucket in buckets_of_shard(shard, shards):
            for cell in self._cells(kind, [bucket]):
                known = KnownItems.from_cells([cell])
                hashes = known.table.hashes[:, 1]
                check_unpacked(are_of_bucket(hashes, bucket))
                check_unpacked(bool((known.last_named < self.first).all() and (known.last_named >= 0).all()))
                rows = np.flatnonzero(hashes % np.uint64(shards) == shard)
                parts.append(KnownItems(known.table.take(rows), known.last_named[rows]))
        return KnownItems.join(parts)

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

    def _cells(self, kind: Kind, buckets: list[int]) -> list[memoryview]:
        state = _OPENED.get(self)
        return [] if state is None else list(state.cells_of(kind, buckets))

    @staticmethod
    def _by_bucket(users: npt.NDArray[np.uint64]) -> list[tuple[int, npt.NDArray[np.uint64]]]:
        buckets = users % np.uint64(BUCKETS)
        return [(int(bucket), users[buckets == bucket]) for bucket in np.unique(buckets)]


class _Opened:
    """The state that this process read last, so that each of its cells is checked once and not for each shard."""

    def __init__(self) -> None:
        self._part: RunPart | None = None
        self._state: StateFile | None = None

    def get(self, part: RunPart) -> StateFile | None:
        if part.state_path is None:
            return None
        if part != self._part or self._state is None:
            self._part, self._state = part, part.state()
        return self._state


_OPENED = _Opened()


def _rows_of(held: npt.NDArray[np.uint64], asked: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Where those of `asked` are that are held. Both ascending and distinct. Looks up the fewer in the more."""
    if not len(held) or not len(asked):
        return np.zeros(0, dtype=np.int64)
    if len(asked) <= len(held):
        at = np.minimum(np.searchsorted(held, asked), len(held) - 1)
        found: npt.NDArray[np.int64] = at[held[at] == asked]
        return found
    at = np.minimum(np.searchsorted(asked, held), len(asked) - 1)
    return np.flatnonzero(asked[at] == held)
