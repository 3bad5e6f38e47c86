"""Hits paid by each user: the counters of the modes, [KMS21] Algorithm 5 and [CL23] Algorithm 5."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dp_transforms.monitor.equal_rows import group_starts
from dp_transforms.monitor.packed_arrays import HASHES, WORDS, Packed, check_unpacked, pack_arrays, unpack_arrays

_USERS_PER_BLOB = 700_000  # 12 bytes each: a blob stays well under 10 MB


class UserBudgets:
    """Counters of the users that were ever charged; all others are 0. 12 bytes a user.

    Stored as blobs, byte strings under 10 MB. A user may be in several, and its highest counter counts: hits are never
    taken back. So what a window charges is appended, without rewriting what is there, and a blob that is stored twice
    charges nobody twice.

    are_noted: whether `charged_blobs` will be asked for. A replay never does, and saves the memory.
    """

    def __init__(self, blobs: Iterable[Packed] = (), *, are_noted: bool = False) -> None:
        self._users = np.zeros(0, dtype=np.uint64)  # ascending
        self._hits = np.zeros(0, dtype=np.uint32)
        self._charged = np.zeros(0, dtype=np.uint64) if are_noted else None
        arrays = [unpack_arrays(blob, HASHES, WORDS) for blob in blobs]
        check_unpacked(all(len(users) == len(hits) for users, hits in arrays))
        if arrays:
            users = np.concatenate([users for users, _ in arrays])
            order = np.argsort(users, kind="stable")  # each blob is in order already
            users = users[order]
            starts = group_starts(users)
            hits = np.concatenate([hits for _, hits in arrays])[order]
            self._users = users[starts]
            self._hits = np.maximum.reduceat(hits, starts) if len(starts) else self._hits

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
        if self._charged is not None:
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
        assert self._charged is not None
        return budget_blobs(self._charged, self.hits(self._charged))

    def to_blobs(self) -> list[bytes]:
        return budget_blobs(self._users, self._hits)


def budget_blobs(users: npt.NDArray[np.uint64], hits: npt.NDArray[np.uint32]) -> list[bytes]:
    """Blobs of these counters: byte strings under 10 MB, none for no user."""
    return [
        pack_arrays(users[low : low + _USERS_PER_BLOB], hits[low : low + _USERS_PER_BLOB])
        for low in range(0, len(users), _USERS_PER_BLOB)
    ]
