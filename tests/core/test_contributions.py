"""Which items users hold in windows, against sets and loops: from events, bounded, by user and by item."""

import itertools
import sys
import tracemalloc
from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from dp_transforms.core.contributions import Contributions, bound_contributions, keep_by_hash
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.pack_contributions import MergeContributions, contributions_of_events, rows_of_events
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.small_runs import MICROS, batch_of

KEYS = StreamKeys(bytes(range(32)), run_id="r", plan_fingerprint="p", stream="s", threshold=5)
FIXED = WindowSchedule(100, 160, 10, 10)
SLIDING = WindowSchedule(100, 157, 30, 10)
EDGES = [-(2**63), 2**63 - 1, *(second * MICROS - early for second in (100, 157, 160) for early in (1, 0))]
users = st.sampled_from([f"user {number}" for number in range(8)])
items = st.sampled_from([*(f"item {number}" for number in range(6)), "é", "a" * 50])
times = st.one_of(st.sampled_from(EDGES), st.integers(95 * MICROS, 165 * MICROS))
events_strategy = st.lists(st.tuples(users, items, times), max_size=60)


def user_hash(user):
    return int(KEYS.hash_users(pa.array([user]))[0, 0])


def item_hash(item):
    high, low = KEYS.hash_items(pa.array([item]))[0]
    return (int(high) << 64) | int(low)


def oracle_rows(events, schedule):
    """Every (user, window, item): by trying all windows for each event."""
    found = set()
    for user, item, time in events:
        if not schedule.start_seconds * MICROS <= time < schedule.end_seconds * MICROS:
            continue
        for window in range(schedule.horizon):
            if schedule.window_start_micros(window) <= time < schedule.window_end_micros(window):
                found.add((user_hash(user), window, item))
    return found


def checked_rows(pairs):
    """The rows, in order, of users and items that have one."""
    Contributions.from_bytes(pairs.to_bytes())  # which checks the order
    labels, ids = pairs.table.labels.to_pylist(), pairs.users.tolist()
    assert (pairs.counts > 0).all(), "users without a row are dropped"
    assert set(pairs.items.tolist()) == set(range(len(labels))), "items that no row names are dropped"
    rows = zip(pairs.codes.tolist(), pairs.windows.tolist(), pairs.items.tolist(), strict=True)
    return {(ids[code], window, labels[item]) for code, window, item in rows}


def pairs_by_group(events, schedule, windows_per_range=1, shards=1):
    parts = [
        *contributions_of_events(batch_of(events), schedule, KEYS, windows_per_range=windows_per_range, shards=shards)
    ]
    groups = {(window_range, shard): pairs for window_range, shard, pairs in parts}
    assert len(groups) == len(parts), "each group comes once"
    return groups


def all_pairs(events, schedule):
    """All of them in one part."""
    return pairs_by_group(events, schedule, windows_per_range=1000).get((0, 0)) or Contributions.none()


@given(events_strategy, st.sampled_from([FIXED, SLIDING]), st.integers(1, 4), st.integers(1, 3))
@example([("u", "i", time) for time in EDGES], SLIDING, 2, 2)
def test_pairs_of_events(events, schedule, windows_per_range, shards):
    groups = pairs_by_group(events, schedule, windows_per_range, shards)
    found = set()
    for (window_range, shard), pairs in groups.items():
        rows = checked_rows(pairs)
        assert rows
        assert all(window // windows_per_range == window_range and user % shards == shard for user, window, _ in rows)
        assert not rows & found
        found |= rows
    assert found == oracle_rows(events, schedule)


@given(events_strategy, st.sampled_from([FIXED, SLIDING]), st.integers(1, 9), st.integers(0, 9))
@example([(user, "i", 130 * MICROS) for user in "uvw"], SLIDING, 2, 0)
@example([("u", "i", second * MICROS) for second in (100, 100, 156)], SLIDING, 2, 0)
def test_rows_come_in_parts_of_windows(events, schedule, rows_at_once, first_open):
    """An event in a thousand windows is never a thousand rows at once: few follow those of the first window."""
    batch, oracle = batch_of(events), oracle_rows(events, schedule)
    parts = list(rows_of_events(batch, schedule, KEYS, np.full(len(batch), first_open), 7, rows_at_once))
    windows = [part.windows for part in parts]
    assert all(len(each) for each in windows)
    if schedule is SLIDING:
        assert all(int((each > each.min()).sum()) < rows_at_once for each in windows)
        assert all(one.max() < two.min() for one, two in itertools.pairwise(windows))
    found = {row for part in parts for row in checked_rows(part.in_windows(part.windows).select(slice(None)))}
    assert found == {row for row in oracle if first_open <= row[1] < 7}


def test_events_with_the_same_ids_of_other_dictionaries_are_one():
    """A dictionary may name a value twice, and values that no event has."""
    user = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["u", "u", "v", "nobody"]))
    item = pa.DictionaryArray.from_arrays(pa.array([1, 2, 1], pa.int32()), pa.array(["nothing", "i", "i"]))
    batch = EventBatch(user, item, np.full(3, 100 * MICROS))
    [(_, _, pairs)] = contributions_of_events(batch, FIXED, KEYS, windows_per_range=1, shards=1)
    assert checked_rows(pairs) == {(user_hash("u"), 0, "i"), (user_hash("v"), 0, "i")}


