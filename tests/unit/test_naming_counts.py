"""Counts of the largest named items: which, of whom, with which noise, and that a purse pays for them."""

import functools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.monitor.followed_items import KnownItems
from dp_transforms.monitor.item_namer import ItemNamer
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.named_counts import count_holders, counted_rows, draw_counts
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.pairs import ItemPairs, item_pairs_of_events
from dp_transforms.monitor.replay_weights import choose_replay, weigh_replay
from dp_transforms.plan.plan import Plan
from tests.helpers.calibrated_plans import HOURLY
from tests.helpers.core_runs import MICROS, START
from tests.helpers.naming_oracle import oracle_counts, oracle_names, replay_weights
from tests.helpers.naming_runs import naming_settings
from tests.helpers.small_runs import SECRET, batches_of, settings_of

WINDOWS = 6


@functools.cache
def chosen_settings(counts_for=2, counts_per_user=3):
    return naming_settings(WINDOWS, counts_for=counts_for, counts_per_user=counts_per_user)


def log_of(seed, users=30, events=300):
    source = random.Random(seed)
    return [
        (
            f"user-{source.randrange(users)}",
            "abcdef"[min(5, int(source.expovariate(0.6)))],
            source.randrange(START * MICROS, (START + 10 * WINDOWS) * MICROS),
        )
        for _ in range(events)
    ]


def pairs_by_shard(log, chosen, keys, shards):
    found = {}
    for batch in batches_of(log, 70):
        for shard, pairs in item_pairs_of_events(batch, chosen.schedule, keys, shards):
            found.setdefault(shard, []).append(pairs)
    return [ItemPairs.merge(parts) for parts in found.values()]


def counted_in_shards(log, chosen, shards):
    """{(window, item): count} through the columns, users and items cut into shards."""
    keys = chosen.stream_keys(SECRET)
    users = pairs_by_shard(log, chosen, keys, shards)
    sums = ItemSums.merge([weigh_replay(pairs, chosen, keys) for pairs in users])
    parts = [
        ItemNamer(chosen, keys).name_windows(part, KnownItems.none(), 0, WINDOWS)
        for _, part in sums.shard_by_item(shards)
    ]
    named = NamedItems.merge(parts)
    counted = named.select(counted_rows(named, chosen.counts.items))
    holders = ItemSums.merge(
        [
            ItemSums.from_bytes(part.to_bytes())
            for pairs in users
            for _, part in count_holders(pairs, counted, chosen.counts.per_user, keys).by_slab(2)
        ]
    )
    labels = counted.table.labels.to_pylist()
    counts = draw_counts(counted, holders, chosen.counts.noise, keys)
    return {
        (window, labels[item]): count
        for window, item, count in zip(counted.windows.tolist(), counted.items.tolist(), counts.tolist(), strict=True)
    }


@pytest.mark.parametrize("counts_per_user", [1, 3, 50])
@pytest.mark.parametrize("shards", [1, 3])
def test_columns_count_what_the_oracle_counts(counts_per_user, shards):
    chosen = naming_settings(WINDOWS, counts_for=2, counts_per_user=min(counts_per_user, 7))
    keys = chosen.stream_keys(SECRET)
    some = 0
    for seed in range(8):
        log = log_of(seed)
        named = oracle_names(replay_weights(log, chosen, keys), chosen, keys)
        expected = oracle_counts(log, named, chosen, keys)
        assert counted_in_shards(log, chosen, shards) == expected
        some += len(expected)
    assert some > 20


def test_the_largest_of_a_window_are_counted_in_the_order_of_a_report():
    source = np.random.default_rng(5)
    chosen = chosen_settings()
    keys = chosen.stream_keys(SECRET)
    log = [(f"u{number}", label, START * MICROS) for label in ("b", "é", "z", "aa", "~") for number in range(40)]
    (pairs,) = pairs_by_shard(log, chosen, keys, 1)
    table = pairs.table
    rows = [(window, item) for window in range(WINDOWS) for item in range(len(table))]
    windows, items = np.array(rows).T
    named = NamedItems(windows, items, source.integers(1, 3, len(rows)), source.integers(0, 2, len(rows)), table)
    rows_counted = counted_rows(named, 3)
    reports = dict(named.window_reports(chosen, chosen.stream))
    labels = table.labels.to_pylist()
    for window in range(WINDOWS):
        counted = {labels[named.items[row]] for row in rows_counted if named.windows[row] == window}
        assert counted == {hitter.item for hitter in reports[window].heavy_hitters[:3]}
    assert len(counted_rows(named, 100)) == len(named)
    assert len(counted_rows(NamedItems.none(), 3)) == 0


