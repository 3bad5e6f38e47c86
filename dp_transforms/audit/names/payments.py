"""What the real code lets users pay: no purse is overdrawn, and no weight follows another user's events.

Nothing here is an estimate. Random users, and some with far more looks than a purse pays for, go through the real
weights of a replay and the real purses of a stream. Of each user the audit adds up what its weights cost, and all that
counts can cost it: as if every item were counted. Then the same users again, without half of the others: no weight may
change, and no count.
"""

from __future__ import annotations

import collections
import dataclasses
import secrets
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.audit.names.copies import (
    all_counted,
    item_pairs_of_numbers,
    numbers_of,
    pairs_of_numbers,
)
from dp_transforms.audit.names.hand_over import Carried
from dp_transforms.audit.names.mechanism import NamesMechanism
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor import named_counts
from dp_transforms.monitor.item_holders import pays_hits_of, terms_of, weights_of
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.replay_weights import weigh_replay, weigh_replay_with_hits
from dp_transforms.monitor.user_pairs import UserPairs
from dp_transforms.plan.window_schedule import WindowSchedule

_WINDOWS = 6
_USERS = 120
_ITEMS = 40  # which users share
_MOST_PAIRS = 8  # of a usual user in a window

Rows = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]]  # users, windows, items


class Paid(NamedTuple):
    """A look: its weight, and whether the user is on the hits list."""

    weight: int
    pays_hits: bool


Weights = dict[tuple[int, int, int], Paid]  # by user, window and item


@dataclasses.dataclass(frozen=True)
class PaymentAudit:
    """users: how many. looks: that they have. replay_share, stream_share: the largest share of a purse that one of
    them spent. violations: a sentence for each rule that is broken."""

    users: int
    looks: int
    replay_share: float
    stream_share: float
    violations: tuple[str, ...]


def audit_payments(mechanism: NamesMechanism, settings: NamingSettings, secret: bytes) -> PaymentAudit:
    """settings: of a real run. secret: fresh, at least 32 bytes."""
    slide = settings.schedule.slide_seconds
    run = dataclasses.replace(settings, schedule=WindowSchedule.fixed(0, _WINDOWS * slide, slide), domain_size=0)
    keys = run.stream_keys(secret)
    rows = _rows(mechanism.most_looks)
    half = np.isin(rows[0], np.unique(rows[0])[::2])
    fewer = (rows[0][half], rows[1][half], rows[2][half])
    replayed, (streamed, is_refused) = _replay(rows, run, keys), _stream(rows, run, keys)
    shares, found = [], []
    everything = all_counted(_WINDOWS, int(rows[2].max()) + 1, keys)
    counted = _counted(rows, everything, run, keys)
    for name, of_users in (("replay", replayed), ("stream", streamed)):
        spent, unlisted = _spent(of_users, mechanism)
        if name == "replay":
            for user, _, _ in counted:
                spent[user] = spent.get(user, 0) + mechanism.count_units
        shares.append(max(spent.values()) / mechanism.purse)
        if unlisted:
            found.append(f"in a {name}, users have weights that are not on the price list, such as {unlisted[0]:,}")
        if shares[-1] > 1:
            found.append(f"in a {name}, a user pays {shares[-1]:.4g} times what is in its purse")
    added_up = run.hits_per_user > 0 or _sums(rows, run, keys) == _added_up(replayed)
    if _changed(replayed, _replay(fewer, run, keys)) or not added_up:
        found.append("in a replay, weights of a user change with the events of others")
    if is_refused and not found:
        found.append("in a stream, what users have left is refused where it is read again")
    if _changed(streamed, _stream(fewer, run, keys)[0]):
        found.append("in a stream, weights of a user change with the events of others")
    if run.counts_for:
        found += _count_violations(counted, _counts(rows, everything, run, keys), mechanism.counts_per_user)
    return PaymentAudit(len(np.unique(rows[0])), len(rows[0]), shares[0], shares[1], tuple(found))


