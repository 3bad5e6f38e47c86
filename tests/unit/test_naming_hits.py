"""The columns of `names` with hits, driven the way the DoFns drive them, publish what the oracle publishes: no Beam."""

import dataclasses
import itertools
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp_transforms.mechanisms.release_rule import HitOrAbove
from dp_transforms.monitor.empty_items import EmptyItems
from dp_transforms.monitor.followed_items import KnownItems
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, LookCandidates, MonitorState
from dp_transforms.monitor.item_holders import ItemHolders, pays_hits_of, terms_of, weights_of
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.pairs import UserPairs, pairs_of_events
from dp_transforms.monitor.purses import PurseEntries, Purses
from dp_transforms.monitor.query_noise import query_noise
from dp_transforms.monitor.replay_weights import choose_replay, weigh_replay_with_hits
from dp_transforms.monitor.user_budgets import UserBudgets
from tests.helpers.core_runs import MICROS, START
from tests.helpers.hits_oracle import oracle_hits, replay_holders, stream_holders
from tests.helpers.naming_logs import EVENT, WINDOWS, busy_log, domain_table, shuffled
from tests.helpers.naming_oracle import reports_of
from tests.helpers.naming_runs import naming_settings, with_hits
from tests.helpers.small_runs import SECRET, batches_of


def pairs_by_shard(log, chosen, keys, shards, batch_size, domain, windows_per_slab):
    """{(slab, shard of users): pairs}, without events outside of the domain."""
    found = {}
    table = domain_table(domain, keys)
    for batch in batches_of(log, batch_size):
        if table is not None:
            batch = batch.where(table.contains(keys.hash_items(batch.item.dictionary))[batch.item.indices.to_numpy()])
        parts = pairs_of_events(batch, chosen.schedule, keys, windows_per_slab=windows_per_slab, shards=shards)
        for slab, shard, pairs in parts:
            found.setdefault((slab, shard), []).append(UserPairs.from_bytes(pairs.to_bytes()))
    return {key: UserPairs.merge(parts) for key, parts in sorted(found.items())}


def run_hits(log, chosen, *, shards=1, batch_size=1000, cuts=(), order=None, domain=(), most_bytes=10**6, stream=False):
    """The path of an event. cuts: windows before which each step starts anew, from what it has stored.

    Returns the reports, and the hits of users by their keyed hash.
    """
    keys, order, horizon = chosen.stream_keys(SECRET), order or random.Random(0), chosen.schedule.horizon
    by_items = {shard: [] for shard in range(shards)}
    if domain:
        empty_items = EmptyItems(domain_table(domain, keys), query_noise(chosen, keys).empty_item_tail(), keys)
        for shard in range(shards):
            by_items[shard].append(empty_items.without_holders(0, horizon, shard, shards).to_bytes())
    purses = {shard: Purses(chosen, keys) for shard in range(shards)}
    per_slab = 1 if stream else horizon
    for (window, shard), pairs in pairs_by_shard(log, chosen, keys, shards, batch_size, domain, per_slab).items():
        if stream:
            held = ItemHolders.of_terms(pairs, purses[shard].spend_on_lists(pairs, window))
            if window in cuts:
                purses[shard] = Purses(chosen, keys, shuffled(purses[shard].rewritten_cells(), order))
        else:
            held = weigh_replay_with_hits(pairs, chosen, keys)
        for at, part in held.shard_by_item(shards):
            by_items[at] += part.messages(most_bytes)
    candidates, bounds = [], [0, *sorted({cut for cut in cuts if 0 < cut < horizon}), horizon]
    for blobs in by_items.values():
        parts = [ItemHolders.from_bytes(blob) for blob in shuffled(blobs, order)]
        cells = ItemHolders.merge(parts)
        finder, passed = LookCandidates(chosen, keys), KnownItems.none()
        for first, end in itertools.pairwise(bounds):
            low, high = np.searchsorted(cells.windows, [first, end])
            found = finder.find(cells.select_range(slice(low, high)), passed, first, end)
            passed = KnownItems.merge(
                [
                    KnownItems.from_bytes(cell)
                    for cell in shuffled(passed.after(found, end, chosen.known_for).to_cells(), order)
                ]
            )
            candidates += found.messages(most_bytes)
    merged = ItemHolders.of_messages(candidates)
    monitor, state, reports = HeavyHitterMonitor(chosen, keys), MonitorState(), []
    for first, end in itertools.pairwise(range(horizon + 1) if stream else bounds):
        low, high = np.searchsorted(merged.windows, [first, end])
        here = merged.select_range(slice(low, high))
        if stream and low < high:
            report, _ = monitor.close_window(first, here, state)
            reports += [] if report is None else [report]
        elif low < high:
            closed = monitor.close_windows([part for _, part in here.by_slab(3)], state)
            reports += [report for _, report in closed]
        if end in bounds:
            cells_after = state.known.to_cells()
            known = KnownItems.of_messages(shuffled(cells_after, order))
            state = MonitorState(state.next_window, state.hit_bound, UserBudgets(state.budgets.to_blobs()), known)
    return reports, state.budgets


