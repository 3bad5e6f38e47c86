"""An oracle of mode `looks` with hits: dicts, loops and plain integers, written from its design alone.

Design: a user is on one of two price lists. On the looks list it pays for looks alone, as without hits. On the hits
list looks cost less, and it pays beforehand for J hits; after J hits it no longer counts. A look whose noisy sum
reaches T is level 1, a hit; from T + spacing on it is level 2, free. Items have their turn in the order of keyed
hashes. A known item has the lower threshold, and is drawn for in every window, held or not.

It shares with the product what `naming_oracle` shares, and that oracle's parts that do not know hits.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np

from dp_transforms.mechanisms.randomness import StreamKeys
from tests.helpers.naming_oracle import Named, NoiseLaw, look_place
from tests.helpers.oracle import Event, empty_items, hash_all, integer_of, items_by_window_and_user
from tests.helpers.pace_oracle import DAY_SECONDS
from tests.helpers.trial_plan import TrialPlan

_ONE = 1 << 128
_WORD = 1 << 64

Holders = dict[tuple[int, str], dict[str, tuple[int, bool]]]  # (window, item): {user: (weight > 0, pays hits)}


@dataclasses.dataclass
class Transcript:
    """named: what is published, by window, then label. hits: of each user who has any. kept_out: how often a user with
    all its hits was left out. idle: tested known items that excluded users alone hold."""

    named: list[Named]
    hits: Counter[str]
    kept_out: int
    idle: int


def price_lists(settings: TrialPlan) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(weight, units) of looks on the looks list and on the hits list."""
    looks = list(zip(settings.looks.weights, settings.looks.units, strict=True))
    return looks, list(zip(settings.hits.weights, settings.hits.look_units, strict=True))


def replay_holders(log: Iterable[Event], settings: TrialPlan, keys: StreamKeys) -> Holders:
    """Each user takes the list that gives it the larger weight for all its pairs of the run."""
    pairs: dict[str, list[tuple[int, str]]] = {}
    for window, users in sorted(items_by_window_and_user(log, settings).items()):
        for user, items in users.items():
            pairs.setdefault(user, []).extend((window, item) for item in items)
    looks_list, hits_list = price_lists(settings)
    most_looks = settings.looks.purse // settings.looks.units[0]
    found: Holders = {}
    for user, of_user in pairs.items():
        looks = min(len(of_user), most_looks)
        weight = max(w for w, units in looks_list if looks * units <= settings.looks.purse)
        with_hits = [
            w
            for w, units in hits_list
            if looks * units + settings.hits_per_user * settings.hits.units <= settings.looks.purse
        ]
        pays_hits = max(with_hits, default=0) > weight
        if len(of_user) > most_looks:
            of_user.sort(key=lambda pair: look_place(user, pair, keys))
        for pair in of_user[:looks]:
            found.setdefault(pair, {})[user] = (max([weight, *with_hits]), pays_hits)
    return found


