"""An oracle of the whole monitor: dicts, loops and plain integers, written from the theory and not from the product.

It shares only the keyed functions of `StreamKeys` (identities, the order of contributions, uniforms). Windowing,
distinct pairs, the contribution bound, digests, the inversion of the discrete Laplace distribution, conditioning, the
order of candidates, exclusion, charges and reports are its own.
"""

from __future__ import annotations

import decimal
import functools
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dp_transforms.monitoring.settings import MonitorSettings
from dp_transforms.monitoring.window_report import HeavyHitter, WindowReport

Event = tuple[str, str, int]  # user, item, time in microseconds since 1970

_MILLION = 1_000_000
_ONE = 1 << 128
_WORD = 1 << 64


class Transcript(NamedTuple):
    """reports: what is published. The rest tells a test that something happened.

    bounded: (user, window) with more than L items. exhausted: users that paid all their hits. kept_out: how often an
    exhausted user was left out of a count. tested: candidates that were tested.
    """

    reports: list[WindowReport]
    bounded: set[tuple[str, int]]
    exhausted: set[str]
    kept_out: int
    tested: int


def oracle_reports(log: Iterable[Event], settings: MonitorSettings, secret: bytes) -> list[WindowReport]:
    return oracle_transcript(log, settings, secret).reports


def oracle_transcript(log: Iterable[Event], settings: MonitorSettings, secret: bytes) -> Transcript:
    keys = settings.stream_keys(secret)
    items_of = _items_by_window_and_user(log, settings)
    noise = _Noise(settings.epsilon_per_query)
    user_hash = _hash_all(keys.user_ids, {user for users in items_of.values() for user in users})
    item_hash = _hash_all(keys.item_ids, {i for users in items_of.values() for held in users.values() for i in held})
    short = {user: words[0] for user, words in user_hash.items()}
    wide = {user: _integer(keys.widen_users(np.array([short[user]], dtype=np.uint64))[0]) for user in short}

    paid: Counter[str] = Counter()
    reports, bounded, hit_bound, kept_out, tested = [], set(), 0, 0, 0
    for window in sorted(items_of):
        holders: dict[str, set[str]] = {}
        for user, held in items_of[window].items():
            chosen = sorted(held)
            if len(chosen) > settings.max_items_per_user:
                bounded.add((user, window))
                order = keys.contribution_order(window)
                chosen.sort(key=lambda item: _first_word(order, short[user], item_hash[item][0]))
                chosen = chosen[: settings.max_items_per_user]
            for item in chosen:
                holders.setdefault(item, set()).add(user)

        heavy, charged = [], 0
        for item in sorted(holders, key=lambda name: item_hash[name][0] * _WORD + item_hash[name][1]):
            margin = settings.threshold - len(holders[item])
            uniform = _uniform(keys.pass_uniforms(window), item_hash[item], [wide[user] for user in holders[item]])
            if not uniform < noise.tail(margin):
                continue
            active = [user for user in holders[item] if paid[user] < settings.hits_per_user]
            kept_out += len(holders[item]) - len(active)
            if not active:
                continue
            tested += 1
            uniform = _uniform(keys.noise_uniforms(window), item_hash[item], [wide[user] for user in active])
            noisy = len(active) + noise.invert(uniform * noise.tail(margin) // _ONE)
            if noisy < settings.threshold:
                continue
            if settings.release == "labels" and noisy >= settings.threshold + settings.zone_width:
                heavy.append(HeavyHitter(item, "above", None))
                continue
            heavy.append(HeavyHitter(item, "between" if settings.release == "labels" else None, noisy))
            charged += 1
            for user in active:
                paid[user] += 1

        hit_bound += min(settings.max_items_per_user, charged)
        if heavy:
            heavy.sort(key=lambda found: (found.zone != "above", -(found.noisy_count or 0), found.item))
            first_end = settings.schedule.start_seconds + settings.schedule.slide_seconds
            end = first_end + window * settings.schedule.slide_seconds
            reports.append(
                WindowReport(
                    settings.stream,
                    (end - settings.schedule.window_seconds) * _MILLION,
                    end * _MILLION,
                    heavy,
                    settings.epsilon_total,
                    settings.delta,
                    settings.epsilon_after_hits[min(hit_bound + 1, settings.hits_per_user) - 1],
                )
            )
    exhausted = {user for user, hits in paid.items() if hits >= settings.hits_per_user}
    assert max(paid.values(), default=0) <= settings.hits_per_user
    return Transcript(reports, bounded, exhausted, kept_out, tested)


def _items_by_window_and_user(log: Iterable[Event], settings: MonitorSettings) -> dict[int, dict[str, set[str]]]:
    """``{window: {user: items}}`` of the events in the declared range. Window 0 is the first that ends in it."""
    start, end = settings.schedule.start_seconds * _MILLION, settings.schedule.end_seconds * _MILLION
    size, slide = settings.schedule.window_seconds * _MILLION, settings.schedule.slide_seconds * _MILLION
    items_of: dict[int, dict[str, set[str]]] = {}
    for user, item, time in log:
        if not start <= time < end:
            continue
        begin = time - (time - start) % slide  # of the last window that holds the event
        while begin + size > time:
            window = (begin + size - slide - start) // slide
            items_of.setdefault(window, {}).setdefault(user, set()).add(item)
            begin -= slide
    return items_of


class _Noise:
    """Discrete Laplace from 128-bit uniforms: Z >= m exactly when the uniform lies below floor(2^128 Pr[Z >= m])."""

    def __init__(self, epsilon: float) -> None:
        self._context = decimal.Context(prec=200, Emin=-100_000, Emax=100_000)
        self._a = self._context.exp(-decimal.Decimal(epsilon))
        self._tails: dict[int, int] = {}

    def tail(self, margin: int) -> int:
        """Of 2^128: Pr[Z >= margin] = a^m / (1 + a) for m >= 1, and by symmetry one minus that of 1 - m below."""
        if margin < 1:
            return _ONE - self.tail(1 - margin)
        if margin not in self._tails:
            context = self._context
            power = context.power(self._a, margin)
            share = context.divide(power, context.add(decimal.Decimal(1), self._a))
            self._tails[margin] = int(context.multiply(share, decimal.Decimal(_ONE)))
        return self._tails[margin]

    def invert(self, uniform: int) -> int:
        """The largest z with uniform < tail(z), found by walking."""
        value = 0
        while uniform < self.tail(value + 1):
            value += 1
        while not uniform < self.tail(value):
            value -= 1
        return value


def _words(integers: Iterable[int]) -> np.ndarray:
    return np.array([(value // _WORD, value % _WORD) for value in integers], dtype=np.uint64)


def _integer(row: np.ndarray) -> int:
    return int(row[0]) * _WORD + int(row[1])


def _hash_all(hasher: object, names: set[str]) -> dict[str, tuple[int, int]]:
    ordered = sorted(names)
    hashes = hasher(pa.array(ordered, pa.string()))
    return {name: (int(row[0]), int(row[1])) for name, row in zip(ordered, hashes, strict=True)}


def _first_word(function: object, first: int, second: int) -> int:
    return int(function(np.array([[first, second]], dtype=np.uint64))[0, 0])


def _uniform(function: object, item: tuple[int, int], members: list[int]) -> int:
    """The keyed uniform of an item and the digest of a set: the sum of its members modulo 2^128."""
    digest = functools.reduce(lambda total, member: (total + member) % _ONE, members, 0)
    return _integer(function.of_pairs(np.array([item], dtype=np.uint64), _words([digest]))[0])
