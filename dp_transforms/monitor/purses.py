"""What each user of a stream has left to pay for looks with.

Guarantee: a user never pays more than one purse for all its looks together, wherever its events fall and however often
a run is restored. What a window costs is checked before the looks, and what cannot be paid does not count. A user's
weights depend on its own events and on declared numbers, and on nothing else. Condition: windows
come in order, each once. Unit: a look, one item of one user in one window with a positive weight. With sliding windows
an event counts in several windows, and each one is paid. Source: docs/guarantee.md, "Theorem of the purse"; `pace`
chooses the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.column_kinds import LEAST, MOST, Column
from dp_transforms.monitor.columns import ByUser
from dp_transforms.monitor.equal_rows import places_of
from dp_transforms.monitor.pace import Pace
from dp_transforms.monitor.packed_arrays import WHOLE, WORDS, Packed, check_unpacked
from dp_transforms.monitor.pairs import Pairs, keep_by_hash
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import SECOND_LOOKS

Whole = npt.NDArray[np.int64]

ENTRY_BYTES = 24
_SPARE_CELLS = 64


@dataclasses.dataclass(frozen=True, eq=False)
class PurseEntries(ByUser):
    """The purses of u users, 24 bytes each.

    `merge` keeps the newest entry of each user: the one with the least left. A look costs at least one unit, so from
    entry to entry less is left, and looks rise. So an engine need not keep the order of what is stored, and an entry
    that is stored twice is not paid twice, as charges that add up would be.

    users: uint64[u], distinct keyed hashes, ascending. left: int64[u], units, at least 0. looks: uint32[u], how many
    were paid; in the last of several rounds in parts of `SECOND_LOOKS`. first_windows: uint32[u], the window of the
    first one.
    """

    users: npt.NDArray[np.uint64]
    left: npt.NDArray[np.int64]
    looks: npt.NDArray[np.uint32]
    first_windows: npt.NDArray[np.uint32]

    SCHEMA: ClassVar = {
        "users": Column(),
        "left": Column(WHOLE, join=LEAST),
        "looks": Column(WORDS, join=MOST),
        "first_windows": Column(WORDS, join=LEAST),
    }
    ROWS_OF_CELL = 400_000

    def check(self) -> None:
        check_unpacked(bool((self.left >= 0).all()))


class Purses:
    """The purses of all users that ever paid for a look; all others are full. They are kept as long as the run lasts.

    Stored as cells, byte strings under 10 MB. A user may be in several cells, and its newest entry counts
    (`PurseEntries.merge`). So what a window changes is appended, without rewriting what is there. A window looks up its
    own users in each cell; the cells are put together only when they are rewritten.
    """

    def __init__(self, plan: Plan, keys: StreamKeys, cells: Iterable[Packed] = (), units: int = PURSE_UNITS) -> None:
        """cells: what was stored so far, in any order. units: in a full purse, less in that of a round. Raises
        ValueError for other bytes."""
        self._full = units
        self._pace = Pace(plan)
        self._keys = keys
        self._stored = [PurseEntries.from_bytes(cell) for cell in cells]
        self._changed: list[PurseEntries] = []  # each has more than twice as many entries as the next one

    @classmethod
    def of_entries(
        cls, plan: Plan, keys: StreamKeys, entries: PurseEntries, window: int, units: int = PURSE_UNITS
    ) -> Purses:
        """The purses of some users before this window, of a state that was stored. Raises ValueError for entries that
        no run of this plan can have made: with more than a purse, or paid in this window or later."""
        check_unpacked(bool((entries.left <= units).all() and (entries.first_windows < window).all()))
        purses = cls(plan, keys, units=units)
        purses._stored = [entries] if len(entries) else []
        return purses

    def spend(self, pairs: Pairs, window: int, end: int | None = None) -> Whole:
        """Pays for the looks of a window. ``pairs`` must contain all pairs of its users in it. end: the windows
        ``window .. end - 1`` are paid together.

        Returns the weight of each pair, 0 for one that cannot be paid.
        Raises ValueError for pairs of other windows, and for a window before the first one that one of these users has
        paid.
        """
        end = window + 1 if end is None else end
        looks, before = pairs.counts, self._before(pairs, pairs.users, window, end)
        looks_before, first_windows = before.looks.astype(np.int64), before.first_windows.astype(np.int64)
        chosen = self._pace.choose(looks, before.left, looks_before, first_windows, end - 1)
        self._pay(before, before.left - chosen.payable * chosen.units, chosen.payable)
        return np.asarray(chosen.weights[pairs.codes] * keep_by_hash(pairs, chosen.payable, self._keys))

    def spend_with_second(self, pairs: Pairs, window: int, end: int) -> Whole:
        """The last round of looks in the windows ``window .. end - 1``, with second looks at what is named already:
        those pairs are kept `Pairs.apart`. Returns their weights, as `spend`."""
        (looks, again), users = pairs.counts.reshape(-1, 2).T, pairs.users[::2]
        before = self._before(pairs, users, window, end)
        parts_before, first_windows = before.looks.astype(np.int64), before.first_windows.astype(np.int64)
        first, second = self._pace.choose_with_second(looks, again, before.left, parts_before, first_windows, end - 1)
        left = before.left - first.payable * first.units - second.payable * second.units
        self._pay(before, left, first.payable * SECOND_LOOKS + second.payable)
        weights = np.stack([first.weights, second.weights], axis=1).reshape(-1)
        kept = keep_by_hash(pairs, np.stack([first.payable, second.payable], axis=1).reshape(-1), self._keys)
        return np.asarray(weights[pairs.codes] * kept)

    @property
    def entries(self) -> int:
        """How many entries there are; some users may have several."""
        return sum(len(entries) for entries in (*self._stored, *self._changed))

    @property
    def entry_bytes(self) -> int:
        """What all entries take."""
        return ENTRY_BYTES * self.entries

    def changed_cells(self) -> list[bytes]:
        """What was spent since the cells were read, as cells to append to them."""
        return PurseEntries.merge(self._changed).to_cells()

    def rewritten_cells(self) -> list[bytes]:
        """All purses in as few cells as possible, to replace those that were read. `entries` is then that of users."""
        self._stored, self._changed = [PurseEntries.merge([*self._stored, *self._changed])], []
        return self._stored[0].to_cells()

    def is_scattered(self, entries_when_rewritten: int) -> bool:
        """Whether it is time to rewrite all cells. This costs no more than a bounded share of what is read.

        entries_when_rewritten: how many entries there were after the last time.
        """
        of_cell = PurseEntries.ROWS_OF_CELL
        is_large = self.entries > 2 * entries_when_rewritten + of_cell
        return is_large or len(self._stored) > _SPARE_CELLS + 2 * (-(-entries_when_rewritten // of_cell))

    def _before(self, pairs: Pairs, users: npt.NDArray[np.uint64], window: int, end: int) -> PurseEntries:
        if ((pairs.windows < window) | (pairs.windows >= end)).any():
            raise ValueError(
                f"all pairs must lie in window {window}" + (f" .. {end - 1}." if end > window + 1 else ".")
            )
        before = self._entries_of(users, window)
        if (before.first_windows > window).any():
            raise ValueError(f"window {window} cannot be paid: a later window was paid before.")
        return before

    def _pay(self, before: PurseEntries, left: Whole, looks: Whole) -> None:
        """left: then, in the purses before. looks: paid now."""
        paid = np.flatnonzero(looks)
        self._append(
            PurseEntries(
                before.users[paid],
                left[paid],
                (before.looks + looks)[paid].astype(np.uint32),
                before.first_windows[paid],
            )
        )

    def _entries_of(self, users: npt.NDArray[np.uint64], window: int) -> PurseEntries:
        """The newest entries of these users, and full purses for those that have none. users: uint64[u], ascending."""
        stored = (*self._stored, *self._changed)
        found = PurseEntries.merge([entries.select(places_of(entries.users, users)) for entries in stored])
        at = np.searchsorted(users, found.users)
        left = np.full(len(users), self._full, dtype=np.int64)
        looks = np.zeros(len(users), dtype=np.uint32)
        first_windows = np.full(len(users), window, dtype=np.uint32)
        left[at], looks[at], first_windows[at] = found.left, found.looks, found.first_windows
        return PurseEntries(users, left, looks, first_windows)

    def _append(self, entries: PurseEntries) -> None:
        """Joins what has at most twice the length, so that there are few parts, and each entry is seldom joined."""
        while self._changed and len(self._changed[-1]) <= 2 * len(entries):
            entries = PurseEntries.merge([self._changed.pop(), entries])
        if len(entries):
            self._changed.append(entries)
