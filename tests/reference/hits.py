"""Where users pay for hits: it visits every window and in it every item that is held, or is public."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from dp_transforms.accounting.discrete_laplace_law import capped_sum_tail_integer
from dp_transforms.core.noise_table import WideDiscreteLaplace, wide_discrete_laplace
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from tests.helpers.trial_plan import TrialPlan
from tests.reference.log import (
    ONE,
    Event,
    Hash,
    Held,
    empty_items,
    hash_all,
    integer_of,
    items_by_window_and_user,
    tails_of,
    words_of,
)


class Transcript(NamedTuple):
    """reports: what is published. The rest tells a test that something happened.

    bounded: (user, window) with more than L items. excluded: users that paid all their hits. kept_out: how often an
    excluded user was left out of a count. false_reports: reports of items that nobody holds.
    """

    reports: list[WindowReport]
    bounded: set[tuple[str, int]]
    excluded: set[str]
    kept_out: int
    false_reports: int


def oracle_transcript(
    log: Iterable[Event] | Held, settings: TrialPlan, secret: bytes, public: Collection[str] = ()
) -> Transcript:
    """public: all items, where they are public; then settings.public_item_count says how many."""
    assert settings.public_item_count == len(set(public))
    keys = settings.stream_keys(secret)
    items_of = items_by_window_and_user(log, settings)
    if public:
        items_of = {
            window: {user: held & set(public) for user, held in items_of.get(window, {}).items() if held & set(public)}
            for window in range(settings.schedule.horizon)
        }
    noise = (PrintedNoise if settings.charged_hits.mode == "printed" else SingleNoise)(settings, keys)
    user_hash = hash_all(keys.hash_users, {user for users in items_of.values() for user in users})
    held_items = {i for users in items_of.values() for held in users.values() for i in held}
    item_hash = hash_all(keys.hash_items, held_items | set(public))
    short = {user: words[0] for user, words in user_hash.items()}

    paid_elsewhere = (settings.most_keys - 1) * settings.hits_per_user
    paid: Counter[str] = Counter()
    reports, bounded, hit_bound, kept_out, false_reports = [], set(), 0, 0, 0
    for window in sorted(items_of):
        holders: dict[str, set[str]] = {}
        for user, held in items_of[window].items():
            chosen = sorted(held)
            if len(chosen) > settings.hits.max_items_per_user:
                bounded.add((user, window))
                order = keys.contribution_order(window)
                chosen.sort(key=lambda item: _first_word(order, short[user], item_hash[item][0]))
                chosen = chosen[: settings.hits.max_items_per_user]
            for item in chosen:
                holders.setdefault(item, set()).add(user)
        drawn = empty_items(window, public, item_hash, noise.zero_tail(), keys) if public else set()

        heavy, charged = [], 0
        for item in sorted({*holders, *public}, key=lambda name: item_hash[name]):
            of_item = holders.get(item, set())
            if not of_item:
                if item not in drawn:
                    continue
                false_reports += 1
            elif not noise.may_pass(window, item_hash[item], [short[user] for user in of_item]):
                continue
            active = [user for user in of_item if paid[user] < settings.hits_per_user]
            kept_out += len(of_item) - len(active)
            if not active and not public:
                continue
            drawn_noise = noise.draw(window, item_hash[item], [short[user] for user in active], len(of_item))
            noisy = len(active) + drawn_noise
            if noisy < settings.threshold:
                assert of_item
                continue
            if settings.charged_hits.mode == "names" and noisy >= settings.threshold + settings.hits.zone_width:
                heavy.append(HeavyHitter(item, "above", None))
                continue
            zone = "between" if settings.charged_hits.mode == "names" else None
            heavy.append(HeavyHitter(item, zone, None if settings.charged_hits.mode == "printed" else noisy))
            charged += 1
            for user in active:
                paid[user] += 1

        hit_bound += min(settings.hits.max_items_per_user, charged)
        if heavy:
            heavy.sort(key=lambda found: (found.zone != "above", -(found.noisy_count or 0), found.item))
            at_most = min(hit_bound + 1, settings.hits_per_user)  # a result without a hit leaks a little too
            spent = settings.epsilon_after_hits[paid_elsewhere + at_most - 1]
            reports.append(report_of(settings, window, heavy, spent))
    excluded = {user for user, hits in paid.items() if hits >= settings.hits_per_user}
    assert max(paid.values(), default=0) <= settings.hits_per_user
    return Transcript(reports, bounded, excluded, kept_out, false_reports)


def report_of(settings: TrialPlan, window: int, heavy: list[HeavyHitter], spent: float) -> WindowReport:
    schedule = settings.schedule
    end = schedule.start_seconds + (window + 1) * schedule.slide_seconds
    start = end - schedule.window_seconds
    return WindowReport(
        settings.stream, start * 1_000_000, end * 1_000_000, heavy, settings.epsilon, settings.delta, spent
    )


class SingleNoise:
    """Discrete Laplace: a bit first, "the full count passes", and then the noise given that bit."""

    def __init__(self, settings: TrialPlan, keys: StreamKeys) -> None:
        law = tails_of(settings.hits.epsilon_per_query)
        self.tail, self._invert = law.tail, law.invert
        self._threshold, self._keys = settings.threshold, keys

    def may_pass(self, window: int, item: Hash, holders: list[int]) -> bool:
        uniform = _uniform(self._keys, self._keys.pass_uniforms(window), item, holders)
        return uniform < self.tail(self._threshold - len(holders))

    def draw(self, window: int, item: Hash, active: list[int], count: int) -> int:
        uniform = _uniform(self._keys, self._keys.noise_uniforms(window), item, active)
        return self._invert(uniform * self.tail(self._threshold - count) // ONE)

    def zero_tail(self) -> int:
        return self.tail(self._threshold)


class PrintedNoise:
    """W + min(V, cap) in one stage, each of three uniforms (tests/core/test_noise_table.py has their law)."""

    def __init__(self, settings: TrialPlan, keys: StreamKeys) -> None:
        noise = settings.hits.noise
        self._epsilons, self._cap = (noise.wide_epsilon_per_query, settings.hits.epsilon_per_query), noise.noise_cap
        self._threshold, self._keys = settings.threshold, keys

    def may_pass(self, window: int, item: Hash, holders: list[int]) -> bool:
        return True

    def draw(self, window: int, item: Hash, active: list[int], count: int) -> int:
        if count == 0:
            return self._threshold  # it was drawn because it passes
        each = WideDiscreteLaplace.UNIFORMS
        functions = [self._keys.noise_pair_uniforms(window, number) for number in range(2 * each)]
        uniforms = words_of(*(_uniform(self._keys, function, item, active) for function in functions))
        parts = uniforms[None, :each], uniforms[None, each:]
        wide, narrow = (
            int(wide_discrete_laplace(epsilon).sample(part)[0])
            for epsilon, part in zip(self._epsilons, parts, strict=True)
        )
        return wide + min(narrow, self._cap)

    def zero_tail(self) -> int:
        wide, narrow = self._epsilons
        return capped_sum_tail_integer(self._threshold, wide_epsilon=wide, narrow_epsilon=narrow, cap=self._cap)


def _first_word(function: Any, first: int, second: int) -> int:
    return int(function(np.array([[first, second]], dtype=np.uint64))[0, 0])


def _uniform(keys: StreamKeys, function: Any, item: Hash, users: list[int]) -> int:
    """The keyed uniform of an item and the digest of its users: the sum of them, widened, modulo 2^128."""
    digest = sum(integer_of(row) for row in keys.widen_users(np.array(users, dtype=np.uint64)))
    return integer_of(function.of_pairs(np.array([item], dtype=np.uint64), words_of(digest))[0])
