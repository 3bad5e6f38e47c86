"""What each user of a stream has left to pay for tests of its contributions with, and at what pace it spends that.

Guarantee: a user never pays more than one user budget for all its tests together, wherever its events fall and however
often a run is restored. What a window costs is checked before the tests, and what cannot be paid does not count. A
user's weights depend on its own events, on declared numbers and on what was published, and on nothing else. Condition:
windows come in order, each once. Unit: a test, of one item of one user in one window, with a positive weight. With
sliding windows an event counts in several windows, and each one is paid. Source: docs/guarantee.md, "Theorem of the
user budget".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dp_transforms.core.columns import WHOLE, WORDS, check_unpacked
from dp_transforms.core.contribution_counters import EntriesByUser
from dp_transforms.core.contributions import Contributions, keep_by_hash
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.tables import LEAST, MOST, ByUser, Column
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import FEWEST_BESIDE, SIZING_PART, SIZING_TESTS, most_of_sizing_test

Whole = npt.NDArray[np.int64]

MOST_TESTS = 2**32 - 1  # that one user budget pays for; times a number of windows they stay below 2^63
ENTRY_BYTES = 24
_PATIENCE = 16  # a user is expected to go on for at most so many times as long as it has been there
_DAY_SECONDS = 86_400


class BudgetPacing:
    """Chooses the weights of a window, in whole numbers: a rule of a user's own events and of declared numbers. It is
    public, and no privacy hangs on it: `UserBudgets` checks that each test can be paid before it counts.

    A share is what is left, divided by the tests of this window and those that are expected later: the user's tests a
    window so far, times the windows to come. So far is at least a day, or a sixteenth of the run if that is shorter.
    Nobody is expected to have more than sixteen times as many as so far: many users go soon, and what they leave buys
    nothing. A user gets the largest weight that costs no more than its share, and at least the smallest one of the
    list.
    """

    def __init__(self, plan: Plan, number: int = 0) -> None:
        """number: of the round."""
        prices = plan.prices_of_rounds[number]
        if prices.most_tests > MOST_TESTS:
            raise ValueError(
                f"a user budget must pay for at most {MOST_TESTS:,} contributions, got {prices.most_tests:,}. Make a"
                " plan with a smaller most_contributions."
            )
        self._listed = prices.listed
        self._horizon = plan.schedule.horizon
        self._most_of_sizing = 0 if plan.rounds is None else most_of_sizing_test(plan.rounds)
        a_day = -(-_DAY_SECONDS // plan.schedule.slide_seconds)
        self._least_seen = min(a_day, max(1, self._horizon // _PATIENCE))

    def choose(
        self, tests: Whole, left: Whole, tests_before: Whole, first_windows: Whole, window: int
    ) -> tuple[Whole, Whole, Whole]:
        """tests: int64[u, 1], of each user in this window, at least 1; in the last round int64[u, 2], with the sizing
        tests of contributions that are named already, together at least 1. left: units in its budget. tests_before:
        paid in the windows before; in the last round in parts of `SIZING_TESTS`. first_windows: where it paid its first
        test; this one if it has paid none. All int64[u]. window: the last one of those that are paid together.

        Returns the weights, what one test costs, and how many are paid; the other ones do not count. All as tests.
        """
        parts = in_parts(tests)
        share = left // self._spread(parts, left, tests_before, first_windows, window)
        amounts = share[:, None] if tests.shape[1] == 1 else self._with_sizing(share * parts, *tests.T)
        weights, units = self._listed.largest(np.maximum(amounts, self._listed.units[0]))
        payable = np.empty_like(tests)
        for kind in range(tests.shape[1]):
            payable[:, kind] = np.minimum(tests[:, kind], left // units[:, kind])
            left = left - payable[:, kind] * units[:, kind]
        return weights, units, payable

    def _spread(self, parts: Whole, left: Whole, parts_before: Whole, first_windows: Whole, window: int) -> Whole:
        """Over how many tests what is left is spread, at least 1."""
        windows_left = self._horizon - 1 - window
        windows_so_far = np.maximum(window - first_windows + 1, self._least_seen)
        # More tests than a user budget can pay for change nothing, and would not fit into 63 bits.
        parts_so_far = np.minimum(parts_before + parts, MOST_TESTS)
        expected = parts_so_far * windows_left // (windows_so_far + windows_left // _PATIENCE)
        # If there are more tests than units, the share is 0, however many more.
        spread: Whole = np.minimum(expected, left) + parts
        return spread

    def _with_sizing(self, paid: Whole, tests: Whole, sizing: Whole) -> Whole:
        """What one test and one sizing test may cost, of units that are paid for all of them. Sizing tests get all if
        there are no others."""
        fewest: Whole = np.where(tests > 0, np.maximum(FEWEST_BESIDE, sizing * SIZING_PART), np.maximum(sizing, 1))
        of_sizing: Whole = np.minimum(paid // fewest, self._most_of_sizing)
        return np.stack([(paid - of_sizing * sizing) // np.maximum(tests, 1), of_sizing], axis=1)


def in_parts(tests: Whole) -> Whole:
    """How many tests are counted for each user; with sizing tests, of which `SIZING_TESTS` count as one, in parts.
    tests: int64[u, 1] or int64[u, 2]."""
    parts: Whole = tests[:, 0] if tests.shape[1] == 1 else tests[:, 0] * SIZING_TESTS + tests[:, 1]
    return parts


@dataclasses.dataclass(frozen=True, eq=False)
class BudgetEntries(ByUser):
    """What u users have left, 24 bytes each.

    `merge` keeps the newest entry of each user: the one with the least left. A test costs at least one unit, so from
    entry to entry less is left, and tests rise.

    users: uint64[u], distinct keyed hashes, ascending. left: int64[u], units, at least 0. tests: uint32[u], how many
    were paid; in the last of several rounds in parts of `SIZING_TESTS`. first_windows: uint32[u], the window of
    the first one.
    """

    users: npt.NDArray[np.uint64]
    left: npt.NDArray[np.int64]
    tests: npt.NDArray[np.uint32]
    first_windows: npt.NDArray[np.uint32]

    SCHEMA: ClassVar = {
        "users": Column(),
        "left": Column(WHOLE, join=LEAST),
        "tests": Column(WORDS, join=MOST),
        "first_windows": Column(WORDS, join=LEAST),
    }

    def check(self) -> None:
        check_unpacked(bool((self.left >= 0).all()))


class UserBudgets(EntriesByUser[BudgetEntries]):
    """What is left to all users that ever paid for a test; all others have a full user budget."""

    def __init__(
        self,
        plan: Plan,
        keys: StreamKeys,
        stored: Iterable[BudgetEntries] = (),
        first: int | None = None,
        number: int = 0,
    ) -> None:
        """stored: before the window ``first``. number: of the round, which has its own budget. Raises ValueError for
        entries that no run of this plan can have made: with more than that, or paid in that window or later."""
        super().__init__(BudgetEntries, stored)
        self._full, self._keys = plan.units_of_rounds[number], keys
        for entries in self._stored:
            check_unpacked(bool((entries.left <= self._full).all()))
            check_unpacked(first is None or bool((entries.first_windows < first).all()))
        self._pacing = BudgetPacing(plan, number)

    def spend(
        self, contributions: Contributions, window: int, end: int | None = None, *, with_sizing: bool = False
    ) -> Whole:
        """Pays for the tests of a window. ``contributions`` must contain all of its users in it. end: the windows
        ``window .. end - 1`` are paid together. with_sizing: in the last round, with sizing tests of what is named
        already, which are in the second slots of ``contributions`` (`Contributions.with_two_slots`).

        Returns the weight of each contribution, 0 for one that cannot be paid.
        Raises ValueError for contributions of other windows, and for a window before the first one that one of these
        users has paid.
        """
        end = window + 1 if end is None else end
        if ((contributions.windows < window) | (contributions.windows >= end)).any():
            raise ValueError(f"all contributions must lie in the windows {window} .. {end - 1}.")
        kinds = 2 if with_sizing else 1
        tests, users = contributions.counts.reshape(-1, kinds), contributions.users[::kinds]
        left, before, firsts = self._before(users, window)
        if (firsts > window).any():
            raise ValueError(f"window {window} cannot be paid: a later window was paid before.")
        weights, units, payable = self._pacing.choose(tests, left, before, firsts, end - 1)
        left, paid = left - (payable * units).sum(axis=1), np.flatnonzero(payable.any(axis=1))
        columns = (before + in_parts(payable))[paid].astype(np.uint32), firsts[paid].astype(np.uint32)
        self.add(BudgetEntries(users[paid], left[paid], *columns))
        kept = keep_by_hash(contributions, payable.reshape(-1), self._keys)
        return np.asarray(weights.reshape(-1)[contributions.codes] * kept)

    def _before(self, users: npt.NDArray[np.uint64], window: int) -> tuple[Whole, Whole, Whole]:
        """Of each user what is left, how many tests it has paid, and its first window; int64[u]."""
        found = self.of_users(users)
        at = np.searchsorted(users, found.users)
        left, tests, firsts = (np.full(len(users), value) for value in (self._full, 0, window))
        left[at], tests[at], firsts[at] = found.left, found.tests, found.first_windows
        return left, tests, firsts
