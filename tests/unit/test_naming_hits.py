"""The columns of `names` with hits, driven the way the DoFns drive them, publish what the oracle publishes: no Beam."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp_transforms.monitoring.counted_messages import holder_messages
from dp_transforms.monitoring.domain_table import DomainTable
from dp_transforms.monitoring.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.known_items import KnownItems
from dp_transforms.monitoring.user_budgets import UserBudgets
from dp_transforms.monitoring.user_pairs import UserPairs, pairs_of_events
from dp_transforms.monitoring.zero_items import draw_zero_items
from dp_transforms.naming.look_candidates import LookCandidates
from dp_transforms.naming.purses import Purses
from dp_transforms.naming.replay_weights import weigh_replay_with_hits
from tests.helpers.core_runs import MICROS, START
from tests.helpers.hits_oracle import oracle_hits, replay_holders, stream_holders
from tests.helpers.naming_oracle import reports_of
from tests.helpers.naming_runs import naming_settings, with_hits
from tests.helpers.small_runs import SECRET, batches_of

WINDOWS = 6
DOMAIN = ("a", "b", "0", "é", *(f"other-{number}" for number in range(30)))


def pairs_by_shard(log, chosen, keys, shards, batch_size, domain, windows_per_slab):
    """{(slab, shard of users): pairs}, without events outside of the domain."""
    found: dict = {}
    table = domain_table(domain, keys)
    for batch in batches_of(log, batch_size):
        if table is not None:
            batch = batch.where(table.contains(keys.hash_items(batch.item.dictionary))[batch.item.indices.to_numpy()])
        parts = pairs_of_events(batch, chosen.schedule, keys, windows_per_slab=windows_per_slab, shards=shards)
        for slab, shard, pairs in parts:
            found.setdefault((slab, shard), []).append(UserPairs.from_bytes(pairs.to_bytes()))
    return {key: UserPairs.merge(parts) for key, parts in sorted(found.items())}


def domain_table(domain, keys):
    return DomainTable.of_labels(pa.array(domain, pa.string()), keys.hash_items) if domain else None


def run_hits(log, chosen, *, shards=1, batch_size=1000, cuts=(), order=None, domain=(), most_bytes=10**6, stream=False):
    """The path of an event. cuts: windows before which each step starts anew, from what it has stored.

    Returns the reports, and the hits of users by their keyed hash.
    """
    keys, order, horizon = chosen.stream_keys(SECRET), order or random.Random(0), chosen.schedule.horizon
    by_items: dict = {shard: [] for shard in range(shards)}
    if domain:
        drawn = draw_zero_items(domain_table(domain, keys), chosen, keys, windows_per_slab=horizon, shards=shards)
        for _, shard, cells in drawn:
            by_items[shard].append(cells.to_bytes())
    purses: dict = {shard: Purses(chosen, keys) for shard in range(shards)}
    per_slab = 1 if stream else horizon
    for (window, shard), pairs in pairs_by_shard(log, chosen, keys, shards, batch_size, domain, per_slab).items():
        if stream:
            held = ItemHolders.of_terms(pairs, purses[shard].spend_on_lists(pairs, window))
            if window in cuts:
                purses[shard] = Purses(chosen, keys, shuffled(purses[shard].rewritten_cells(), order))
        else:
            held = weigh_replay_with_hits(pairs, chosen, keys)
        for at, part in held.shard_by_item(shards):
            by_items[at] += holder_messages(part, most_bytes)
    candidates, bounds = [], [0, *sorted({cut for cut in cuts if 0 < cut < horizon}), horizon]
    for blobs in by_items.values():
        parts = [ItemHolders.from_bytes(blob) for blob in shuffled(blobs, order)]
        cells = ItemHolders.merge(parts or [ItemHolders.none()])
        finder, passed = LookCandidates(chosen, keys), KnownItems.none()
        for first, end in itertools.pairwise(bounds):
            low, high = np.searchsorted(cells.windows, [first, end])
            found = finder.find(cells.select_range(slice(low, high)), passed, first, end)
            passed = KnownItems.from_cells(shuffled(passed.after(found, end, chosen.forget_after).to_cells(), order))
            candidates += holder_messages(found, most_bytes)
    merged = ItemHolders.merge([ItemHolders.from_bytes(blob) for blob in candidates] or [ItemHolders.none()])
    monitor, state, reports = HeavyHitterMonitor(chosen, keys), MonitorState(), []
    for window, rows in merged.by_window() if len(merged) else ():
        report, _ = monitor.close_window(window, merged.select_range(rows), state)
        reports += [] if report is None else [report]
        if window in cuts:
            known = KnownItems.from_cells(shuffled(state.known.to_cells(), order))
            state = MonitorState(state.next_window, state.hit_bound, UserBudgets(state.budgets.to_blobs()), known)
    return reports, state.budgets


def shuffled(entries, order):
    entries = list(entries)
    order.shuffle(entries)
    return entries


def oracle_of(log, chosen, domain=(), stream=False):
    keys = chosen.stream_keys(SECRET)
    log = [event for event in log if not domain or event[1] in domain]
    return oracle_hits((stream_holders if stream else replay_holders)(log, chosen, keys), chosen, keys, domain)


EVENT = st.tuples(
    st.sampled_from([*(f"u{number}" for number in range(9)), "ü☃", "7"]),
    st.sampled_from(["a", "b", "c", "a much longer label of an item, over several blocks", "0", "é"]),
    st.integers(START * MICROS, (START + 10 * WINDOWS) * MICROS - 1),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
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


def busy_log(seed, windows, users=25, items=6, events=600):
    """Skewed items that shift with time; a quarter of the windows has no events; most users do little."""
    source = random.Random(seed)
    quiet = set(source.sample(range(windows), windows // 4))
    log = []
    while len(log) < events:
        window = source.randrange(windows)
        if window in quiet:
            continue
        rank = min(int(source.expovariate(0.8)), items - 1)
        time = (START + 10 * window) * MICROS + source.randrange(10 * MICROS)
        user = min(source.randrange(4 * users), source.randrange(4 * users))
        log.append((f"u{user}", f"i{(rank + window // 9) % items}", time))
    return log


def busy_settings(seed, forget_after=3, spacing=60, **changes):
    looks_alone = naming_settings(
        40,
        most_looks=12,
        threshold=60,
        known_threshold=20,
        forget_after=forget_after,
        spacing=spacing,
        run_id=f"run {seed}",
    )
    return with_hits(looks_alone, 2, cheaper=0.3, **changes)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("forget_after", [0, 1, 5, 40])
@pytest.mark.parametrize("seed", range(3))
def test_columns_equal_the_oracle_on_busy_logs(seed, forget_after, stream):
    chosen, log = busy_settings(seed, forget_after), busy_log(seed, 40)
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
        chosen, log = busy_settings(seed, 1 + seed), busy_log(seed, 40)
        keys = chosen.stream_keys(SECRET)
        holders = (stream_holders if stream else replay_holders)(log, chosen, keys)
        lists.update(pays for of_cell in holders.values() for _, pays in of_cell.values())
        found = oracle_hits(holders, chosen, keys)
        named += found.named
        kept_out += found.kept_out
        idle += found.idle
        excluded += sum(hits == chosen.hits_per_user for hits in found.hits.values())
    assert min(lists[True], lists[False]) > 100
    assert kept_out > 50 < excluded
    assert idle > 0
    assert sum(entry.nobody for entry in named) > 10
    assert all(entry.was_known for entry in named if entry.nobody)
    assert sum(entry.was_known and not entry.nobody for entry in named) > 50
    assert Counter(entry.level for entry in named).keys() == {1, 2}
    assert len({entry.at_least_users for entry in named}) > 2
