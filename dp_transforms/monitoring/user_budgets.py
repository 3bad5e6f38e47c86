"""Hits paid by each user: the counters of the release modes, [KMS21] Algorithm 5 and [CL23] Algorithm 5."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dp_transforms.monitoring.packed_arrays import HASHES, WORDS, check_unpacked, pack_arrays, unpack_arrays

_USERS_PER_BLOB = 700_000  # 12 bytes each: a blob stays well under 10 MB


class UserBudgets:
    """Counters of the users that were ever charged; all others are 0. 12 bytes a user.

    Stored as blobs, byte strings under 10 MB. Blobs add up: a user may be in several, so the charges of a window can be
    appended without rewriting what is there.
    """

    def __init__(self, blobs: Iterable[bytes] = ()) -> None:
        self._users = np.zeros(0, dtype=np.uint64)  # ascending
        self._hits = np.zeros(0, dtype=np.uint32)
        arrays = [unpack_arrays(blob, HASHES, WORDS) for blob in blobs]
        check_unpacked(all(len(users) == len(hits) for users, hits in arrays))
        if arrays:
            users, positions = np.unique(np.concatenate([users for users, _ in arrays]), return_inverse=True)
            self._users = users
            self._hits = np.zeros(len(users), dtype=np.uint32)
            np.add.at(self._hits, positions.reshape(-1), np.concatenate([hits for _, hits in arrays]))

    def __len__(self) -> int:
        return len(self._users)

    def hits(self, users: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """Hits paid so far. users: uint64[n], keyed hashes. Returns uint32[n]."""
        if not len(self._users):
            return np.zeros(len(users), dtype=np.uint32)
        positions = np.minimum(np.searchsorted(self._users, users), len(self._users) - 1)
        return np.where(self._users[positions] == users, self._hits[positions], np.uint32(0))

    def charge(self, users: npt.NDArray[np.uint64], hits: npt.NDArray[np.uint32]) -> None:
        """Adds hits. users: uint64[n], distinct, ascending. One pass over the counters: O(counters + n)."""
        positions = np.searchsorted(self._users, users)
        known = np.zeros(len(users), dtype=np.bool_)
        inside = positions < len(self._users)
        known[inside] = self._users[positions[inside]] == users[inside]
        self._hits[positions[known]] += hits[known]
        if not known.all():
            self._users = np.insert(self._users, positions[~known], users[~known])
            self._hits = np.insert(self._hits, positions[~known], hits[~known])

    @property
    def blob_count(self) -> int:
        """How many blobs `to_blobs` makes."""
        return -(-len(self) // _USERS_PER_BLOB)

    def to_blobs(self) -> list[bytes]:
        return budget_blobs(self._users, self._hits)


def budget_blobs(users: npt.NDArray[np.uint64], hits: npt.NDArray[np.uint32]) -> list[bytes]:
    """Blobs of these charges: byte strings under 10 MB, none for no user."""
    return [
        pack_arrays(users[low : low + _USERS_PER_BLOB], hits[low : low + _USERS_PER_BLOB])
        for low in range(0, len(users), _USERS_PER_BLOB)
    ]
