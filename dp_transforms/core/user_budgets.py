"""What each user of a stream has left to pay for looks with.

Guarantee: a user never pays more than one purse for all its looks together, wherever its events fall and however often
a run is restored. What a window costs is checked before the looks, and what cannot be paid does not count. A user's
weights depend on its own events and on declared numbers, and on nothing else. Condition: windows
come in order, each once. Unit: a look, one item of one user in one window with a positive weight. With sliding windows
an event counts in several windows, and each one is paid. Source: docs/guarantee.md, "Theorem of the user budget";
`pace` chooses the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.priced_weights import BUDGET_UNITS, PricedWeights
from dp_transforms.core.contributions import Contributions, keep_by_hash
from dp_transforms.core.equal_rows import places_of
from dp_transforms.core.messages import WHOLE, WORDS, Packed, check_unpacked
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.tables import LEAST, MOST, ByUser, Column
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import FEWEST_BESIDE, SIZING_PART, SIZING_TESTS, most_of_sizing_test

# The weights of a stream: each user spends its purse at its own pace, without knowing its future.
#
# A rule of a user's own events and of declared numbers. It is public, and no privacy hangs on it: `purses` checks that
# each look can be paid before it counts.

_PATIENCE = 16  # a user is expected to go on for at most so many times as long as it has been there
MOST_LOOKS = 2**32 - 1  # that one purse pays for; times a number of windows they stay below 2^63
_DAY_SECONDS = 86_400


class Chosen(NamedTuple):
    """For u users. weights, units: of each of their looks in a window, and what one costs. payable: how many of their
    looks are paid; the other ones do not count. All int64[u]."""

    weights: Whole
    units: Whole
    payable: Whole


class Pace:
    """Chooses the weights of a window, in whole numbers."""

    def __init__(self, plan: Plan) -> None:
        looks = plan.paid_contributions
        if looks.most_looks > MOST_LOOKS:
            raise ValueError(
                f"a user budget must pay for at most {MOST_LOOKS:,} contributions, got {looks.most_looks:,}. Make a"
                " plan with a smaller most_contributions."
            )
        self._listed = looks.listed
        self._horizon = plan.schedule.horizon
        self._most_of_second = 0 if plan.rounds is None else most_of_sizing_test(plan.rounds)
        a_day = -(-_DAY_SECONDS // plan.schedule.slide_seconds)
        self._least_seen = min(a_day, max(1, self._horizon // _PATIENCE))

    def choose(self, looks: Whole, left: Whole, looks_before: Whole, first_windows: Whole, window: int) -> Chosen:
        """looks: of each user in this window, at least 1. left: units in its purse. looks_before: paid in the windows
        before. first_windows: where it paid its first look; this one if it has paid none. All int64[u].
        window: the last one of those that are paid together.

        A purse is spread over the looks of this window and those that are expected later: in each window as many as in
        those so far, this one included, counted over at least a day, or a sixteenth of the run if that is
        shorter; in the last window none. But nobody is expected to have more than sixteen times as many as so far:
        many users go soon, and what they leave buys nothing. A user gets the largest weight that costs no more than its
        share, and at least the smallest one of the list.
        """
        spread = self._spread(looks, left, looks_before, first_windows, window)
        weights, units = _largest_or_smallest(self._listed, left // spread)
        return Chosen(weights, units, np.minimum(looks, left // units))

    def choose_with_second(
        self, looks: Whole, second: Whole, left: Whole, parts_before: Whole, first_windows: Whole, window: int
    ) -> tuple[Chosen, Chosen]:
        """The same in the last round of looks, in which a user has second looks, too, at pairs that are named already.
        What is spent now is split by `amounts_with_second`; a second look costs at most `most_of_sizing_test`.

        looks, second: of each user in this window, together at least 1. parts_before: looks that were paid before, in
        parts of `SIZING_TESTS`. Other arguments as of `choose`.
        """
        spread = self._spread(looks * SIZING_TESTS + second, left, parts_before, first_windows, window)
        paid_now = left // spread * (looks * SIZING_TESTS + second)
        amounts, of_second = amounts_with_second(paid_now, looks, second, self._most_of_second)
        weights, units = _largest_or_smallest(self._listed, amounts)
        payable = np.minimum(looks, left // units)
        again, units_again = _largest_or_smallest(self._listed, of_second)
        payable_again = np.minimum(second, (left - payable * units) // units_again)
        return Chosen(weights, units, payable), Chosen(again, units_again, payable_again)

    def _spread(self, looks: Whole, left: Whole, looks_before: Whole, first_windows: Whole, window: int) -> Whole:
        """Over how many looks what is left is spread, at least 1."""
        windows_left = self._horizon - 1 - window
        windows_so_far = np.maximum(window - first_windows + 1, self._least_seen)
        # More looks than a purse can pay for change nothing, and would not fit into 63 bits.
        looks_so_far = np.minimum(looks_before + looks, MOST_LOOKS)
        expected = looks_so_far * windows_left // (windows_so_far + windows_left // _PATIENCE)
        # If there are more looks than units, the share is 0, however many more.
        spread: Whole = np.minimum(expected, left) + looks
        return spread


def amounts_with_second(paid: Whole, looks: Whole, second: Whole, most_of_second: int) -> tuple[Whole, Whole]:
    """What one look and one second look may cost, of units that are paid for all of them. Second looks get all if there
    are no others."""
    fewest: Whole = np.where(looks > 0, np.maximum(FEWEST_BESIDE, second * SIZING_PART), np.maximum(second, 1))
    of_second: Whole = np.minimum(paid // fewest, most_of_second)
    of_look: Whole = (paid - of_second * second) // np.maximum(looks, 1)
    return of_look, of_second


def _largest_or_smallest(listed: PricedWeights, shares: Whole) -> tuple[Whole, Whole]:
    """The largest weights that cost at most these shares, and at least the smallest one; and what they cost."""
    return listed.largest(np.maximum(shares, listed.units[0]))


Whole = npt.NDArray[np.int64]

ENTRY_BYTES = 24
_SPARE_CELLS = 64


@dataclasses.dataclass(frozen=True, eq=False)
class BudgetEntries(ByUser):
    """The purses of u users, 24 bytes each.

    `merge` keeps the newest entry of each user: the one with the least left. A look costs at least one unit, so from
    entry to entry less is left, and looks rise. So an engine need not keep the order of what is stored, and an entry
    that is stored twice is not paid twice, as charges that add up would be.

    users: uint64[u], distinct keyed hashes, ascending. left: int64[u], units, at least 0. looks: uint32[u], how many
    were paid; in the last of several rounds in parts of `SIZING_TESTS`. first_windows: uint32[u], the window of the
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
    ROWS_OF_CHUNK = 400_000

    def check(self) -> None:
        check_unpacked(bool((self.left >= 0).all()))


