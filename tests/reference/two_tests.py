"""A stream that tests each contribution twice: user by user, item by item (docs/proofs.md, "Two tests in a stream")."""

from __future__ import annotations

from collections.abc import Iterable

from dp_transforms.core.randomness import ItemUniforms, StreamKeys
from tests.helpers.trial_plan import TrialPlan
from tests.reference.budgets import Wallet, those_paid
from tests.reference.contributions import Draws, Named, users_of
from tests.reference.log import Event, Held, items_by_window_and_user, tails_of

Added = dict[str, dict[str, int]]  # {item: {user: weight > 0}}


class TwoTestsOracle:
    def __init__(self, log: Iterable[Event] | Held, settings: TrialPlan, keys: StreamKeys) -> None:
        self._held = items_by_window_and_user(log, settings)
        self._settings, self._keys = settings, keys
        users = {user for of_window in self._held.values() for user in of_window}
        items = {item for of_window in self._held.values() for held in of_window.values() for item in held}
        self._draws = Draws(keys, users, items)
        self._law = tails_of(settings.contributions.noise)
        self.wallets: tuple[dict[str, Wallet], dict[str, Wallet]] = ({}, {})
        self._last_named: tuple[dict[str, int], dict[str, int]] = ({}, {})  # by first tests, and by any

    def names(self) -> list[Named]:
        found = []
        for window in range(self._settings.schedule.horizon):
            added = self._spend(0, window, self._held.get(window, {}))
            first, undecided = self._test(0, window, added, set())
            again: dict[str, list[str]] = {}
            for item in sorted(undecided):
                for user in added.get(item, {}):
                    again.setdefault(user, []).append(item)
            second, _ = self._test(1, window, self._spend(1, window, again), {named.item for named in first})
            for number, named in ((0, first), (1, first + second)):
                self._last_named[number].update((each.item, window) for each in named)
            found += sorted(first + second, key=lambda named: named.item)
        return found

    def _spend(self, number: int, window: int, held: dict[str, Iterable[str]]) -> Added:
        added: Added = {}
        for user, items in held.items():
            wallet = self.wallets[number].setdefault(user, Wallet(self._settings.second_test.units[number], window))
            places = [(window, item) for item in items]
            weight, payable = wallet.choose(len(places), window, self._settings)
            for _, item in those_paid(user, places, payable, self._keys):
                added.setdefault(item, {})[user] = weight
        return added

    def _test(self, number: int, window: int, added: Added, named_first: set[str]) -> tuple[list[Named], set[str]]:
        """What is named, and what is neither named nor left out."""
        settings, uniforms = self._settings, self._uniforms(number)
        last, spacing = self._last_named[number], settings.contributions.spacing
        followed = {item for item in last if window - last[item] <= settings.followed_for}
        named, undecided = [], set()
        for item in sorted(followed - named_first | set(added)):
            weights = added.get(item, {})
            threshold = settings.followed_threshold if item in followed else settings.threshold
            noisy = sum(weights.values()) + self._law.invert(self._draws.uniform(uniforms, window, item, weights))
            if noisy >= threshold:
                named.append(self._named(number, window, item, noisy, threshold, item in followed, not weights))
            elif noisy >= threshold - spacing:
                undecided.add(item)
        return named, undecided

    def _uniforms(self, number: int) -> ItemUniforms:
        return self._keys.round_uniforms(1) if number else self._keys.window_uniforms()

    def _named(
        self, number: int, window: int, item: str, noisy: int, threshold: int, was_known: bool, nobody: bool
    ) -> Named:
        """Levels of first tests count what users would add in second ones."""
        settings, largest = self._settings, self._settings.largest_in_rounds
        spacing, boundary = settings.contributions.spacing, threshold
        while boundary + spacing <= noisy:
            boundary += spacing
        level = 1 + max(0, (boundary * max(largest) // largest[number] - threshold) // spacing)
        users = users_of(boundary, settings.terms_of_tests[number].likely_noise, largest[number])
        return Named(window, item, level, users, was_known, nobody)