def _oracle_bound(rows, limit):
    held = {}
    for user, window, item in rows:
        held.setdefault((user, window), []).append(item)
    kept = set()
    for (user, window), names in held.items():

        def place(item, user=user, window=window):
            block = np.array([[user, item_hash(item) >> 64]], dtype=np.uint64)
            return int(KEYS.contribution_order(window)(block)[0, 0])

        chosen = sorted(names, key=place)[:limit] if len(names) > limit else names
        kept |= {(user, window, item) for item in chosen}
    return kept


@given(events_strategy, st.sampled_from([FIXED, SLIDING]), st.integers(1, 4))
def test_bound_contributions(events, schedule, limit):
    pairs = all_pairs(events, schedule)
    bounded = bound_contributions(pairs, limit, KEYS)
    assert checked_rows(bounded) == _oracle_bound(oracle_rows(events, schedule), limit)
    assert bound_contributions(bounded, limit, KEYS).to_bytes() == bounded.to_bytes()
    # The choice is each user's and window's own: it does not see what others hold.
    half = [event for event in events if event[0] in ("user 0", "user 1", "user 2")]
    mine = {user_hash(f"user {number}") for number in range(3)}
    alone = checked_rows(bound_contributions(all_pairs(half, schedule), limit, KEYS))
    assert alone == {row for row in checked_rows(bounded) if row[0] in mine}


@given(events_strategy, st.sampled_from([FIXED, SLIDING]), st.integers(1, 3), st.integers(1, 4))
def test_batches_of_events_are_merged_into_what_all_events_make(events, schedule, shards, batches):
    """In any order, into one message, as for a pool of processes."""
    packed, expected = {}, pairs_by_group(events, schedule, 1000, shards)
    for part in range(batches):
        for group, pairs in pairs_by_group(events[part::batches], schedule, 1000, shards).items():
            packed.setdefault(group, []).append(pairs.to_bytes())
    merge = MergeContributions(most_bytes=sys.maxsize).start(b"")
    found = {key: merged for group in packed.items() for key, merged in merge(group, Counter())}
    assert found == {group: pairs.to_bytes() for group, pairs in expected.items()}


@given(events_strategy, st.integers(0, 4))
def test_which_contributions_of_a_user_are_kept(events, most):
    """Those first in the order of their keyed hashes, whatever else is there."""
    held = all_pairs(events, SLIDING)
    chosen = keep_by_hash(held, np.full(len(held.users), most), KEYS)
    hashes = held.table.hashes.take(held.items, axis=0)
    order = KEYS.payment_order()(held.users[held.codes], held.windows, hashes).tolist()
    for code in range(len(held.users)):
        mine = np.flatnonzero(held.codes == code)
        first = sorted(mine, key=order.__getitem__)[:most]
        assert [*np.flatnonzero(chosen & (held.codes == code))] == sorted(first)


def test_one_user_may_have_millions_of_pairs():
    """In bytes for each pair: what comes in messages is merged in less than twice its columns, and which pairs count is
    chosen in hardly more."""
    table, _ = ItemTable.of_labels(pa.array([f"item {number}" for number in range(1 << 10)]), KEYS.hash_items)
    user, codes, places = np.array([7], dtype=np.uint64), np.zeros(1 << 17, dtype=np.int64), np.arange(1 << 17)
    parts = (Contributions(user, codes, (places >> 10) + 128 * part, places & 1023, table) for part in range(8))
    messages, peaks = [part.to_bytes() for part in parts], []
    tracemalloc.start()
    try:
        merged = Contributions.of_messages(messages)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        kept = keep_by_hash(merged, np.array([3000]), KEYS)
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert (len(merged), np.count_nonzero(kept)) == (1 << 20, 3000)
    assert peaks[0] < 48 << 20
    assert peaks[1] < 56 << 20
