"""An oracle of looks in rounds: dicts, loops and plain integers, written from the design, not the product.

It shares with the product the keyed functions of `StreamKeys` and the exact table of tails of the noise. Blocks,
purses, who is drawn for, thresholds, levels and sizes are its own. In each round it visits every window and, in it,
every item that was named in its block.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import numpy as np

from dp_transforms.core.randomness import ItemUniforms, StreamKeys
from tests.helpers.naming_oracle import Named, NoiseLaw, look_place
from tests.helpers.oracle import Event, hash_all, integer_of, items_by_window_and_user
from tests.helpers.pace_oracle import Wallet
from tests.helpers.trial_plan import TrialPlan

_ONE = 1 << 128
_WORD = 1 << 64

Place = tuple[int, str]  # a block or a window, and an item


class RoundsOracle:
    """drawn: for how many pairs each later round drew. left_out: how many were, and were held. wallets: of each round
    and user, after it all. blocks: what was named in each, by its first window, and its last window. shown_more: how
    many second looks gave a larger size."""

    def __init__(self, log: Iterable[Event], settings: TrialPlan, keys: StreamKeys) -> None:
        self._settings = settings
        self._keys = keys
        self._law = NoiseLaw(settings.contributions.noise)
        self._likely_noise = functools.cache(self._likely_noise)  # type: ignore[method-assign]
        self._held: dict[str, set[Place]] = {}
        for window, users in items_by_window_and_user(log, settings).items():
            for user, items in users.items():
                self._held.setdefault(user, set()).update((window, item) for item in items)
        self._items = hash_all(keys.hash_items, {item for of_user in self._held.values() for _, item in of_user})
        self._users = hash_all(keys.hash_users, set(self._held))
        self.drawn: list[int] = []
        self.shown_more = self.left_out = 0
        self.blocks: list[tuple[Named, int]] = []
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
        candidates = {(window, item) for window in windows for item in self._items}
        candidates = {pair for pair in candidates if (self.block_of(pair[0]), pair[1]) in in_blocks}
        found: list[Named] = []
        for number in range(1, len(self._settings.rounds.units)):
            self.drawn.append(len(candidates))
            named, found, left_out = self._round(number, candidates, found)
            candidates -= {(entry.window, entry.item) for entry in named} | left_out
            found += named
        return found

    def block_of(self, window: int) -> int:
        """Its first window of the part: of those with their last second in the same block."""
        return next(other for other in self._windows if self._number_of(other) == self._number_of(window))

    def _number_of(self, window: int) -> int:
        schedule = self._settings.schedule
        last = schedule.window_start_micros(window) // 1_000_000 + schedule.window_seconds - 1
        return (last - schedule.start_seconds) // self._settings.rounds.block_seconds

    def _named_in_blocks(self) -> set[Place]:
        held = {
            user: {(self.block_of(window), item) for window, item in pairs if window in self._windows}
            for user, pairs in self._held.items()
        }
        weights = self._weights(0, held, set())
        noise = self._noise(weights, self._keys.block_uniforms())
        likely = self._likely_noise(self._settings.rounds.units[0], 0)
        named = self._named(0, weights, noise, self._settings.threshold, likely)
        lasts = {self.block_of(window): window for window in self._windows}
        self.blocks += [(entry, lasts[entry.window]) for entry in named]
        return {(entry.window, entry.item) for entry in named}

    def _round(
        self, number: int, candidates: set[Place], found: list[Named]
    ) -> tuple[list[Named], list[Named], set[Place]]:
        """What it names; what earlier rounds have found, in the last one with second looks; and what the one before
        that leaves out."""
        again = {(entry.window, entry.item) for entry in found} if number == self._last else set()
        drawn = candidates | again
        weights = self._weights(number, {user: pairs & drawn for user, pairs in self._held.items()}, again)
        cells = {at: weights.get(at, {}) for at in drawn}
        noise = self._noise(cells, self._keys.round_uniforms(number))
        likely = self._likely_noise_of(len(candidates), len(self._windows))
        new = {at: cells[at] for at in candidates}
        threshold = self._threshold(len(candidates))
        named = self._named(number, new, noise, threshold, likely)
        if number != self._last:
            least = threshold - self._settings.contributions.spacing
            noisy = {at: sum(of_users.values()) + noise[at] for at, of_users in new.items()}
            of_round, of_last = self._settings.rounds.units[number], self._settings.rounds.units[-1]
            leaves_out = number == self._last - 1 and 5 * of_round >= of_last
            left_out = {at for at, value in noisy.items() if leaves_out and value < least}
            self.left_out += sum(bool(new[at]) for at in left_out)
            return named, found, left_out
        return named, [self._sized(entry, cells, noise, len(found), len(self._windows)) for entry in found], set()

    @property
    def _last(self) -> int:
        return len(self._settings.rounds.units) - 1

    def _sized(
        self, entry: Named, cells: dict[Place, dict[str, int]], noise: dict[Place, int], drawn: int, windows: int
    ) -> Named:
        """By a second look, if that shows more."""
        at = entry.window, entry.item
        likely, largest = self._likely_noise_of(drawn, windows), self._largest(self._settings.rounds.units[-1] // 64)
        noisy, threshold = sum(cells[at].values()) + noise[at], likely + 4 * largest + 1
        if noisy < threshold:
            return entry
        level, users = self._stated(largest, noisy, threshold, likely)
        self.shown_more += users > entry.at_least_users
        return entry._replace(level=max(level, entry.level), at_least_users=max(users, entry.at_least_users))

    def _size_error(self) -> Fraction:
        """Of each round, and of second looks."""
        return Fraction(self._settings.contributions.size_error) / (len(self._settings.units_of_rounds) + 1)

    def _likely_noise_of(self, drawn: int, windows: int) -> int:
        """Of pairs that are all drawn for, in so many windows: as if in all windows of the run."""
        in_run = math.ceil(Fraction(drawn * self._settings.schedule.horizon, windows))
        error = self._size_error() / max(1, in_run)
        return _smallest(lambda z: self._law.tail(z) <= error * _ONE) - 1

    def _named(
        self, number: int, cells: dict[Place, dict[str, int]], noise: dict[Place, int], threshold: int, likely: int
    ) -> list[Named]:
        found = []
        for (window, item), of_users in cells.items():
            noisy = sum(of_users.values()) + noise[window, item]
            if noisy >= threshold:
                largest = self._largest(self._settings.units_of_rounds[number])
                level, users = self._stated(largest, noisy, threshold, likely)
                found.append(Named(window, item, level, users, False, not of_users))
        return found

    def _stated(self, largest: int, noisy: int, threshold: int, likely: int) -> tuple[int, int]:
        settings, spacing = self._settings, self._settings.contributions.spacing
        of_all = max(map(self._largest, settings.units_of_rounds[1:]))
        boundary = max(b for b in range(threshold, noisy + 1, spacing))
        users = 0
        while Fraction(boundary - likely, largest) > users:
            users += 1
        level = max(1, 1 + (boundary * of_all // largest - threshold) // spacing)
        return level, users if users >= 5 else 0

    def _weights(self, number: int, held: dict[str, set[Place]], again: set[Place]) -> dict[Place, dict[str, int]]:
        """Each user spends on what it holds, all at once. again: what is looked at for the second time."""
        settings, windows = self._settings, self._windows
        found: dict[Place, dict[str, int]] = {}
        for user, places in held.items():
            if not places:
                continue
            fresh = Wallet(settings.units_of_rounds[number], windows[0])
            wallet = self.wallets.get((number, user), fresh)
            kinds = places - again, places & again
            if number == self._last:
                chosen = wallet.choose_with_second(*map(len, kinds), windows[-1], settings)
            else:
                chosen = wallet.choose(len(places), windows[-1], settings), (0, 0)
            if any(looks for _, looks in chosen):
                self.wallets[number, user] = wallet
            for of_kind, (weight, looks) in zip(kinds, chosen, strict=True):
                for place in sorted(of_kind, key=lambda place: self._order(user, place))[:looks]:
                    found.setdefault(place, {})[user] = weight
        return found

    def _order(self, user: str, place: Place) -> int:
        """By which it is dropped."""
        return look_place(user, place, self._keys)

    def _noise(self, cells: dict[Place, dict[str, int]], uniforms: ItemUniforms) -> dict[Place, int]:
        found = {}
        for (at, item), of_users in cells.items():
            digest = 0
            for user, weight in of_users.items():
                users = np.array([self._users[user][0]], dtype=np.uint64)
                digest += integer_of(self._keys.widen_holders(users, np.array([weight]))[0])
            words = np.array([divmod(digest % _ONE, _WORD)], dtype=np.uint64)
            drawn = uniforms(np.array([at]), np.array([self._items[item]], dtype=np.uint64), words)
            found[at, item] = self._law.invert(integer_of(drawn[0]))
        return found

    def _threshold(self, drawn: int) -> int:
        in_run = Fraction(drawn * self._settings.schedule.horizon, len(self._windows))
        error = min(Fraction(1, 100), Fraction(self._settings.rounds.false_names) / max(1, math.ceil(in_run)))
        return _smallest(lambda threshold: self._law.tail(threshold) <= error * _ONE)

    def _likely_noise(self, purse: int, unheld: int) -> int:
        looks, largest, most = self._settings.contributions, self._largest(purse), self._size_error()
        payable = [
            (w, Fraction(purse, units)) for w, units in zip(looks.weights, looks.units, strict=True) if w <= largest
        ]

        def is_enough(z: int) -> bool:
            of_one = max(paid * self._law.tail(z + 1 + 4 * (largest - weight)) for weight, paid in payable)
            of_nobody = unheld * self._law.tail(z + 1 + 4 * largest)
            return self._settings.max_users * of_one + of_nobody <= most * _ONE

        return _smallest(is_enough)

    def _largest(self, purse: int) -> int:
        looks = self._settings.contributions
        return max(
            weight
            for weight, units in zip(looks.weights, looks.units, strict=True)
            if units <= max(purse, looks.units[0])
        )


def _smallest(is_enough: Callable[[int], bool]) -> int:
    """The smallest positive number that is enough, where all larger ones are."""
    low, high = 0, 1
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
