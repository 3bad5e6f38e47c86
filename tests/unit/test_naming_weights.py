"""The weights of a replay: what a user pays, which of its pairs count, and that nobody else's events matter."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.pairs import UserPairs, keep_by_hash
from dp_transforms.monitor.replay_weights import weigh_replay
from tests.helpers.naming_runs import naming_settings, short_price_list, units_of
from tests.helpers.small_runs import SECRET

KEYS = naming_settings().stream_keys(SECRET)


def pairs_of(held, keys=KEYS):
    """``{user number: [(window, item)]}`` as columns."""
    if not held:
        return UserPairs.none()
    rows = sorted((user, window, item) for user, of_user in held.items() for window, item in of_user)
    table, code = ItemTable.of_labels(pa.array([item for *_, item in rows], pa.string()), keys.hash_items)
    users, windows = (np.array([row[column] for row in rows], dtype=np.int64) for column in (0, 1))
    parts = [
        UserPairs(users[[at]].astype(np.uint64), np.array([0]), windows[[at]], code[[at]], table)
        for at in range(len(rows))
    ]
    return UserPairs.merge(parts)


def weights_of(held, chosen, user):
    """{(window, item): weight} of one user, seen as the change of the sums that it makes."""
    keys = chosen.stream_keys(SECRET)
    others = {other: of_user for other, of_user in held.items() if other != user}
    with_user, without = (sums_by_label(weigh_replay(pairs_of(part, keys), chosen, keys)) for part in (held, others))
    changed = {cell: total - without.get(cell, 0) for cell, total in with_user.items()}
    return {cell: weight for cell, weight in changed.items() if weight}


def sums_by_label(sums):
    labels = sums.table.labels.to_pylist()
    cells = zip(sums.windows.tolist(), sums.items.tolist(), sums.sums.tolist(), strict=True)
    return {(window, labels[item]): total for window, item, total in cells}


@pytest.mark.parametrize("looks", [1, 2, 3, 5])
def test_a_user_spends_its_purse_evenly_and_never_more(looks):
    chosen = naming_settings(most_looks=5)
    weights = weights_of({7: [(window, "a") for window in range(looks)]}, chosen, 7)
    assert set(weights.values()) == {short_price_list(5).replay_weight(looks)}
    assert sum(units_of(chosen, weights.values())) <= chosen.looks.purse


@pytest.mark.parametrize("pairs", [6, 7, 20])
def test_of_more_pairs_than_a_purse_pays_so_many_count_as_it_pays(pairs):
    chosen = naming_settings(30, most_looks=5)
    weights = weights_of({7: [(window, "a") for window in range(pairs)]}, chosen, 7)
    assert [*weights.values()] == [chosen.looks.weights[0]] * 5
    assert 5 * chosen.looks.units[0] <= chosen.looks.purse < 6 * chosen.looks.units[0]


def test_weights_are_those_of_the_price_list():
    """The largest that can be paid, found by going through all of them."""
    prices = short_price_list(40)
    chosen = naming_settings(most_looks=40)
    assert chosen.looks.most_looks == prices.most_looks
    amounts = [0, 1, *(unit + more for unit in prices.units for more in (-1, 0, 1)), chosen.looks.purse]
    priced = [(0, 0), *zip(prices.weights, prices.units, strict=True)]
    expected = [max(pair for pair in priced if pair[1] <= amount) for amount in amounts]
    weights, units = chosen.looks.listed.largest(np.array(amounts))
    assert list(zip(weights.tolist(), units.tolist(), strict=True)) == expected


def test_which_pairs_are_dropped_is_uniform():
    """5 of 8 pairs are kept: each pair with 5/8, each two with 5/8 * 4/7. Six sigma: false alarm below 1e-6."""
    users = 4000
    held = {user: [(window, item) for window in range(4) for item in "ab"] for user in range(users)}
    pairs = pairs_of({0: held[0]})
    repeated = UserPairs(
        np.arange(users, dtype=np.uint64) * np.uint64(2**40 + 1),
        np.repeat(np.arange(users), 8),
        np.tile(pairs.windows, users),
        np.tile(pairs.items, users),
        pairs.table,
    )
    kept = keep_by_hash(repeated, np.full(users, 5), KEYS).reshape(users, 8)
    assert (kept.sum(axis=1) == 5).all()
    share = 5 / 8
    assert np.abs(kept.mean(axis=0) - share).max() < 6 * np.sqrt(share * (1 - share) / users)
    both = (kept[:, :, None] & kept[:, None, :]).mean(axis=0)[~np.eye(8, dtype=bool)]
    assert np.abs(both - share * 4 / 7).max() < 6 * np.sqrt(share * 4 / 7 / users)


def test_a_limit_of_its_own_for_each_user():
    held = {1: [(0, "a"), (0, "b"), (1, "a")], 2: [(0, "a"), (2, "b")], 3: [(0, "c")]}
    kept = keep_by_hash(pairs_of(held), np.array([1, 0, 4]), KEYS)
    assert [int(part.sum()) for part in np.split(kept, [3, 5])] == [1, 0, 1]