def oracle_of(log, chosen, domain=(), stream=False):
    keys = chosen.stream_keys(SECRET)
    log = [event for event in log if not domain or event[1] in domain]
    return oracle_hits((stream_holders if stream else replay_holders)(log, chosen, keys), chosen, keys, domain)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    log=st.lists(EVENT, min_size=0, max_size=120),
    domain=st.sampled_from([(), ("a",), ("c", "b", "nobody's", "0", "", "é"), tuple("abcdefghij")]),
    most_looks=st.sampled_from([2, 3, 8]),
    hits=st.integers(1, 3),
    threshold=st.integers(1, 150),
    known_share=st.floats(0, 1),
    forget_after=st.integers(0, 9),
    spacing=st.integers(1, 60),
    sliding=st.sampled_from([1, 3]),
    shards=st.integers(1, 7),
    batch_size=st.integers(1, 130),
    cuts=st.lists(st.integers(0, 7)),
    most_bytes=st.sampled_from([1, 200, 10**6]),
    stream=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_columns_equal_the_oracle(
    log, domain, most_looks, hits, threshold, known_share, forget_after, spacing, sliding, shards, batch_size, cuts,
    most_bytes, stream, order,
):  # fmt: skip
    looks_alone = naming_settings(
        WINDOWS,
        most_looks=most_looks,
        threshold=threshold,
        known_threshold=1 + int((threshold - 1) * known_share),
        forget_after=forget_after,
        spacing=spacing,
        sliding=sliding,
        domain=domain,
    )
    chosen = with_hits(looks_alone, hits, hits_from=min(4, most_looks))
    cut = {"shards": shards, "batch_size": batch_size, "cuts": cuts, "order": order, "most_bytes": most_bytes}
    reports, _ = run_hits(log, chosen, domain=domain, stream=stream, **cut)
    assert reports == reports_of(oracle_of(log, chosen, domain, stream).named, chosen)


def mostly_idle(source):
    """The number of a user; most of them do little."""
    return min(source.randrange(100), source.randrange(100))


def busy_settings(seed, forget_after=3):
    looks_alone = naming_settings(
        40,
        most_looks=12,
        threshold=60,
        known_threshold=20,
        forget_after=forget_after,
        spacing=120,
        run_id=f"run {seed}",
    )
    return with_hits(looks_alone, 1 + seed % 2, cheaper=0.3)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("seed", "forget_after"), enumerate([0, 1, 5, 40]))
def test_columns_equal_the_oracle_on_busy_logs(seed, forget_after, stream):
    chosen, log = busy_settings(seed, forget_after), busy_log(seed, 40, mostly_idle)
    reports, budgets = run_hits(log, chosen, shards=3, batch_size=70, cuts=range(seed, 40, 7), stream=stream)
    expected = oracle_of(log, chosen, stream=stream)
    assert reports == reports_of(expected.named, chosen)
    keys = chosen.stream_keys(SECRET)
    users = keys.hash_users(pa.array(sorted(expected.hits), pa.string()))[:, 0]
    assert budgets.hits(users).tolist() == [expected.hits[user] for user in sorted(expected.hits)]
    assert len(budgets) == len(expected.hits)


