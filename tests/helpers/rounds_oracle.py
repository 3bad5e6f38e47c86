"""An oracle of looks in rounds: dicts, loops and plain integers, written from the design, not the product.

It shares with the product the keyed functions of `StreamKeys` and the exact table of tails of the noise. Blocks,
purses, who is drawn for, thresholds, levels and sizes are its own. In each round it visits every window and, in it,
every item that was named in its block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import numpy as np

from dp_transforms.audit.trial_plan import TrialPlan
from dp_transforms.mechanisms.randomness import LookUniforms, StreamKeys
from tests.helpers.naming_oracle import Named, NoiseLaw, look_place
from tests.helpers.oracle import Event, hash_all, integer_of, items_by_window_and_user
from tests.helpers.pace_oracle import Wallet

_ONE = 1 << 128
_WORD = 1 << 64

Place = tuple[int, str]  # a block or a window, and an item


class RoundsOracle:
    """drawn: for how many pairs each later round drew. wallets: of each round and user, after it all. blocks: what was
    named in each, by its first window, and its last window."""

    def __init__(self, log: Iterable[Event], settings: TrialPlan, keys: StreamKeys) -> None:
        self._settings = settings
        self._keys = keys
        self._law = NoiseLaw(settings.looks.noise)
        self._held: dict[str, set[Place]] = {}
        for window, users in items_by_window_and_user(log, settings).items():
            for user, items in users.items():
                self._held.setdefault(user, set()).update((window, item) for item in items)
        self._items = hash_all(keys.hash_items, {item for of_user in self._held.values() for _, item in of_user})
        self._users = hash_all(keys.hash_users, set(self._held))
        self.drawn: list[int] = []
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
            named = self._round(number, candidates)
            candidates -= {(entry.window, entry.item) for entry in named}
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
        weights = self._weights(0, held)
        noise = self._noise(weights, self._keys.block_uniforms())
        named = self._named(0, weights, noise, self._settings.threshold, self._likely_noise(0, 0))
        lasts = {self.block_of(window): window for window in self._windows}
        self.blocks += [(entry, lasts[entry.window]) for entry in named]
        return {(entry.window, entry.item) for entry in named}

    def _round(self, number: int, candidates: set[Place]) -> list[Named]:
        weights = self._weights(number, {user: pairs & candidates for user, pairs in self._held.items()})
        cells = {at: weights.get(at, {}) for at in candidates}
        noise = self._noise(cells, self._keys.round_uniforms(number))
        threshold, likely = self._threshold(len(candidates)), self._likely_noise(number, len(candidates))
        return self._named(number, cells, noise, threshold, likely)

    def _named(
        self, number: int, cells: dict[Place, dict[str, int]], noise: dict[Place, int], threshold: int, likely: int
    ) -> list[Named]:
        spacing, units = self._settings.looks.spacing, self._settings.rounds.units
        largest, of_all = self._largest(units[number]), max(map(self._largest, units[1:]))
        found = []
        for (window, item), of_users in cells.items():
            noisy = sum(of_users.values()) + noise[window, item]
            if noisy < threshold:
                continue
            boundary = max(b for b in range(threshold, noisy + 1, spacing))
            level = 1 + (boundary * of_all // largest - threshold) // spacing
            users = 0
            while Fraction(boundary - likely, largest) > users:
                users += 1
            found.append(Named(window, item, level, users if users >= 5 else 0, False, not of_users))
        return found

    def _weights(self, number: int, held: dict[str, set[Place]]) -> dict[Place, dict[str, int]]:
        """Each user spends on what it holds, all at once."""
        settings, windows = self._settings, self._windows
        found: dict[Place, dict[str, int]] = {}
        for user, places in held.items():
            if not places:
                continue
            fresh = Wallet(settings.rounds.units[number], windows[0])
            wallet = self.wallets.get((number, user), fresh)
            weight, looks = wallet.choose(len(places), windows[-1], settings)
            if looks:
                self.wallets[number, user] = wallet
            for place in sorted(places, key=lambda place: look_place(user, place, self._keys))[:looks]:
                found.setdefault(place, {})[user] = weight
        return found

    def _noise(self, cells: dict[Place, dict[str, int]], uniforms: LookUniforms) -> dict[Place, int]:
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

    def _likely_noise(self, number: int, drawn: int) -> int:
        purse = self._settings.rounds.units[number]
        looks, largest = self._settings.looks, self._largest(purse)
        payable = [
            (w, Fraction(purse, units)) for w, units in zip(looks.weights, looks.units, strict=True) if w <= largest
        ]
        rounds, horizon, windows = self._settings.rounds.units, self._settings.schedule.horizon, len(self._windows)
        most = Fraction(looks.size_error) / len(rounds) / (1 if windows == horizon or number == 0 else 2)
        drawn = math.ceil(Fraction(drawn * horizon, windows))

        def is_enough(z: int) -> bool:
            of_one = max(paid * self._law.tail(z + 1 + 4 * (largest - weight)) for weight, paid in payable)
            of_nobody = drawn * self._law.tail(z + 1 + 4 * largest)
            return self._settings.max_users * of_one + of_nobody <= most * _ONE

        return _smallest(is_enough)

    def _largest(self, purse: int) -> int:
        looks = self._settings.looks
        return max(weight for weight, units in zip(looks.weights, looks.units, strict=True) if units <= purse)


def _smallest(is_enough: Callable[[int], bool]) -> int:
    """The smallest positive number that is enough, where all larger ones are."""
    low, high = 0, 1
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
