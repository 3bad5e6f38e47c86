"""What users pay for tests of their contributions, in a replay and in a stream: docs/guarantee.md, "Weights".

In a stream a user's weight is the largest whose price is at most what is left in its budget, divided by the tests of
this window and those expected later: the tests so far, times the windows left, by the windows since the user was first
seen, which are at least those of a day (of a sixteenth of the run, if that is shorter), and a sixteenth of the windows
left. All divisions round down. It is at least the smallest weight; what cannot be paid is dropped by keyed hash.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable
from fractions import Fraction

import numpy as np

from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.randomness import StreamKeys
from tests.helpers.trial_plan import TrialPlan
from tests.reference.log import Event, Held, hash_all, integer_of, items_by_window_and_user

_DAY_SECONDS = 24 * 60 * 60
_PATIENCE = 16

Place = tuple[int, str]  # a window, or the first one of a block, and an item
Weights = dict[Place, dict[str, int]]  # {user: weight > 0}


def replay_weights(log: Iterable[Event] | Held, settings: TrialPlan, keys: StreamKeys) -> Weights:
    """From all contributions of each user: the largest weight that its budget can pay in each of them."""
    held: dict[str, list[Place]] = {}
    for window, users in sorted(items_by_window_and_user(log, settings).items()):
        for user, items in users.items():
            held.setdefault(user, []).extend((window, item) for item in items)
    found: Weights = {}
    for user, places in held.items():
        tests = min(len(places), BUDGET_UNITS // settings.contributions.units[0])
        weight = max(w for w, units in prices_of(settings) if tests * units <= BUDGET_UNITS)
        for place in those_paid(user, places, tests, keys):
            found.setdefault(place, {})[user] = weight
    return found


def prices_of(settings: TrialPlan) -> list[tuple[int, int]]:
    """Weights, and what a test with each costs; both rise."""
    return list(zip(settings.contributions.weights, settings.contributions.units, strict=True))


def those_paid(user: str, places: Collection[Place], most: int, keys: StreamKeys) -> list[Place]:
    """So many contributions of a user, by their keyed order."""
    if len(places) <= most:
        return list(places)
    return sorted(places, key=lambda place: _in_order(user, place, keys))[:most]


@functools.lru_cache(maxsize=100_000)
def _in_order(user: str, place: Place, keys: StreamKeys) -> int:
    window, item = place
    hashes = np.array([_hash_of(keys.hash_items, item)], dtype=np.uint64)
    users = np.array([_hash_of(keys.hash_users, user)[0]], dtype=np.uint64)
    return integer_of(keys.payment_order()(users, np.array([window]), hashes)[0])


_hash_of = functools.lru_cache(maxsize=10_000)(lambda hasher, name: hash_all(hasher, {name})[name])


@dataclasses.dataclass
class Wallet:
    """Of one user: what is left, how many tests it has paid, and when it was first seen."""

    left: int
    first_window: int
    paid_tests: int = 0

    def choose(self, tests: int, window: int, settings: TrialPlan) -> tuple[int, int]:
        """The weight in this window, or in all up to it that are paid together, and how many tests are paid."""
        weight, units, payable = self.afford(tests, window, settings)
        self.left -= payable * units
        self.paid_tests += payable
        assert self.left >= 0
        return weight, payable

    def choose_with_sizing(
        self, tests: int, sizing: int, window: int, settings: TrialPlan
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """In the last round tests of what is named already count as a 100th each where the budget is cut. All of them
        cost a tenth of what is spent, and each a 150th, but nearly all if there are no others; each at most a 64th of
        what the round has in a full budget. What is not named comes first. ``paid_tests`` counts 100ths."""
        most = settings.rounds.units[-1] // 64
        parts = 100 * tests + sizing
        spent = self.left // self.spread(parts, window, settings) * parts
        if tests:
            again = min(most, spent // 150, spent // (10 * sizing) if sizing else spent)
            amounts = (spent - again * sizing) // tests, again
        else:
            amounts = 0, min(most, spent // sizing)
        found = []
        for asked, amount, each in zip((tests, sizing), amounts, (100, 1), strict=True):
            weight, units = _largest(amount, settings)
            paid = min(asked, self.left // units)
            self.left -= paid * units
            self.paid_tests += each * paid
            found.append((weight, paid))
        return found[0], found[1]

    def afford(self, tests: int, window: int, settings: TrialPlan) -> tuple[int, int, int]:
        weight, units = _largest(self.left // self.spread(tests, window, settings), settings)
        return weight, units, min(tests, self.left // units)

    def spread(self, tests: int, window: int, settings: TrialPlan) -> int:
        schedule = settings.schedule
        windows_left = schedule.horizon - 1 - window
        a_day = math.ceil(Fraction(_DAY_SECONDS, schedule.slide_seconds))
        seen_for = max(min(a_day, max(1, schedule.horizon // _PATIENCE)), window - self.first_window + 1)
        expected = (self.paid_tests + tests) * windows_left // (seen_for + windows_left // _PATIENCE)
        return expected + tests


def _largest(amount: int, settings: TrialPlan) -> tuple[int, int]:
    """The largest weight that costs at most this, and its price; at least the smallest one."""
    listed = prices_of(settings)
    return next(((weight, units) for weight, units in reversed(listed) if units <= amount), listed[0])


def stream_weights(
    log: Iterable[Event] | Held, settings: TrialPlan, keys: StreamKeys, wallets: dict[str, Wallet] | None = None
) -> Weights:
    """Window by window, user by user. wallets: to see what is left afterwards."""
    wallets = {} if wallets is None else wallets
    found: Weights = {}
    for window, users in sorted(items_by_window_and_user(log, settings).items()):
        for user, items in users.items():
            wallet = wallets.setdefault(user, Wallet(BUDGET_UNITS, window))
            weight, payable = wallet.choose(len(items), window, settings)
            for place in those_paid(user, [(window, item) for item in items], payable, keys):
                found.setdefault(place, {})[user] = weight
    return found
