"""Tests of contributions in rounds: each round visits every window and in it every item that was named in its block.

Blocks, budgets, who is drawn for, thresholds, levels and sizes are its own (docs/guarantee.md, "Rounds").
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction

from dp_transforms.core.randomness import ItemUniforms, StreamKeys
from tests.helpers.trial_plan import TrialPlan
from tests.reference.budgets import Place, Wallet, Weights, prices_of, those_paid
from tests.reference.contributions import Draws, Named, users_of
from tests.reference.log import ONE, Event, Held, items_by_window_and_user, tails_of


class RoundsOracle:
    """drawn: for how many contributions each later round drew. left_out: how many were, and were held. wallets: of each
    round and user, after it all. blocks: what was named in each of open items, by its first window; public_in_blocks:
    of public ones. shown_more: how many sizing tests gave a larger size."""

    def __init__(
        self, log: Iterable[Event] | Held, settings: TrialPlan, keys: StreamKeys, public: Collection[str] = ()
    ) -> None:
        self._settings, self._keys, self._rounds = settings, keys, settings.rounds
        self._in_round = [_with_prices_of(settings, number) for number in range(len(settings.rounds.units))]
        self._laws = [tails_of(of_round.contributions.noise) for of_round in self._in_round]
        self._likely_in_blocks = functools.cache(self._likely_in_blocks)  # type: ignore[method-assign]
        self._held: dict[str, set[Place]] = {}
        for window, users in items_by_window_and_user(log, settings).items():
            for user, items in users.items():
                self._held.setdefault(user, set()).update((window, item) for item in items)
        self._public = set(public)
        items = {item for places in self._held.values() for _, item in places}
        self._draws = Draws(keys, self._held, items | self._public)
        self._last = len(self._rounds.units) - 1
        self.drawn: list[int] = []
        self.shown_more = self.left_out = 0
        self.blocks: list[Named] = []
        self.public_in_blocks: set[Place] = set()
        self.wallets: dict[tuple[int, str], Wallet] = {}

    def names(self, ends: Sequence[int] = ()) -> list[Named]:
        """What is named in all windows, by window, then label. ends: where parts of the run end before its last one."""
        found, first = [], 0
        for end in (*ends, self._settings.schedule.horizon):
            found += self._of_part(range(first, end))
            first = end
        return sorted(found, key=lambda entry: (entry.window, entry.item))

    def _of_part(self, windows: range) -> list[Named]:
        self._windows = windows
        in_blocks = self._named_in_blocks()
        candidates = {(window, item) for window in windows for item in self._draws.items}
        candidates = {place for place in candidates if (self._block_of(place[0]), place[1]) in in_blocks}
        found: list[Named] = []
        for number in range(1, self._last + 1):
            self.drawn.append(len(candidates))
            named, found, left_out = self._round(number, candidates, found)
            candidates -= {(entry.window, entry.item) for entry in named} | left_out
            found += named
        return found

    def _block_of(self, window: int) -> int:
        """Its first window of the part: of those with their last second in the same block."""
        return next(other for other in self._windows if self._number_of(other) == self._number_of(window))

    def _number_of(self, window: int) -> int:
        schedule = self._settings.schedule
        last = schedule.window_start_micros(window) // 1_000_000 + schedule.window_seconds - 1
        return (last - schedule.start_seconds) // self._rounds.block_seconds

    def _named_in_blocks(self) -> set[Place]:
        held = {
            user: {(self._block_of(window), item) for window, item in places if window in self._windows}
            for user, places in self._held.items()
        }
        weights = self._weights(0, held, set())
        public = {(block, item) for block in {*map(self._block_of, self._windows)} for item in self._public}
        noisy = self._noisy(0, {place: {} for place in public} | weights, self._keys.block_uniforms())
        threshold, of_public = self._settings.threshold, self._threshold(0, len(public))
        of_open = {place: added for place, added in weights.items() if place not in public}
        named = self._named(0, of_open, noisy, threshold, self._likely_in_blocks(), threshold)
        self.blocks += named
        self.public_in_blocks |= (found := {place for place in public if noisy[place] >= of_public})
        return {(entry.window, entry.item) for entry in named} | found

    def _round(
        self, number: int, candidates: set[Place], found: list[Named]
    ) -> tuple[list[Named], list[Named], set[Place]]:
        """What it names; what earlier rounds have found, in the last one with sizing tests; and what the one before
        that leaves out."""
        again = {(entry.window, entry.item) for entry in found} if number == self._last else set()
        drawn = candidates | again
        weights = self._weights(number, {user: places & drawn for user, places in self._held.items()}, again)
        added = {place: weights.get(place, {}) for place in drawn}
        noisy = self._noisy(number, added, self._keys.round_uniforms(number))
        first, likely = self._threshold(number, len(candidates)), self._likely(number, len(candidates))
        threshold, least_users = first, self._settings.contributions.least_users
        if least_users is not None:
            largest = self._largest(number, self._rounds.units[number])
            threshold = max(first, _smallest(lambda noisy: users_of(noisy, likely, largest) >= least_users))
        new = {place: added[place] for place in candidates}
        named = self._named(number, new, noisy, threshold, likely, first)
        if number == self._last:
            return named, [self._sized(entry, noisy, len(found)) for entry in found], set()
        is_before_last = number == self._last - 1 and 5 * self._rounds.units[number] >= self._rounds.units[-1]
        least = threshold - self._in_round[number].contributions.spacing
        left_out = {place for place in candidates if is_before_last and noisy[place] < least}
        self.left_out += sum(bool(added[place]) for place in left_out)
        return named, found, left_out

    def _sized(self, entry: Named, noisy: dict[Place, int], drawn: int) -> Named:
        """By a sizing test, if that shows more."""
        likely, largest = self._likely(self._last, drawn), self._largest(self._last, self._rounds.units[-1] // 64)
        of_entry, threshold = noisy[entry.window, entry.item], likely + 4 * largest + 1
        if of_entry < threshold:
            return entry
        level, users = self._stated(self._last, largest, of_entry, threshold, likely, threshold)
        self.shown_more += users > entry.at_least_users
        return entry._replace(level=max(level, entry.level), at_least_users=max(users, entry.at_least_users))

    def _named(
        self, number: int, added: Weights, noisy: dict[Place, int], threshold: int, likely: int, first: int
    ) -> list[Named]:
        """first: the threshold without least users, from which levels are counted."""
        found = []
        for place, of_users in added.items():
            if noisy[place] >= threshold:
                largest = self._largest(number, self._rounds.units[number])
                level, users = self._stated(number, largest, noisy[place], threshold, likely, first)
                found.append(Named(*place, level, users, False, not of_users))
        return found

    def _stated(
        self, number: int, largest: int, noisy: int, threshold: int, likely: int, first: int
    ) -> tuple[int, int]:
        spacing, of_last = (self._in_round[each].contributions.spacing for each in (number, self._last))
        of_all = max(self._largest(each, self._rounds.units[each]) for each in range(1, self._last + 1))
        boundary = max(range(threshold, noisy + 1, spacing))
        level = max(1, 1 + (boundary * of_all // largest - first) // of_last)
        return level, users_of(boundary, likely, largest)

    def _weights(self, number: int, held: dict[str, set[Place]], again: set[Place]) -> Weights:
        """Each user spends on what it holds, all at once. again: what is tested for its size."""
        settings, windows = self._in_round[number], self._windows
        found: Weights = {}
        for user, places in held.items():
            if not places:
                continue
            wallet = self.wallets.get((number, user), Wallet(self._rounds.units[number], windows[0]))
            kinds = places - again, places & again
            if number == self._last:
                chosen = wallet.choose_with_sizing(*map(len, kinds), windows[-1], settings)
            else:
                chosen = wallet.choose(len(places), windows[-1], settings), (0, 0)
            if any(tests for _, tests in chosen):
                self.wallets[number, user] = wallet
            for of_kind, (weight, tests) in zip(kinds, chosen, strict=True):
                for place in those_paid(user, of_kind, tests, self._keys):
                    found.setdefault(place, {})[user] = weight
        return found

    def _noisy(self, number: int, added: Weights, uniforms: ItemUniforms) -> dict[Place, int]:
        return {
            place: sum(of_users.values()) + self._laws[number].invert(self._draws.uniform(uniforms, *place, of_users))
            for place, of_users in added.items()
        }

    def _size_error(self) -> Fraction:
        """Of each round, and of sizing tests."""
        return Fraction(self._settings.contributions.size_error) / (len(self._rounds.units) + 1)

    def _in_run(self, drawn: int) -> int:
        """As if in all windows of the run as many were drawn for as in those of this part."""
        return max(1, math.ceil(Fraction(drawn * self._settings.schedule.horizon, len(self._windows))))

    def _likely(self, number: int, drawn: int) -> int:
        """The noise that is likely, where all of so many are drawn for."""
        error = self._size_error() / self._in_run(drawn)
        return _smallest(lambda z: self._laws[number].tail(z) <= error * ONE) - 1

    def _threshold(self, number: int, drawn: int) -> int:
        error = min(Fraction(1, 100), Fraction(self._rounds.false_names) / self._in_run(drawn))
        return _smallest(lambda threshold: self._laws[number].tail(threshold) <= error * ONE)

    def _likely_in_blocks(self) -> int:
        """Nobody knows how many items are held, so tests pay for wrong sizes: of users who add the same weight."""
        units, most = self._rounds.units[0], self._size_error()
        largest = self._largest(0, units)
        payable = [(weight, Fraction(units, price)) for weight, price in prices_of(self._settings) if weight <= largest]

        def is_enough(z: int) -> bool:
            wrong = max(paid * self._laws[0].tail(z + 1 + 4 * (largest - weight)) for weight, paid in payable)
            return self._settings.max_users * wrong <= most * ONE

        return _smallest(is_enough)

    def _largest(self, number: int, units: int) -> int:
        listed = prices_of(self._in_round[number])
        return max(weight for weight, price in listed if price <= max(units, listed[0][1]))


def _with_prices_of(settings: TrialPlan, number: int) -> TrialPlan:
    """As if this round were the only one."""
    if not number or settings.rounds.later is None:
        return settings
    tests = vars(settings.rounds.later[number - 1])
    return dataclasses.replace(settings, contributions=dataclasses.replace(settings.contributions, **tests))


def _smallest(is_enough: Callable[[int], bool]) -> int:
    """The smallest positive number that is enough, where all larger ones are."""
    low, high = 0, 1
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
