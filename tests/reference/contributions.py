"""Where users pay for tests of their contributions, in one round: it visits every window and in it every item that
anybody adds to, that is followed, or that is public."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dp_transforms.core.randomness import ItemUniforms, StreamKeys
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from tests.helpers.trial_plan import TrialPlan
from tests.reference.budgets import Weights
from tests.reference.hits import report_of
from tests.reference.log import ONE, empty_items, hash_all, integer_of, tails_of, words_of


class Named(NamedTuple):
    """One named item. was_known, nobody: not published; they tell a test that something happened."""

    window: int
    item: str
    level: int
    at_least_users: int
    was_known: bool
    nobody: bool

    @property
    def published(self) -> tuple[int, str, int, int]:
        return self.window, self.item, self.level, self.at_least_users


class Draws:
    """The uniform of each item and window, which follows who adds how much to it."""

    def __init__(self, keys: StreamKeys, users: Iterable[str], items: Iterable[str]) -> None:
        self._keys = keys
        self._users = hash_all(keys.hash_users, users)
        self.items = hash_all(keys.hash_items, items)
        self._member = functools.cache(self._member)  # type: ignore[method-assign]

    def uniform(self, uniforms: ItemUniforms, window: int, item: str, added: Mapping[str, int]) -> int:
        digest = sum(self._member(user, weight) for user, weight in added.items())
        hashes = np.array([self.items[item]], dtype=np.uint64)
        return integer_of(uniforms(np.array([window]), hashes, words_of(digest))[0])

    def _member(self, user: str, weight: int) -> int:
        users = np.array([self._users[user][0]], dtype=np.uint64)
        return integer_of(self._keys.widen_holders(users, np.array([weight]))[0])


def oracle_names(weights: Weights, settings: TrialPlan, keys: StreamKeys, public: Collection[str] = ()) -> list[Named]:
    """What is named in all windows, if users add these weights; by window, then label."""
    assert settings.public_item_count == len(set(public))
    tests, low = settings.contributions, settings.followed_threshold
    everybody = {user for added in weights.values() for user in added}
    draws = Draws(keys, everybody, {item for _, item in weights} | set(public))
    law, uniforms = tails_of(tests.noise), keys.window_uniforms()
    last_named: dict[str, int] = {}
    found: list[Named] = []
    for window in range(settings.schedule.horizon):
        known = {item for item, last in last_named.items() if window - last <= settings.followed_for} | set(public)
        drawn = empty_items(window, public, draws.items, law.tail(low), keys) if public else set()
        for item in sorted(known | {item for at, item in weights if at == window}):
            added = weights.get((window, item), {})
            threshold = low if item in known else settings.threshold
            uniform = draws.uniform(uniforms, window, item, added)
            if item in public and not added:
                if item not in drawn:
                    continue
                uniform = uniform * law.tail(threshold) // ONE
            noisy = sum(added.values()) + law.invert(uniform)
            if noisy < threshold:
                assert added or item not in public
                continue
            level = 1
            while noisy >= threshold + level * tests.spacing:
                level += 1
            boundary = threshold + (level - 1) * tests.spacing
            users = users_of(boundary, settings.likely_noise, tests.weights[-1])
            found.append(Named(window, item, level, users, item in known, not added))
            last_named[item] = window
    return found


def users_of(boundary: int, likely_noise: int, largest: int) -> int:
    """So many users at least, each of whom adds at most the largest weight; fewer than 5 are not stated."""
    users = 0
    while Fraction(boundary - likely_noise, largest) > users:
        users += 1
    return users if users >= 5 else 0


def reports_of(named: Iterable[Named], settings: TrialPlan) -> list[WindowReport]:
    """What is published of these: one report for each window with any, the largest items first."""
    by_window: dict[int, list[Named]] = {}
    for entry in named:
        by_window.setdefault(entry.window, []).append(entry)
    found = []
    for window, entries in sorted(by_window.items()):
        entries.sort(key=lambda entry: (-entry.level, -entry.at_least_users, entry.item))
        heavy = [HeavyHitter(entry.item, None, None, *entry.published[2:]) for entry in entries]
        found.append(report_of(settings, window, heavy, settings.epsilon))
    return found
