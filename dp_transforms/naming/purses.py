"""What each user of a stream has left to pay for looks with.

Guarantee: a user never pays more than one purse for all its looks together, wherever its events fall and however often
a run is restored. What a window costs is checked before the looks, and what cannot be paid does not count. A user's
weights depend on its own events and on declared numbers, and on nothing else. Condition: windows come in order, each
once. Unit: a look, one item of one user in one window with a positive weight. With sliding windows an event counts in
several windows, and each one is paid. Source: docs/purse.md, section 2; `pace` chooses the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.equal_rows import group_starts
from dp_transforms.monitoring.packed_arrays import HASHES, WHOLE, WORDS, check_unpacked, pack_arrays, unpack_arrays
from dp_transforms.monitoring.user_pairs import UserPairs
from dp_transforms.naming.kept_pairs import keep_by_hash
from dp_transforms.naming.naming_settings import NamingSettings
from dp_transforms.naming.pace import Pace

ENTRY_BYTES = 24
_USERS_PER_CELL = 400_000  # a cell stays under 10 MB
_SPARE_CELLS = 64
_NEVER = 2**32 - 1  # above the number of every window


@dataclasses.dataclass(frozen=True, eq=False)
class PurseEntries:
    """The purses of u users, 24 bytes each.

    users: uint64[u], distinct keyed hashes, ascending. left: int64[u], units, at least 0. looks: uint32[u], how many
    were paid. first_windows: uint32[u], the window of the first one.
    """

    users: npt.NDArray[np.uint64]
    left: npt.NDArray[np.int64]
    looks: npt.NDArray[np.uint32]
    first_windows: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.users)

    @classmethod
    def none(cls) -> PurseEntries:
        words = np.zeros(0, dtype=np.uint32)
        return cls(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64), words, words)

    @classmethod
    def join(cls, parts: Sequence[PurseEntries]) -> PurseEntries:
        """The newest entry of each user: the one with the least left.

        A look costs at least one unit, so from entry to entry less is left, and looks rise. The result depends neither
        on the order of the parts nor on how often one is there. So an engine need not keep the order of what is stored,
        and an entry that is stored twice is not paid twice, as charges that add up would be.
        """
        if len(parts) == 1:
            return parts[0]
        if not any(len(part) for part in parts):
            return cls.none()
        users = np.concatenate([part.users for part in parts])
        order = np.argsort(users, kind="stable")  # fast, since the parts are sorted
        users = users[order]
        starts = group_starts(users)
        return cls(
            users[starts],
            np.minimum.reduceat(np.concatenate([part.left for part in parts])[order], starts),
            np.maximum.reduceat(np.concatenate([part.looks for part in parts])[order], starts),
            np.minimum.reduceat(np.concatenate([part.first_windows for part in parts])[order], starts),
        )

    def to_cells(self) -> list[bytes]:
        """Byte strings under 10 MB, none for no user."""
        columns = (self.users, self.left, self.looks, self.first_windows)
        return [
            pack_arrays(*(column[low : low + _USERS_PER_CELL] for column in columns))
            for low in range(0, len(self), _USERS_PER_CELL)
        ]

    @classmethod
    def from_cell(cls, cell: bytes) -> PurseEntries:
        """Raises ValueError for bytes in which a purse has no user, or less than nothing."""
        users, left, looks, first_windows = unpack_arrays(cell, HASHES, WHOLE, WORDS, WORDS)
        check_unpacked(len(users) == len(left) == len(looks) == len(first_windows))
        check_unpacked((users[1:] > users[:-1]).all() and (left >= 0).all())
        return cls(users, left, looks, first_windows)


class Purses:
    """The purses of all users that ever paid for a look; all others are full. They are kept as long as the run lasts.

    Stored as cells, byte strings under 10 MB. A user may be in several cells, and its newest entry counts
    (`PurseEntries.join`). So what a window changes is appended, without rewriting what is there. A window looks up its
    own users in each cell; the cells are put together only when they are rewritten.
    """

    def __init__(self, settings: NamingSettings, keys: StreamKeys, cells: Iterable[bytes] = ()) -> None:
        """cells: what was stored so far, in any order. Raises ValueError for other bytes."""
        self._pace = Pace(settings)
        self._purse = settings.purse
        self._keys = keys
        self._stored = [PurseEntries.from_cell(cell) for cell in cells]
        self._changed: list[PurseEntries] = []  # each has more than twice as many entries as the next one

    def spend(self, pairs: UserPairs, window: int) -> npt.NDArray[np.int64]:
        """Pays for the looks of a window. ``pairs`` must contain all pairs of its users in it.

        Returns the weight of each pair, 0 for one that cannot be paid: int64[len(pairs)]. Raises ValueError for pairs
        of other windows, and for a window before the first one that one of these users has paid.
        """
        if (pairs.windows != window).any():
            raise ValueError(f"all pairs must lie in window {window}.")
        looks = np.diff(pairs.splits)
        before = self._entries_of(pairs.users, window)
        if (before.first_windows > window).any():
            raise ValueError(f"window {window} cannot be paid: a later window was paid before.")
        chosen = self._pace.choose(
            looks, before.left, before.looks.astype(np.int64), before.first_windows.astype(np.int64), window
        )
        paid = np.flatnonzero(chosen.payable)
        self._append(
            PurseEntries(
                pairs.users[paid],
                (before.left - chosen.payable * chosen.units)[paid],
                (before.looks + chosen.payable)[paid].astype(np.uint32),
                before.first_windows[paid],
            )
        )
        kept = keep_by_hash(pairs, chosen.payable, self._keys)
        return np.where(kept, np.repeat(chosen.weights, looks), 0)

    @property
    def entries(self) -> int:
        """How many entries there are, `ENTRY_BYTES` each; some users may have several."""
        return sum(len(entries) for entries in (*self._stored, *self._changed))

    def changed_cells(self) -> list[bytes]:
        """What was spent since the cells were read, as cells to append to them."""
        return PurseEntries.join(self._changed).to_cells()

    def rewritten_cells(self) -> list[bytes]:
        """All purses in as few cells as possible, to replace those that were read. `entries` is then that of users."""
        self._stored, self._changed = [PurseEntries.join([*self._stored, *self._changed])], []
        return self._stored[0].to_cells()

    def is_scattered(self, entries_when_rewritten: int) -> bool:
        """Whether it is time to rewrite all cells. This costs no more than a bounded share of what is read.

        entries_when_rewritten: how many entries there were after the last time.
        """
        is_large = self.entries > 2 * entries_when_rewritten + _USERS_PER_CELL
        return is_large or len(self._stored) > _SPARE_CELLS + 2 * (-(-entries_when_rewritten // _USERS_PER_CELL))

    def _entries_of(self, users: npt.NDArray[np.uint64], window: int) -> PurseEntries:
        """The newest entries of these users, and full purses for those that have none. users: uint64[u], ascending."""
        left = np.full(len(users), self._purse, dtype=np.int64)
        looks = np.zeros(len(users), dtype=np.uint32)
        first_windows = np.full(len(users), _NEVER, dtype=np.uint32)
        for entries in (*self._stored, *self._changed):
            if not len(entries):
                continue
            low = int(np.searchsorted(users, entries.users[0]))
            high = int(np.searchsorted(users, entries.users[-1], side="right"))
            at = np.searchsorted(entries.users, users[low:high])
            found = entries.users[at] == users[low:high]
            rows, at = low + np.flatnonzero(found), at[found]
            left[rows] = np.minimum(left[rows], entries.left[at])
            looks[rows] = np.maximum(looks[rows], entries.looks[at])
            first_windows[rows] = np.minimum(first_windows[rows], entries.first_windows[at])
        first_windows[first_windows == _NEVER] = window
        return PurseEntries(users, left, looks, first_windows)

    def _append(self, entries: PurseEntries) -> None:
        """Joins what has at most twice the length, so that there are few parts, and each entry is seldom joined."""
        while self._changed and len(self._changed[-1]) <= 2 * len(entries):
            entries = PurseEntries.join([self._changed.pop(), entries])
        if len(entries):
            self._changed.append(entries)