@pytest.mark.parametrize("stream", [False, True])
def test_busy_logs_exercise_what_they_are_for(stream):
    """Without both lists, excluded users, known items that nobody holds and both levels the equalities say little."""
    named, kept_out, idle, excluded, lists = [], 0, 0, 0, Counter()
    for seed in range(3):
        chosen, log = busy_settings(seed, 1 + seed), busy_log(seed, 40, mostly_idle)
        keys = chosen.stream_keys(SECRET)
        holders = (stream_holders if stream else replay_holders)(log, chosen, keys)
        lists.update(pays for of_cell in holders.values() for _, pays in of_cell.values())
        found = oracle_hits(holders, chosen, keys)
        named += found.named
        kept_out += found.kept_out
        idle += found.idle
        excluded += sum(hits == chosen.hits_per_user for hits in found.hits.values())
    assert min(lists[True], lists[False]) > 100
    assert kept_out > 100 < excluded
    assert idle > 0
    assert sum(entry.nobody for entry in named) > 10
    assert all(entry.was_known for entry in named if entry.nobody)
    assert sum(entry.was_known and not entry.nobody for entry in named) > 50
    assert Counter(entry.level for entry in named).keys() == {1, 2}
    assert len({entry.at_least_users for entry in named}) > 2


# --- What users pay


def test_a_replay_takes_the_list_with_the_larger_weight_and_never_overdraws():
    chosen = with_hits(naming_settings(WINDOWS, most_looks=40), 3, cheaper=0.2)
    pairs = np.arange(1, 100)
    looks, weights, pays_hits = choose_replay(pairs, chosen)
    units = (
        dict(zip(chosen.looks.weights, chosen.looks.units, strict=True)),
        dict(zip(chosen.hits.weights, chosen.hits.look_units, strict=True)),
    )
    columns = (column.tolist() for column in (pairs, looks, weights, pays_hits))
    for number, count, weight, on_hits_list in zip(*columns, strict=True):
        assert count == min(number, chosen.looks.most_looks)
        left = chosen.looks.purse - on_hits_list * chosen.hits_per_user * chosen.hits.units
        assert count * units[on_hits_list][weight] <= left
        best = [
            max((w for w, cost in listed.items() if count * cost <= purse), default=0)
            for listed, purse in zip(
                units, (chosen.looks.purse, chosen.looks.purse - 3 * chosen.hits.units), strict=True
            )
        ]
        assert (weight, on_hits_list) == (max(best), best[1] > best[0])
    assert not pays_hits[0]
    assert 5 < pays_hits.sum() < 95


@pytest.mark.parametrize("seed", range(4))
def test_looks_and_hits_of_a_stream_never_cost_more_than_a_purse(seed):
    """Random users and windows; also with purses that are stored and read again, in any order and twice."""
    source = np.random.default_rng(seed)
    chosen = with_hits(naming_settings(60, most_looks=30, run_id=f"r{seed}"), 2, cheaper=0.2, hits_from=7)
    keys, order = chosen.stream_keys(SECRET), random.Random(seed)
    table = ItemTable.of_labels(pa.array([f"i{number}" for number in range(40)], pa.string()), keys.hash_items)[0]
    units = (
        dict(zip(chosen.looks.weights, chosen.looks.units, strict=True)),
        dict(zip(chosen.hits.weights, chosen.hits.look_units, strict=True)),
    )
    spent, joined, store = Counter(), {}, Purses(chosen, keys)
    for window in range(60):
        users = np.flatnonzero(source.random(50) < np.linspace(0.01, 1, 50)).astype(np.uint64)
        sizes = source.integers(1, 6, len(users))
        items = np.concatenate([np.sort(source.choice(40, size, replace=False)) for size in sizes] or [users])
        codes = np.repeat(np.arange(len(users)), sizes)
        pairs = UserPairs(users, codes, np.full(len(items), window), items.astype(np.int64), table)
        terms = store.spend_on_lists(pairs, window)
        for user, weight, pays in zip(
            users[pairs.codes].tolist(), weights_of(terms).tolist(), pays_hits_of(terms).tolist(), strict=True
        ):
            assert not (user in joined and weight and not pays), "once on the hits list, always there"
            if pays and user not in joined:
                joined[user] = window
                spent[user] += chosen.hits_per_user * chosen.hits.units
            spent[user] += units[pays][weight] if weight else 0
        if window % 7 == 0:
            cells = store.rewritten_cells() * 2
            store = Purses(chosen, keys, shuffled(cells, order))
    assert 0.9 * chosen.looks.purse < max(spent.values()) <= chosen.looks.purse
    assert 5 < len(joined) < 50
    left = {
        user: (left, on_list)
        for cell in store.rewritten_cells()
        for entries in [PurseEntries.from_bytes(cell)]
        for user, left, on_list in zip(entries.users, entries.left, entries.pays_hits, strict=True)
    }
    assert left == {user: (chosen.looks.purse - spent[user], user in joined) for user in spent if spent[user]}