@settings(max_examples=60, deadline=None)
@given(
    log=st.lists(
        st.tuples(st.sampled_from(["x", "y", "z"]), st.sampled_from("abcdefgh"), st.integers(0, 10 * WINDOWS - 1)),
        min_size=1,
        max_size=150,
    ),
    counts_per_user=st.integers(1, 7),
)
def test_a_purse_pays_for_the_looks_and_the_counts_of_each_user_whatever_is_named(log, counts_per_user):
    chosen = chosen_settings(8, counts_per_user)
    keys = chosen.stream_keys(SECRET)
    units = dict(zip(chosen.looks.weights, chosen.looks.units, strict=True))
    for name in "xyz":
        own = [(user, item, (START + at) * MICROS) for user, item, at in log if user == name]
        if not own:
            continue
        (pairs,) = pairs_by_shard(own, chosen, keys, 1)
        spent = sum(units[weight] for weight in weigh_replay(pairs, chosen, keys).sums.tolist())
        everything = NamedItems(
            *np.array([(w, i, 1, 0) for w in range(WINDOWS) for i in range(len(pairs.table))]).T, pairs.table
        )
        counted = len(count_holders(pairs, everything, chosen.counts.per_user, keys))
        assert counted == min(counts_per_user, len(pairs))
        assert spent + counted * chosen.counts.units <= chosen.looks.purse
        assert spent > 0


def test_whom_a_user_counts_for_does_not_depend_on_others():
    chosen = chosen_settings()
    keys = chosen.stream_keys(SECRET)
    log = log_of(3)
    one = [event for event in log if event[0] == "user-7"]
    (everybody,), (alone,) = pairs_by_shard(log, chosen, keys, 1), pairs_by_shard(one, chosen, keys, 1)
    table = everybody.table
    counted = NamedItems(*np.array([(w, i, 1, 0) for w in range(WINDOWS) for i in range(len(table))]).T, table)

    def cells(pairs):
        sums = count_holders(pairs, counted, chosen.counts.per_user, keys)
        labels = sums.table.labels.to_pylist()
        rows = zip(sums.windows.tolist(), sums.items.tolist(), sums.sums.tolist(), strict=True)
        return Counter({(window, labels[item]): total for window, item, total in rows})

    rest = pairs_by_shard([event for event in log if event[0] != "user-7"], chosen, keys, 1)
    assert cells(everybody) == cells(alone) + cells(rest[0])


def test_noise_of_counts_is_new_for_other_holders_and_has_the_stated_scale():
    chosen = naming_settings(WINDOWS, counts_for=4000, counts_per_user=5)
    keys = chosen.stream_keys(SECRET)
    labels = [f"item-{number}" for number in range(4000)]
    (pairs,) = pairs_by_shard([("u", label, START * MICROS) for label in labels], chosen, keys, 1)
    order = np.arange(len(pairs.table))
    counted = NamedItems(np.zeros_like(order), order, order + 1, order, pairs.table)
    many = ItemSums(
        np.zeros_like(order), order, np.full(len(order), 50), np.ones((len(order), 2), dtype=np.uint64), pairs.table
    )
    other = ItemSums(many.windows, many.items, many.sums, many.digests * np.uint64(2), pairs.table)
    noise = draw_counts(counted, many, chosen.counts.noise, keys) - 50
    assert np.mean(noise != draw_counts(counted, other, chosen.counts.noise, keys) - 50) > 0.5
    # False alarm below 1e-8 each: 4,000 draws of standard deviation 3 / sqrt(2), with 1/12 for rounding.
    variance = 3**2 / 2 + 1 / 12
    assert abs(noise.mean()) < 6 * (variance / 4000) ** 0.5
    assert abs(noise.var() / variance - 1) < 6 * (2 / 4000) ** 0.5
    nobody = draw_counts(counted, ItemSums.none(), chosen.counts.noise, keys)
    assert nobody.min() == 0
    assert nobody.max() > 3


def test_near_most_looks_users_lose_the_looks_that_counts_cost():
    """The numbers of docs/guarantee.md, "Proposition (counts)", and docs/choose_a_budget.md."""
    chosen = settings_of(Plan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, counts_for=10))
    assert 0.19 < chosen.counts.per_user * chosen.counts.units / chosen.looks.purse < 0.2
    looks = choose_replay(np.array([1, 2405, 2406, 2407, 3000, 10**6]), chosen).looks
    assert looks.tolist() == [1, 2405, 2406, 2406, 2406, 2406]
    assert chosen.looks.most_looks == 3000
