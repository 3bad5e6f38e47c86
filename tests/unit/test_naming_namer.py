"""What is named by sums: weights of a replay, known items, levels and sizes."""

import time

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.monitor.followed_items import KnownItems
from dp_transforms.monitor.item_namer import ItemNamer
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.pairs import UserPairs, keep_by_hash
from dp_transforms.monitor.replay_weights import weigh_replay
from tests.helpers.naming_runs import naming_settings, short_price_list, units_of
from tests.helpers.small_runs import SECRET
from tests.helpers.trials import changed

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


# --- Sums, known items and named items as columns: merging, cutting, packing, and bytes that are damaged.


def table_of(labels):
    return ItemTable.of_labels(pa.array(labels, pa.string()), KEYS.hash_items)


# --- Known items


def named_of(*cells):
    """(window, label) as named items of level 1."""
    table, code = table_of([label for _, label in cells])
    windows = np.array([window for window, _ in cells], dtype=np.int64)
    order = np.lexsort((code, windows))
    ones = np.ones(len(cells), dtype=np.int64)
    return NamedItems(windows[order], code[order], ones, ones, table)


def known_of(known):
    return dict(zip(known.table.labels.to_pylist(), known.last_named.tolist(), strict=True))


def test_known_is_what_was_named_in_the_last_windows():
    known = KnownItems.none().after(named_of((2, "a"), (4, "a"), (3, "b"), (0, "c")), 5, 2)
    assert known_of(known) == {"a": 4, "b": 3}
    assert known_of(known.after(NamedItems.none(), 6, 2)) == {"a": 4}
    assert known_of(known.after(named_of((5, "b")), 6, 2)) == {"a": 4, "b": 5}
    assert known_of(known.after(named_of((5, "b")), 8, 2)) == {}
    assert known_of(known.after(named_of((5, "b")), 6, 0)) == {}
    assert known_of(known.after(named_of((5, "d")), 6, 100)) == {"a": 4, "b": 3, "d": 5}


def test_known_items_fit_in_cells_under_10_mb():
    labels = [f"{number:07d}" + "x" * 60 for number in range(150_000)]
    table, code = table_of(labels)
    last_named = np.empty(len(labels), dtype=np.int64)
    last_named[code] = np.arange(len(labels))
    cells = KnownItems(table, last_named).to_cells()
    assert len(cells) > 1
    assert max(map(len, cells)) < 10_000_000
    again = KnownItems.merge([KnownItems.from_bytes(cell) for cell in reversed(cells)])
    assert known_of(again) == dict(zip(labels, range(len(labels)), strict=True))
    assert (np.diff(again.table.hashes[:, 0].astype(object)) >= 0).all()


# --- Named items


def test_reports_are_in_order_of_size_and_say_nothing_of_what_is_left():
    chosen = naming_settings()
    table, code = table_of(["b", "a", "c"])
    named = NamedItems(np.full(3, 4), np.arange(3), np.array([1, 1, 2]), np.array([3, 3, 9])[np.argsort(code)], table)
    ((window, report),) = named.window_reports(chosen, chosen.stream)
    assert window == 4
    assert [hitter.item for hitter in report.heavy_hitters] == ["c", "a", "b"]
    assert (report.window_start, report.window_end) == (
        chosen.schedule.window_start_micros(4),
        chosen.schedule.window_end_micros(4),
    )
    assert report.epsilon_spent == report.epsilon_total == chosen.epsilon
    assert all(hitter.zone is None and hitter.noisy_count is None for hitter in report.heavy_hitters)
    with pytest.raises(ValueError, match="damaged"):
        NamedItems.from_bytes(
            NamedItems(named.windows, named.items + 1, named.levels, named.at_least_users, table).to_bytes()
        )


# --- The namer at its edges: levels and sizes by hand, windows out of range, many windows, huge sums.


def sums_of(cells, keys):
    """``[(window, label, sum)]`` as columns, each cell with a digest of its own."""
    table, code = ItemTable.of_labels(pa.array([label for _, label, _ in cells], pa.string()), keys.hash_items)
    windows, totals = (np.array([cell[column] for cell in cells], dtype=np.int64) for column in (0, 2))
    order = np.lexsort((code, windows))
    digests = np.stack([np.arange(len(cells)), totals], axis=1).astype(np.uint64)
    return ItemSums(windows[order], code[order], totals[order], digests[order], table)


def names_of(cells, chosen, first=0, end=None):
    keys = chosen.stream_keys(SECRET)
    end = chosen.schedule.horizon if end is None else end
    return ItemNamer(chosen, keys).name_windows(sums_of(cells, keys), KnownItems.none(), first, end)