def test_purses_of_a_run_with_hits_are_not_those_of_a_run_without():
    looks_alone = naming_settings(WINDOWS)
    chosen = with_hits(looks_alone)
    keys = chosen.stream_keys(SECRET)
    log = [("u", "a", START * MICROS)]
    pairs = pairs_by_shard(log, chosen, keys, 1, 10, (), 1)[0, 0]
    for one, other in ((looks_alone, chosen), (chosen, looks_alone)):
        purses = Purses(one, keys)
        purses.spend_on_lists(pairs, 0)
        with pytest.raises(ValueError, match="damaged"):
            Purses(other, keys, purses.changed_cells())


# --- Columns


def held_cells(chosen):
    keys = chosen.stream_keys(SECRET)
    pairs = pairs_by_shard(busy_log(1, 40, mostly_idle, events=120), chosen, keys, 1, 1000, (), 40)[0, 0]
    weights = 1 + np.arange(len(pairs)) % 70_000 * 60_000
    return ItemHolders.of_terms(pairs, terms_of(weights, np.arange(len(pairs)) % 3 == 0))


def test_holders_without_a_weight_are_refused():
    cells = held_cells(busy_settings(0))
    for terms in (cells.terms[:-1], np.where(np.arange(len(cells.terms)) == 3, 1, cells.terms)):
        with pytest.raises(ValueError, match="damaged"):
            ItemHolders.from_bytes(dataclasses.replace(cells, terms=terms).to_bytes())
    with pytest.raises(ValueError, match="holders without"):
        ItemHolders.merge([cells, dataclasses.replace(cells, terms=None)])


def test_cells_of_other_windows_and_cells_without_holders_are_refused():
    chosen = busy_settings(0)
    finder, cells = LookCandidates(chosen, chosen.stream_keys(SECRET)), held_cells(chosen)
    with pytest.raises(ValueError, match="not windows of the run"):
        finder.find(cells, KnownItems.none(), 0, 41)
    with pytest.raises(ValueError, match="must be of the windows"):
        finder.find(cells, KnownItems.none(), 0, 5)
    empty = ItemHolders.without_holders(cells.windows, cells.items, cells.table)
    with pytest.raises(ValueError, match="known domain"):
        finder.find(empty, KnownItems.none(), 0, 40)


def test_a_look_has_two_levels_and_the_first_one_is_a_hit():
    rule = HitOrAbove(threshold=90, spacing=25, likely_noise=40, largest_weight=7)
    assert rule(89) is None
    for noisy in (90, 114):
        assert rule(noisy) == (None, None, True, 1, 8)  # 50 / 7, rounded up
    for noisy in (115, 10_000):
        assert rule(noisy) == (None, None, False, 2, 11)
    assert HitOrAbove(30, 25, 40, 7)(30).at_least_users == 0
    assert [HitOrAbove(at, 25, 40, 7)(at).at_least_users for at in (68, 69)] == [0, 5], "fewer than 5 are not stated"