class UserBudgets:
    """The purses of all users that ever paid for a look; all others are full. They are kept as long as the run lasts.

    Stored as cells, byte strings under 10 MB. A user may be in several cells, and its newest entry counts
    (`BudgetEntries.merge`). So what a window changes is appended, without rewriting what is there. A window looks up
    its
    own users in each cell; the cells are put together only when they are rewritten.
    """

    def __init__(self, plan: Plan, keys: StreamKeys, cells: Iterable[Packed] = (), units: int = BUDGET_UNITS) -> None:
        """cells: what was stored so far, in any order. units: in a full purse, less in that of a round. Raises
        ValueError for other bytes."""
        self._full = units
        self._pace = Pace(plan)
        self._keys = keys
        self._stored = [BudgetEntries.from_bytes(cell) for cell in cells]
        self._changed: list[BudgetEntries] = []  # each has more than twice as many entries as the next one

    @classmethod
    def of_entries(
        cls, plan: Plan, keys: StreamKeys, entries: BudgetEntries, window: int, units: int = BUDGET_UNITS
    ) -> UserBudgets:
        """The purses of some users before this window, of a state that was stored. Raises ValueError for entries that
        no run of this plan can have made: with more than a purse, or paid in this window or later."""
        check_unpacked(bool((entries.left <= units).all() and (entries.first_windows < window).all()))
        purses = cls(plan, keys, units=units)
        purses._stored = [entries] if len(entries) else []
        return purses

    def spend(self, pairs: Contributions, window: int, end: int | None = None) -> Whole:
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

    def spend_with_sizing(self, pairs: Contributions, window: int, end: int) -> Whole:
        """The last round of looks in the windows ``window .. end - 1``, with second looks at what is named already:
        those pairs are kept `Contributions.split_by_mask`. Returns their weights, as `spend`."""
        (looks, again), users = pairs.counts.reshape(-1, 2).T, pairs.users[::2]
        before = self._before(pairs, users, window, end)
        parts_before, first_windows = before.looks.astype(np.int64), before.first_windows.astype(np.int64)
        first, second = self._pace.choose_with_second(looks, again, before.left, parts_before, first_windows, end - 1)
        left = before.left - first.payable * first.units - second.payable * second.units
        self._pay(before, left, first.payable * SIZING_TESTS + second.payable)
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
        return BudgetEntries.merge(self._changed).to_chunks()

    def rewritten_cells(self) -> list[bytes]:
        """All purses in as few cells as possible, to replace those that were read. `entries` is then that of users."""
        self._stored, self._changed = [BudgetEntries.merge([*self._stored, *self._changed])], []
        return self._stored[0].to_chunks()

    def is_scattered(self, entries_when_rewritten: int) -> bool:
        """Whether it is time to rewrite all cells. This costs no more than a bounded share of what is read.

        entries_when_rewritten: how many entries there were after the last time.
        """
        of_cell = BudgetEntries.ROWS_OF_CHUNK
        is_large = self.entries > 2 * entries_when_rewritten + of_cell
        return is_large or len(self._stored) > _SPARE_CELLS + 2 * (-(-entries_when_rewritten // of_cell))

    def _before(self, pairs: Contributions, users: npt.NDArray[np.uint64], window: int, end: int) -> BudgetEntries:
        if ((pairs.windows < window) | (pairs.windows >= end)).any():
            raise ValueError(
                f"all pairs must lie in window {window}" + (f" .. {end - 1}." if end > window + 1 else ".")
            )
        before = self._entries_of(users, window)
        if (before.first_windows > window).any():
            raise ValueError(f"window {window} cannot be paid: a later window was paid before.")
        return before

    def _pay(self, before: BudgetEntries, left: Whole, looks: Whole) -> None:
        """left: then, in the purses before. looks: paid now."""
        paid = np.flatnonzero(looks)
        self._append(
            BudgetEntries(
                before.users[paid],
                left[paid],
                (before.looks + looks)[paid].astype(np.uint32),
                before.first_windows[paid],
            )
        )

    def _entries_of(self, users: npt.NDArray[np.uint64], window: int) -> BudgetEntries:
        """The newest entries of these users, and full purses for those that have none. users: uint64[u], ascending."""
        stored = (*self._stored, *self._changed)
        found = BudgetEntries.merge([entries.select(places_of(entries.users, users)) for entries in stored])
        at = np.searchsorted(users, found.users)
        left = np.full(len(users), self._full, dtype=np.int64)
        looks = np.zeros(len(users), dtype=np.uint32)
        first_windows = np.full(len(users), window, dtype=np.uint32)
        left[at], looks[at], first_windows[at] = found.left, found.looks, found.first_windows
        return BudgetEntries(users, left, looks, first_windows)

    def _append(self, entries: BudgetEntries) -> None:
        """Joins what has at most twice the length, so that there are few parts, and each entry is seldom joined."""
        while self._changed and len(self._changed[-1]) <= 2 * len(entries):
            entries = BudgetEntries.merge([self._changed.pop(), entries])
        if len(entries):
            self._changed.append(entries)
