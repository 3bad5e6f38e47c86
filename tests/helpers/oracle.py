"""An oracle of the whole monitor: dicts, loops and plain integers, written from the theory and not from the product.

It shares only the keyed functions of `StreamKeys` (identities, the order of contributions, uniforms). Windowing,
distinct pairs, the contribution bound, digests, the inversion of the noise distributions, conditioning, the draw of
items that nobody holds, the order of candidates, exclusion, charges and reports are its own.

In a known domain it visits every window and, in it, every item of the domain.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from tests.helpers.trial_plan import TrialPlan

Event = tuple[str, str, int]  # user, item, time in microseconds since 1970

_MILLION = 1_000_000
_ONE = 1 << 128
_WORD = 1 << 64


class Transcript(NamedTuple):
    """reports: what is published. The rest tells a test that something happened.

    bounded: (user, window) with more than L items. excluded: users that paid all their hits. kept_out: how often an
    excluded user was left out of a count. tested: candidates that were tested. false_reports: reports of items that
    nobody holds. idle: tested items that are held by excluded users alone.
    """

    reports: list[WindowReport]
    bounded: set[tuple[str, int]]
    excluded: set[str]
    kept_out: int
    tested: int
    false_reports: int
    idle: int


def oracle_reports(
    log: Iterable[Event],
    settings: TrialPlan,
    secret: bytes,
    domain: Collection[str] = (),
    keys: StreamKeys | None = None,
) -> list[WindowReport]:
    return oracle_transcript(log, settings, secret, domain, keys=keys).reports


def oracle_transcript(
    log: Iterable[Event],
    settings: TrialPlan,
    secret: bytes,
    domain: Collection[str] = (),
    charged_times: Mapping[int, int] | None = None,
    keys: StreamKeys | None = None,
) -> Transcript:
    """domain: all items, where they are known; then settings.domain_size says how many.

    charged_times: how often the charges of a window are counted, where a fault loses (0) or doubles (2) them.
    keys: in the place of those that the settings make of the secret.
    """
    faults = charged_times or {}
    assert settings.domain_size == len(set(domain))
    keys = keys or settings.stream_keys(secret)
    items_of = items_by_window_and_user(log, settings)
    if domain:
        for users in items_of.values():
            for user in list(users):
                users[user] &= set(domain)
                if not users[user]:
                    del users[user]
        for window in range(settings.schedule.horizon):
            items_of.setdefault(window, {})
    noise = (_CappedSum if settings.charged_hits.mode == "printed" else _SingleNoise)(settings, keys)
    user_hash = hash_all(keys.hash_users, {user for users in items_of.values() for user in users})
    held_items = {i for users in items_of.values() for held in users.values() for i in held}
    item_hash = hash_all(keys.hash_items, held_items | set(domain))
    short = {user: words[0] for user, words in user_hash.items()}
    wide = {user: integer_of(keys.widen_users(np.array([short[user]], dtype=np.uint64))[0]) for user in short}

    paid_elsewhere = (settings.most_keys - 1) * settings.hits_per_user
    paid: Counter[str] = Counter()
    reports, bounded, hit_bound, kept_out, tested, false_reports, idle = [], set(), 0, 0, 0, 0, 0
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
        drawn = empty_items(window, domain, item_hash, noise.zero_tail(), keys) if domain else set()

        heavy, charged = [], 0
        for item in sorted({*holders, *domain}, key=lambda name: item_hash[name][0] * _WORD + item_hash[name][1]):
            of_item = holders.get(item, set())
            if not of_item:
                if item not in drawn:
                    continue
                false_reports += 1
            elif not noise.may_pass(window, item_hash[item], [wide[user] for user in of_item]):
                continue
            active = [user for user in of_item if paid[user] < settings.hits_per_user]
            kept_out += len(of_item) - len(active)
            if not active and not domain:
                continue
            tested += 1
            idle += bool(of_item) and not active
            noisy = len(active) + noise.draw(window, item_hash[item], [wide[user] for user in active], len(of_item))
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
                paid[user] += faults.get(window, 1)

        hit_bound += min(settings.hits.max_items_per_user, charged)
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
                    settings.epsilon,
                    settings.delta,
                    settings.epsilon_after_hits[paid_elsewhere + min(hit_bound + 1, settings.hits_per_user) - 1],
                )
            )
    excluded = {user for user, hits in paid.items() if hits >= settings.hits_per_user}
    assert faults or max(paid.values(), default=0) <= settings.hits_per_user
    return Transcript(reports, bounded, excluded, kept_out, tested, false_reports, idle)


def items_by_window_and_user(log: Iterable[Event], settings: TrialPlan) -> dict[int, dict[str, set[str]]]:
    """``{window: {user: items}}`` of the events in the declared range. Window 0 is the first that ends in it."""
    if isinstance(log, dict):  # they were found before
        return {window: {user: set(items) for user, items in users.items()} for window, users in log.items()}
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


class _Geometric:
    """Powers of ``a = exp(-epsilon)`` with all digits."""

    def __init__(self, epsilon: float) -> None:
        self._context = decimal.Context(prec=200, Emin=-100_000_000, Emax=100_000_000)
        self.a = self._context.exp(-decimal.Decimal(epsilon))
        self.one_plus_a = self._context.add(1, self.a)  # an operator would round to 28 digits

    def power(self, exponent: int) -> decimal.Decimal:
        return self._context.power(self.a, exponent)

    def difference(self, one: decimal.Decimal, other: decimal.Decimal) -> decimal.Decimal:
        return self._context.subtract(one, other)

    def integer(self, share: decimal.Decimal, of: decimal.Decimal) -> int:
        """``floor(2^128 share / of)``."""
        return int(self._context.multiply(self._context.divide(share, of), decimal.Decimal(_ONE)))


class _SingleNoise:
    """Discrete Laplace from 128-bit uniforms: Z >= m exactly when the uniform lies below floor(2^128 Pr[Z >= m])."""

    def __init__(self, settings: TrialPlan, keys: StreamKeys) -> None:
        self._geometric = _Geometric(settings.hits.epsilon_per_query)
        self._tails: dict[int, int] = {}
        self._threshold, self._keys = settings.threshold, keys

    def tail(self, margin: int) -> int:
        """Of 2^128: Pr[Z >= margin] = a^m / (1 + a) for m >= 1, and by symmetry one minus that of 1 - m below."""
        if margin < 1:
            return _ONE - self.tail(1 - margin)
        if margin not in self._tails:
            self._tails[margin] = self._geometric.integer(self._geometric.power(margin), self._geometric.one_plus_a)
        return self._tails[margin]

    def invert(self, uniform: int) -> int:
        """The largest z with uniform < tail(z), found by walking."""
        value = 0
        while uniform < self.tail(value + 1):
            value += 1
        while not uniform < self.tail(value):
            value -= 1
        return value

    def may_pass(self, window: int, item: tuple[int, int], holders: list[int]) -> bool:
        return _uniform(self._keys.pass_uniforms(window), item, holders) < self.tail(self._threshold - len(holders))

    def draw(self, window: int, item: tuple[int, int], active: list[int], count: int) -> int:
        uniform = _uniform(self._keys.noise_uniforms(window), item, active)
        return self.invert(uniform * self.tail(self._threshold - count) // _ONE)

    def zero_tail(self) -> int:
        return self.tail(self._threshold)


class _CappedSum:
    """W + min(V, cap): six uniforms, three for each, and no first stage."""

    def __init__(self, settings: TrialPlan, keys: StreamKeys) -> None:
        self._wide, self._narrow = settings.hits.noise.wide_epsilon_per_query, settings.hits.epsilon_per_query
        self._cap, self._threshold, self._keys = settings.hits.noise.noise_cap, settings.threshold, keys

    def may_pass(self, window: int, item: tuple[int, int], holders: list[int]) -> bool:
        return True

    def draw(self, window: int, item: tuple[int, int], active: list[int], count: int) -> int:
        if count == 0:
            return self._threshold  # it was drawn because it passes
        uniforms = [_uniform(self._keys.noise_pair_uniforms(window, part), item, active) for part in range(6)]
        return _invert_wide(self._wide, uniforms[:3]) + min(_invert_wide(self._narrow, uniforms[3:]), self._cap)

    @functools.cache  # noqa: B019
    def zero_tail(self) -> int:
        """The sum over all values of V, far into its tail."""
        wide, narrow = _Geometric(self._wide), _Geometric(self._narrow)
        least = -math.ceil(300 / self._narrow)
        total = decimal.Decimal(0)
        with decimal.localcontext(decimal.Context(prec=200, Emin=-(10**8), Emax=10**8)):
            for value in range(least, self._cap + 1):
                mass = narrow.power(abs(value)) * (1 - narrow.a) / (1 + narrow.a)
                if value == self._cap:  # and all above
                    mass = narrow.power(self._cap) / (1 + narrow.a)
                margin = self._threshold - value
                below = wide.power(1 - margin) / (1 + wide.a) if margin < 1 else None
                total += mass * (1 - below if below is not None else wide.power(margin) / (1 + wide.a))
            return int(total * _ONE)


def _invert_wide(epsilon: float, uniforms: list[int]) -> int:
    """A sign, and a magnitude ``1 + stride coarse + fine`` whose two digits are independent."""
    geometric = _Geometric(epsilon)
    one = decimal.Decimal(1)
    nonzero = geometric.integer(geometric.a, geometric.one_plus_a)
    if nonzero <= uniforms[0] < _ONE - nonzero:
        return 0
    stride = math.ceil(math.sqrt(89 / epsilon))
    coarse = fine = 0
    while uniforms[1] < geometric.integer(geometric.power(stride * (coarse + 1)), one):
        coarse += 1
    rest = geometric.power(stride)
    while uniforms[2] < geometric.integer(
        geometric.difference(geometric.power(fine + 1), rest), geometric.difference(one, rest)
    ):
        fine += 1
    magnitude = 1 + stride * coarse + fine
    return magnitude if uniforms[0] < nonzero else -magnitude


def empty_items(
    window: int, domain: Collection[str], item_hash: dict[str, tuple[int, int]], tail: int, keys: StreamKeys
) -> set[str]:
    """Items that are published if nobody holds them: as many as a binomial number, all subsets of that size alike."""
    ordered = sorted(domain, key=lambda name: item_hash[name])
    function = keys.empty_item_uniforms()

    def uniform(number: int) -> int:
        return integer_of(function(np.array([[window, number]], dtype=np.uint64))[0])

    share, size = Fraction(tail, _ONE), len(ordered)
    count, below = 0, (1 - share) ** size
    while count < size and uniform(0) >= int(below * _ONE):
        count += 1
        below += math.comb(size, count) * share**count * (1 - share) ** (size - count)
    wanted = min(count, size - count) if 2 * count > size else count
    chosen: list[str] = []
    number = 0
    while len(chosen) < wanted:
        number += 1
        word = uniform(number) // _WORD
        if word < _WORD // size * size and ordered[word % size] not in chosen:
            chosen.append(ordered[word % size])
    return set(chosen) if wanted == count else set(ordered) - set(chosen)


def _words(integers: Iterable[int]) -> np.ndarray:
    return np.array([(value // _WORD, value % _WORD) for value in integers], dtype=np.uint64)


def integer_of(row: np.ndarray) -> int:
    return int(row[0]) * _WORD + int(row[1])


def hash_all(hasher: object, names: set[str]) -> dict[str, tuple[int, int]]:
    ordered = sorted(names)
    hashes = hasher(pa.array(ordered, pa.string()))
    return {name: (int(row[0]), int(row[1])) for name, row in zip(ordered, hashes, strict=True)}


def _first_word(function: object, first: int, second: int) -> int:
    return int(function(np.array([[first, second]], dtype=np.uint64))[0, 0])


def _uniform(function: object, item: tuple[int, int], members: list[int]) -> int:
    """The keyed uniform of an item and the digest of a set: the sum of its members modulo 2^128."""
    digest = functools.reduce(lambda total, member: (total + member) % _ONE, members, 0)
    return integer_of(function.of_pairs(np.array([item], dtype=np.uint64), _words([digest]))[0])