@dataclasses.dataclass
class Wallet:
    """Of one user: what is left, its list, how many looks it has paid, and when it was first seen."""

    left: int
    first_window: int
    paid_looks: int = 0
    pays_hits: bool = False
    joined: int = -1

    def choose(self, looks: int, window: int, settings: TrialPlan) -> tuple[int, int]:
        """The weight in this window, and how many looks are paid with it."""
        looks_list, hits_list = price_lists(settings)
        all_hits = settings.hits_per_user * settings.hits.units
        is_busy = settings.hits_per_user and self.paid_looks + looks >= settings.hits_from
        if not self.pays_hits and is_busy and self.left >= all_hits + looks * hits_list[0][1]:
            self.left -= all_hits
            self.pays_hits, self.joined = True, window
        listed = hits_list if self.pays_hits else looks_list
        windows_left = settings.schedule.horizon - 1 - window
        a_day = -(-DAY_SECONDS // settings.schedule.slide_seconds)
        seen_for = max(min(a_day, max(1, settings.schedule.horizon // 16)), window - self.first_window + 1)
        expected = (self.paid_looks + looks) * windows_left // (seen_for + windows_left // 16)
        share = self.left // (expected + looks)
        weight, units = next(((w, u) for w, u in reversed(listed) if u <= share), listed[0])
        payable = min(looks, self.left // units)
        self.left -= payable * units
        self.paid_looks += payable
        assert self.left >= 0
        return weight, payable


def stream_holders(log: Iterable[Event], settings: TrialPlan, keys: StreamKeys) -> Holders:
    """Window by window, user by user."""
    wallets: dict[str, Wallet] = {}
    found: Holders = {}
    for window, users in sorted(items_by_window_and_user(log, settings).items()):
        for user, items in users.items():
            wallet = wallets.setdefault(user, Wallet(settings.looks.purse, window))
            weight, payable = wallet.choose(len(items), window, settings)
            ordered = sorted(items, key=lambda item: look_place(user, (window, item), keys))
            for item in ordered[:payable]:
                found.setdefault((window, item), {})[user] = (weight, wallet.pays_hits)
    return found


def oracle_hits(holders: Holders, settings: TrialPlan, keys: StreamKeys, domain: Collection[str] = ()) -> Transcript:
    """What is named in all windows, if users hold items with these weights."""
    assert settings.domain_size == len(set(domain))
    user_hash = hash_all(keys.hash_users, {user for of_cell in holders.values() for user in of_cell})
    item_hash = hash_all(keys.hash_items, {item for _, item in holders} | set(domain))
    law = NoiseLaw(settings.looks.noise)
    tail, invert = law.tail, law.invert
    stages = keys.look_uniforms(), keys.look_noise_uniforms()

    def uniform_of(stage: int, window: int, item: str, of_cell: dict[str, tuple[int, bool]]) -> int:
        digest = 0
        for user, (weight, pays_hits) in of_cell.items():
            users = np.array([user_hash[user][0]], dtype=np.uint64)
            digest += integer_of(keys.widen_holders(users, np.array([2 * weight + pays_hits]))[0])
        words = np.array([divmod(digest % _ONE, _WORD)], dtype=np.uint64)
        return integer_of(stages[stage](np.array([window]), np.array([item_hash[item]], dtype=np.uint64), words)[0])

    last_named: dict[str, int] = {}
    found = Transcript([], Counter(), 0, 0)
    for window in range(settings.schedule.horizon):
        known = {item for item, last in last_named.items() if window - last <= settings.known_for} | set(domain)
        drawn = empty_items(window, domain, item_hash, tail(settings.known_threshold), keys) if domain else set()
        of_window = {item for at, item in holders if at == window}
        named = []
        for item in sorted(known | of_window, key=lambda name: item_hash[name]):
            of_cell = holders.get((window, item), {})
            chance = tail(settings.known_threshold - sum(weight for weight, _ in of_cell.values()))
            if domain and not of_cell:
                if item not in drawn:
                    continue
            elif uniform_of(0, window, item, of_cell) >= chance:
                continue
            active = {
                user: held
                for user, held in of_cell.items()
                if not (held[1] and found.hits[user] >= settings.hits_per_user)
            }
            found.kept_out += len(of_cell) - len(active)
            if not active and item not in known:
                continue
            found.idle += bool(of_cell) and not active
            noise = invert(uniform_of(1, window, item, active) * chance // _ONE)
            noisy = sum(weight for weight, _ in active.values()) + noise
            threshold = settings.known_threshold if item in known else settings.threshold
            if noisy < threshold:
                continue
            level = 2 if noisy >= threshold + settings.looks.spacing else 1
            if level == 1:
                found.hits.update(user for user, (_, pays_hits) in active.items() if pays_hits)
            boundary = threshold if level == 1 else threshold + settings.looks.spacing
            users = 0
            while users * settings.looks.weights[-1] < boundary - settings.likely_noise:
                users += 1
            users = users if users >= 5 else 0  # fewer are not stated
            named.append(Named(window, item, level, users, item in known, not of_cell))
            last_named[item] = window
        found.named += sorted(named, key=lambda entry: entry.item)
    assert max(found.hits.values(), default=0) <= settings.hits_per_user
    return found