def test_levels_and_sizes_of_sums_far_above_the_noise():
    """|Z| <= 236: a sum of 10,000 lies between levels that are known beforehand."""
    chosen = naming_settings(3, threshold=1000, known_threshold=300, spacing=600, likely_noise=40)
    named = names_of([(0, "a", 10_000), (1, "a", 10_000), (2, "b", 5 * 10**11)], chosen)
    assert named.windows.tolist() == [0, 1, 2]
    new, known, huge = named.levels.tolist()
    assert 1 + (10_000 - 236 - 1000) // 600 <= new <= 1 + (10_000 + 236 - 1000) // 600
    assert 1 + (10_000 - 236 - 300) // 600 <= known <= 1 + (10_000 + 236 - 300) // 600
    assert abs(huge - 5 * 10**11 / 600) < 3
    largest = chosen.looks.weights[-1]
    for level, threshold, users in zip(
        (new, known, huge), (1000, 300, 1000), named.at_least_users.tolist(), strict=True
    ):
        assert users == -(-(threshold + (level - 1) * 600 - 40) // largest)


def test_a_size_of_fewer_than_5_users_is_not_stated():
    chosen = naming_settings(1, threshold=1000, known_threshold=300, spacing=600)
    largest = chosen.looks.weights[-1]
    for likely_noise, size in ((50_000, 0), (1000 - 4 * largest, 0), (999 - 4 * largest, 5)):
        chosen = changed(chosen, likely_noise=likely_noise)
        assert names_of([(0, "a", 1300)], chosen).at_least_users.tolist() == [size]


def test_two_items_whose_hashes_share_a_word_are_two_items():
    """A tie of the high word is settled by the low one, in every order and in known items."""
    chosen = naming_settings(3, threshold=500, known_threshold=300)
    keys = chosen.stream_keys(SECRET)
    hashes = np.array([[5, 1], [5, 9], [6, 1]], dtype=np.uint64)
    table = ItemTable.with_labels(hashes, pa.array(["low", "high", "other"]))
    cells = [(0, 0), (0, 2), (1, 1), (2, 0), (2, 1)]
    windows, items = np.array(cells).T
    totals = np.full(len(cells), 10_000)
    sums = ItemSums(windows, items, totals, np.ones((len(cells), 2), dtype=np.uint64), table)
    namer = ItemNamer(chosen, keys)
    whole = namer.name_windows(sums, KnownItems.none(), 0, 3)
    labels = whole.table.labels.to_pylist()
    found = list(zip(whole.windows.tolist(), (labels[item] for item in whole.items), strict=True))
    assert found == [(0, "low"), (0, "other"), (1, "high"), (2, "low"), (2, "high")]
    first = namer.name_windows(sums.select(slice(0, 3)), KnownItems.none(), 0, 2)
    known = KnownItems.none().after(first, 2, chosen.known_for)
    assert known.table.labels.to_pylist() == ["low", "high", "other"]
    again = KnownItems.merge([KnownItems.from_bytes(cell) for cell in known.to_cells()[::-1]])
    second = namer.name_windows(sums.select(slice(3, 5)), again, 2, 3)
    assert second.levels.tolist() == whole.levels[3:].tolist()


@pytest.mark.parametrize(("first", "end"), [(-1, 2), (0, 7), (2, 2), (3, 2)])
def test_windows_that_are_not_of_the_run_are_refused(first, end):
    with pytest.raises(ValueError, match="are not windows of the run"):
        names_of([], naming_settings(6), first, end)


@pytest.mark.parametrize("window", [1, 4])
def test_cells_of_other_windows_are_refused(window):
    with pytest.raises(ValueError, match=r"must be of the windows 2 \.\. 3"):
        names_of([(window, "a", 5)], naming_settings(6), 2, 4)


def test_a_cell_without_a_sum_is_refused_in_an_open_domain():
    with pytest.raises(ValueError, match="the domain is open"):
        names_of([(0, "a", 0)], naming_settings(6))


def test_known_items_over_very_many_windows_take_linear_time():
    """10^5 windows in which 20 items are named now and then, and by noise too. Each is drawn for at most once."""
    windows = 100_000
    cells = [(window, f"i{window // 50 % 20}", 10_000) for window in range(0, windows, 50)]
    for forget_after, known_threshold in ((0, 250), (168, 70), (windows, 80)):
        chosen = naming_settings(windows, threshold=250, known_threshold=known_threshold, forget_after=forget_after)
        begun = time.process_time()
        named = names_of(cells, chosen)
        assert time.process_time() - begun < 20
        by_noise = len(named) - len(cells)
        assert by_noise == 0 if not forget_after else by_noise > 10