def _rows(most_looks: int) -> Rows:
    """Distinct pairs of random users: most with a few looks in some windows, four with more than a purse pays for."""
    users, windows, items = [], [], []

    def add(user: int, window: int, of_window: npt.NDArray[np.int64]) -> None:
        users.append(np.full(len(of_window), user))
        windows.append(np.full(len(of_window), window))
        items.append(of_window)

    for user in range(1, _USERS + 1):
        for window in range(_WINDOWS):
            number = secrets.randbelow(_MOST_PAIRS + 1) * (user % 3 > 0 or window == secrets.randbelow(_WINDOWS))
            add(user, window, np.array(sorted({secrets.randbelow(_ITEMS) for _ in range(number)}), dtype=np.int64))
    many = np.arange(2 * most_looks)
    for user, window in enumerate((0, _WINDOWS // 2, _WINDOWS - 1), start=_USERS + 1):
        add(user, window, many)  # twice as many as its purse pays for, at once
        for later in range(window + 1, _WINDOWS):
            add(user, later, np.arange(secrets.randbelow(_ITEMS)))
    for window in range(_WINDOWS):  # a part of them in each window
        add(_USERS + 4, window, np.arange(1 + most_looks // 2))
    return np.concatenate(users).astype(np.uint64), np.concatenate(windows), np.concatenate(items)


def _pairs(rows: Rows, keys: StreamKeys) -> UserPairs:
    return pairs_of_numbers(*rows, keys)


def _replay(rows: Rows, settings: NamingSettings, keys: StreamKeys) -> Weights:
    """Each user by itself: then the sums are its weights. Where users pay for hits there are holders instead."""
    found: Weights = {}
    if settings.hits_per_user:
        cells = weigh_replay_with_hits(_pairs(rows, keys), settings, keys)
        assert cells.terms is not None
        windows, items = np.repeat(cells.windows, cells.counts), np.repeat(cells.items, cells.counts)
        return _weights(cells.holders, windows, numbers_of(cells.table, items), cells.terms)
    for user in np.unique(rows[0]).tolist():
        own = rows[0] == user
        for (window, item), weight in _sums((rows[0][own], rows[1][own], rows[2][own]), settings, keys).items():
            found[user, window, item] = Paid(weight, False)
    return found


def _weights(
    users: npt.NDArray[np.uint64],
    windows: npt.NDArray[np.int64],
    items: npt.NDArray[np.int64],
    terms: npt.NDArray[np.int64],
) -> Weights:
    at = zip(users.tolist(), windows.tolist(), items.tolist(), strict=True)
    paid = zip(weights_of(terms).tolist(), pays_hits_of(terms).tolist(), strict=True)
    return {place: Paid(*each) for place, each in zip(at, paid, strict=True) if each[0]}


def _sums(rows: Rows, settings: NamingSettings, keys: StreamKeys) -> dict[tuple[int, int], int]:
    return _by_cell(weigh_replay(_pairs(rows, keys), settings, keys))


def _counted(
    rows: Rows, everything: NamedItems, settings: NamingSettings, keys: StreamKeys
) -> list[tuple[int, int, int]]:
    """User, window and item of each pair that counts, each user by itself; more than once if it adds more than 1."""
    found = []
    for user in np.unique(rows[0]).tolist() if settings.counts_for else ():
        own = rows[0] == user
        counts = _counts((rows[0][own], rows[1][own], rows[2][own]), everything, settings, keys)
        found += [(user, *cell) for cell, number in counts.items() for _ in range(number)]
    return found


def _count_violations(
    counted: list[tuple[int, int, int]], everybody: dict[tuple[int, int], int], counts_per_user: int
) -> Iterator[str]:
    """counted: each user by itself. everybody: all users together, by window and item."""
    most = max(collections.Counter(user for user, _, _ in counted).values(), default=0)
    if most > counts_per_user:
        yield f"in a replay, {most:,} pairs of a user are counted, but {counts_per_user:,} are paid"
    if everybody != collections.Counter((window, item) for _, window, item in counted):
        yield "in a replay, who is counted changes with the events of others"


def _counts(
    rows: Rows, everything: NamedItems, settings: NamingSettings, keys: StreamKeys
) -> dict[tuple[int, int], int]:
    return _by_cell(named_counts.count_holders(item_pairs_of_numbers(*rows, keys), everything, settings, keys))


def _by_cell(sums: ItemSums) -> dict[tuple[int, int], int]:
    numbers = numbers_of(sums.table, sums.items).tolist()
    return dict(zip(zip(sums.windows.tolist(), numbers, strict=True), sums.sums.tolist(), strict=True))


def _added_up(weights: Weights) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for (_, window, item), paid in weights.items():
        found[window, item] = found.get((window, item), 0) + paid.weight
    return found


def _stream(rows: Rows, settings: NamingSettings, keys: StreamKeys) -> tuple[Weights, bool]:
    """And whether what was stored between two windows was refused."""
    carried = Carried(settings, keys)
    found: Weights = {}
    for window in range(_WINDOWS):
        here = rows[1] == window
        if here.any():
            pairs = _pairs((rows[0][here], rows[1][here], rows[2][here]), keys)
            carried.over_to(window, pairs.users)
            purses = carried.purses
            if settings.hits_per_user:
                terms = purses.spend_on_lists(pairs, window)
            else:
                weights = purses.spend(pairs, window)
                terms = terms_of(weights, np.zeros(len(weights), dtype=np.bool_))
            users, numbers = pairs.users[pairs.user_codes()], numbers_of(pairs.table, pairs.items)
            found |= _weights(users, pairs.windows, numbers, terms)
    return found, carried.is_refused


def _spent(weights: Weights, mechanism: NamesMechanism) -> tuple[dict[int, int], list[int]]:
    """Units by user, at the prices of the lists, with all its hits if it pays for any; and weights that are on none."""
    units = {
        Paid(weight, listed.hits > 0): price
        for listed in mechanism.lists
        for weight, price in zip(listed.weights, listed.units, strict=True)
    }
    spent: dict[int, int] = {}
    unlisted = []
    pays_hits = {user for (user, _, _), paid in weights.items() if paid.pays_hits}
    for (user, _, _), paid in weights.items():
        if paid not in units:
            unlisted.append(paid.weight)
        spent[user] = spent.get(user, 0) + units.get(paid, mechanism.purse + 1)
    if mechanism.hits_list is not None:
        for user in pays_hits:
            spent[user] += mechanism.hits_list.hits * mechanism.hits_list.hit_units
    return spent, unlisted


def _changed(weights: Weights, fewer: Weights) -> bool:
    users = {user for user, _, _ in fewer}
    return {at: weight for at, weight in weights.items() if at[0] in users} != fewer
