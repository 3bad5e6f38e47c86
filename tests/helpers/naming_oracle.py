"""An oracle of mode `looks`: dicts, loops and plain integers, written from design and theory, not the product.

It shares with the product the keyed functions of `StreamKeys` and the exact table of tails of the noise. Weights,
sums, digests, the inversion of the noise, known items, levels and sizes are its own. It visits every window and, in
it, every item that anybody adds to, that is known, or that is in the domain.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from tests.helpers.oracle import Event, empty_items, hash_all, integer_of, items_by_window_and_user
from tests.helpers.trial_plan import TrialPlan

_ONE = 1 << 128
_WORD = 1 << 64

Weights = dict[tuple[int, str], dict[str, int]]  # (window, item): {user: weight > 0}


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


class NoiseLaw:
    """The law of the noise of one sum, in integers: probabilities of 2^128."""

    def __init__(self, noise: ExponentialPower) -> None:
        self._tails = noise.upper_tail_integers()

    def tail(self, margin: int) -> int:
        """Pr[Z >= margin]."""
        if margin < 1:
            return _ONE - self.tail(1 - margin)
        return self._tails[margin - 1] if margin <= len(self._tails) else 0

    def invert(self, uniform: int) -> int:
        """The largest z with uniform < tail(z), found by halving."""
        low, high = -len(self._tails) - 1, len(self._tails) + 1  # uniform < tail(low), and not uniform < tail(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if uniform < self.tail(middle) else (low, middle)
        return low


def replay_weights(log: Iterable[Event], settings: TrialPlan, keys: StreamKeys) -> Weights:
    """From all pairs of each user: the largest weight that its purse can pay in each of them."""
    pairs: dict[str, list[tuple[int, str]]] = {}
    for window, users in sorted(items_by_window_and_user(log, settings).items()):
        for user, items in users.items():
            pairs.setdefault(user, []).extend((window, item) for item in items)
    found: Weights = {}
    for user, of_user in pairs.items():
        purse = BUDGET_UNITS
        looks = min(len(of_user), purse // settings.contributions.units[0])
        weight = max(
            w
            for w, units in zip(settings.contributions.weights, settings.contributions.units, strict=True)
            if looks * units <= purse
        )
        if len(of_user) > looks:
            of_user.sort(key=lambda pair: look_place(user, pair, keys))
        for pair in of_user[:looks]:
            found.setdefault(pair, {})[user] = weight
    return found


@functools.lru_cache(maxsize=100_000)
def look_place(user: str, pair: tuple[int, str], keys: StreamKeys) -> int:
    """Where a pair (window, item) of a user stands in the keyed order by which pairs are dropped."""
    window, item = pair
    hashes = np.array([_hash_of(keys.hash_items, item)], dtype=np.uint64)
    users = np.array([_hash_of(keys.hash_users, user)[0]], dtype=np.uint64)
    return integer_of(keys.payment_order()(users, np.array([window]), hashes)[0])


_hash_of = functools.lru_cache(maxsize=10_000)(lambda hasher, name: hash_all(hasher, {name})[name])


def oracle_names(
    weights: Weights,
    settings: TrialPlan,
    keys: StreamKeys,
    domain: Collection[str] = (),
    *,
    forgotten_at: int | None = None,
) -> list[Named]:
    """What is named in all windows, if users add these weights; by window, then label.

    forgotten_at: a fault, a window before which all known items are forgotten.
    """
    assert settings.domain_size == len(set(domain))
    everybody = {user for of_cell in weights.values() for user in of_cell}
    user_hash = hash_all(keys.hash_users, everybody)
    item_hash = hash_all(keys.hash_items, {item for _, item in weights} | set(domain))
    law = NoiseLaw(settings.contributions.noise)
    tail, invert = law.tail, law.invert

    window_uniforms = keys.window_uniforms()

    @functools.cache
    def member(user: str, weight: int) -> int:
        users = np.array([user_hash[user][0]], dtype=np.uint64)
        return integer_of(keys.widen_holders(users, np.array([weight]))[0])

    def uniform_of(window: int, item: str, of_cell: dict[str, int]) -> int:
        digest = sum(member(user, weight) for user, weight in of_cell.items()) % _ONE
        words = np.array([divmod(digest, _WORD)], dtype=np.uint64)
        hashes = np.array([item_hash[item]], dtype=np.uint64)
        return integer_of(window_uniforms(np.array([window]), hashes, words)[0])

    last_named: dict[str, int] = {}
    found: list[Named] = []
    for window in range(settings.schedule.horizon):
        if window == forgotten_at:
            last_named.clear()
        known = {item for item, last in last_named.items() if window - last <= settings.followed_for} | set(domain)
        drawn = empty_items(window, domain, item_hash, tail(settings.followed_threshold), keys) if domain else set()
        of_window = {item for at, item in weights if at == window}
        for item in sorted(known | of_window):
            of_cell = weights.get((window, item), {})
            threshold = settings.followed_threshold if item in known else settings.threshold
            uniform = uniform_of(window, item, of_cell)
            if domain and not of_cell:
                if item not in drawn:
                    continue
                uniform = uniform * tail(threshold) // _ONE
            noisy = sum(of_cell.values()) + invert(uniform)
            if noisy < threshold:
                assert not (domain and not of_cell)
                continue
            level = 1
            while noisy >= threshold + level * settings.contributions.spacing:
                level += 1
            boundary = threshold + (level - 1) * settings.contributions.spacing
            users = 0
            while Fraction(boundary - settings.likely_noise, settings.contributions.weights[-1]) > users:
                users += 1
            users = users if users >= 5 else 0  # fewer are not stated
            found.append(Named(window, item, level, users, item in known, not of_cell))
            last_named[item] = window
    return found


def reports_of(named: Iterable[Named], settings: TrialPlan) -> list[WindowReport]:
    """What is published of these: one report for each window with any, the largest items first."""
    schedule, by_window = settings.schedule, {}
    for entry in named:
        by_window.setdefault(entry.window, []).append(entry)
    found = []
    for window, entries in sorted(by_window.items()):
        entries.sort(key=lambda entry: (-entry.level, -entry.at_least_users, entry.item))
        end = schedule.start_seconds + (window + 1) * schedule.slide_seconds
        found.append(
            WindowReport(
                stream=settings.stream,
                window_start=(end - schedule.window_seconds) * 1_000_000,
                window_end=end * 1_000_000,
                heavy_hitters=[HeavyHitter(entry.item, None, None, *entry.published[2:]) for entry in entries],
                epsilon_total=settings.epsilon,
                delta=settings.delta,
                epsilon_spent=settings.epsilon,
            )
        )
    return found
