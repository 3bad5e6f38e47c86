"""The columns of the streaming core against dicts and loops. Keys are fixed; nothing here is statistical."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor import equal_rows
from dp_transforms.monitor.contributions import bound_contributions
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_table import TABLE_KINDS, ItemTable
from dp_transforms.monitor.packed_arrays import HASHES, NARROW, WHOLE, pack_arrays, unpack_arrays
from dp_transforms.monitor.user_pairs import UserPairs, pairs_of_events
from dp_transforms.plan.window_schedule import MOST_WINDOWS, WindowSchedule

KEYS = StreamKeys(bytes(range(32)), run_id="r", plan_fingerprint="p", stream="s", threshold=5)
MICROS = 1_000_000
FIXED = WindowSchedule(100, 160, 10, 10)
SLIDING = WindowSchedule(100, 157, 30, 10)
EDGES = [
    -(2**63),
    2**63 - 1,
    -1,
    0,
    100 * MICROS - 1,
    100 * MICROS,
    157 * MICROS - 1,
    157 * MICROS,
    160 * MICROS - 1,
    160 * MICROS,
]

Event = tuple[str, str, int]
Row = tuple[int, int, str]  # hash of the user, window, label of the item

users = st.sampled_from([f"user {number}" for number in range(8)])
items = st.sampled_from([*(f"item {number}" for number in range(6)), "é", "a" * 50])
times = st.one_of(st.sampled_from(EDGES), st.integers(95 * MICROS, 165 * MICROS))
events_strategy = st.lists(st.tuples(users, items, times), max_size=60)


def user_hash(user: str) -> int:
    return int(KEYS.hash_users(pa.array([user]))[0, 0])


def item_hash(item: str) -> int:
    high, low = KEYS.hash_items(pa.array([item]))[0]
    return (int(high) << 64) | int(low)


def batch_of(events: Sequence[Event]) -> EventBatch:
    def column(position: int) -> pa.DictionaryArray:
        return pa.array([event[position] for event in events], pa.string()).dictionary_encode()

    return EventBatch(column(0), column(1), np.array([event[2] for event in events], dtype=np.int64))


def oracle_rows(events: Iterable[Event], schedule: WindowSchedule) -> set[Row]:
    """Every (user, window, item): by trying all windows for each event."""
    found = set()
    for user, item, time in events:
        if not schedule.start_seconds * MICROS <= time < schedule.end_seconds * MICROS:
            continue
        for window in range(schedule.horizon):
            if schedule.window_start_micros(window) <= time < schedule.window_end_micros(window):
                found.add((user_hash(user), window, item))
    return found


def checked_rows(pairs: UserPairs) -> set[Row]:
    """The rows, after checking everything that the class promises about its columns."""
    assert_is_table(pairs.table)
    ids = pairs.users.tolist()
    assert ids == sorted(set(ids))
    assert pairs.splits[0] == 0
    assert pairs.splits[-1] == len(pairs) == len(pairs.items)
    assert (np.diff(pairs.splits) > 0).all(), "users without a row are dropped"
    labels = pairs.table.labels.to_pylist()
    rows = [
        (user, int(pairs.windows[row]), int(pairs.items[row]))
        for user, (low, high) in zip(ids, itertools.pairwise(pairs.splits.tolist()), strict=True)
        for row in range(low, high)
    ]
    assert rows == sorted(set(rows))
    assert {item for _, _, item in rows} == set(range(len(labels))), "items that no row names are dropped"
    return {(user, window, labels[item]) for user, window, item in rows}


def assert_is_table(table: ItemTable) -> None:
    hashes = [(int(high) << 64) | int(low) for high, low in table.hashes]
    assert hashes == sorted(set(hashes))
    assert len(table.labels) == len(hashes)


def pairs_by_group(
    events: Sequence[Event], schedule: WindowSchedule, windows_per_slab: int = 1, shards: int = 1
) -> dict[tuple[int, int], UserPairs]:
    parts = [*pairs_of_events(batch_of(events), schedule, KEYS, windows_per_slab=windows_per_slab, shards=shards)]
    groups = {(slab, shard): pairs for slab, shard, pairs in parts}
    assert len(groups) == len(parts), "each group comes once"
    return groups


def all_pairs(events: Sequence[Event], schedule: WindowSchedule) -> UserPairs:
    """All of them in one part."""
    groups = pairs_by_group(events, schedule, windows_per_slab=1000)
    assert [*groups] == [(0, 0)] or not groups
    return groups.get((0, 0)) or UserPairs.from_sorted_codes(
        np.zeros(0, np.uint64), *(np.zeros(0, np.int64),) * 3, ItemTable.of_labels(pa.array(["x"]), KEYS.hash_items)[0]
    )


# ---------------------------------------------------------------------------------------------------------------------
# Events to pairs
# ---------------------------------------------------------------------------------------------------------------------


@given(events_strategy, st.sampled_from([FIXED, SLIDING]), st.integers(1, 4), st.integers(1, 3))
@example([("u", "i", time) for time in EDGES], SLIDING, 2, 2)
@settings(max_examples=150, deadline=None)
def test_pairs_of_events(events: list[Event], schedule: WindowSchedule, windows_per_slab: int, shards: int) -> None:
    groups = pairs_by_group(events, schedule, windows_per_slab, shards)
    found: set[Row] = set()
    for (slab, shard), pairs in groups.items():
        rows = checked_rows(pairs)
        assert rows
        assert all(window // windows_per_slab == slab and user % shards == shard for user, window, _ in rows)
        assert not rows & found
        found |= rows
    assert found == oracle_rows(events, schedule)


def test_an_event_counts_in_every_sliding_window_that_holds_it() -> None:
    pairs = all_pairs([("u", "i", 100 * MICROS), ("u", "j", 156 * MICROS)], SLIDING)
    assert SLIDING.horizon == 8
    labels = pairs.table.labels.to_pylist()
    held = sorted((labels[item], window) for window, item in zip(pairs.windows.tolist(), pairs.items, strict=True))
    assert held == [("i", 0), ("i", 1), ("i", 2), ("j", 5), ("j", 6), ("j", 7)]


def test_events_with_the_same_ids_of_other_dictionaries_are_one() -> None:
    """A dictionary may name a value twice, and values that no event has."""
    user = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["u", "u", "v", "nobody"]))
    item = pa.DictionaryArray.from_arrays(pa.array([1, 2, 1], pa.int32()), pa.array(["nothing", "i", "i"]))
    batch = EventBatch(user, item, np.full(3, 100 * MICROS))
    [(_, _, pairs)] = pairs_of_events(batch, FIXED, KEYS, windows_per_slab=1, shards=1)
    assert checked_rows(pairs) == {(user_hash("u"), 0, "i"), (user_hash("v"), 0, "i")}


def test_no_events_inside_the_range_give_nothing() -> None:
    assert pairs_by_group([], FIXED) == {}
    assert pairs_by_group([("u", "i", time) for time in EDGES[:5]], FIXED) == {}


@pytest.mark.parametrize("first", [(), (-1,), (MOST_WINDOWS,), (0, 0)])
def test_packed_pairs_have_one_first_window_within_the_horizon(first: tuple[int, ...]) -> None:
    pairs = all_pairs([("u", "i", EDGES[0])], FIXED)
    arrays = unpack_arrays(pairs.to_bytes(), HASHES, NARROW, WHOLE, NARROW, NARROW, *TABLE_KINDS)
    UserPairs.from_bytes(pack_arrays(*arrays))
    with pytest.raises(ValueError, match="damaged"):
        UserPairs.from_bytes(pack_arrays(*arrays[:2], np.array(first, dtype=np.int64), *arrays[3:]))


@given(events_strategy, st.sampled_from([FIXED, SLIDING]), st.integers(1, 5), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_merging_in_any_order_gives_the_same(
    events: list[Event], schedule: WindowSchedule, parts: int, order: random.Random
) -> None:
    whole = all_pairs(events, schedule)
    pieces = [events[part::parts] for part in range(parts)]
    blobs = [pairs.to_bytes() for piece in pieces for pairs in pairs_by_group(piece, schedule, 1000).values()]
    if not blobs:
        return
    order.shuffle(blobs)
    merged = UserPairs.merge([UserPairs.from_bytes(blob) for blob in blobs])
    assert checked_rows(merged) == oracle_rows(events, schedule)
    assert merged.to_bytes() == whole.to_bytes()
    assert UserPairs.merge([merged, merged, whole]).to_bytes() == whole.to_bytes()


@given(events_strategy, st.sampled_from([FIXED, SLIDING]))
@settings(max_examples=50, deadline=None)
def test_the_slow_sort_gives_the_same(events: list[Event], schedule: WindowSchedule) -> None:
    """Rows that do not fit one integer are sorted by columns."""
    fast = {group: pairs.to_bytes() for group, pairs in pairs_by_group(events, schedule, 2, 2).items()}
    limit = equal_rows._SORT_KEY_LIMIT
    try:
        equal_rows._SORT_KEY_LIMIT = 1
        slow = {group: pairs.to_bytes() for group, pairs in pairs_by_group(events, schedule, 2, 2).items()}
    finally:
        equal_rows._SORT_KEY_LIMIT = limit
    assert slow == fast


# ---------------------------------------------------------------------------------------------------------------------
# The contribution bound
# ---------------------------------------------------------------------------------------------------------------------


def _oracle_bound(rows: set[Row], limit: int) -> set[Row]:
    held: dict[tuple[int, int], list[str]] = {}
    for user, window, item in rows:
        held.setdefault((user, window), []).append(item)
    kept = set()
    for (user, window), names in held.items():

        def place(item: str, user: int = user, window: int = window) -> int:
            block = np.array([[user, item_hash(item) >> 64]], dtype=np.uint64)
            return int(KEYS.contribution_order(window)(block)[0, 0])

        chosen = sorted(names, key=place)[:limit] if len(names) > limit else names
        kept |= {(user, window, item) for item in chosen}
    return kept


@given(events_strategy, st.sampled_from([FIXED, SLIDING]), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_bound_contributions(events: list[Event], schedule: WindowSchedule, limit: int) -> None:
    pairs = all_pairs(events, schedule)
    bounded = bound_contributions(pairs, limit, KEYS)
    assert checked_rows(bounded) == _oracle_bound(oracle_rows(events, schedule), limit)
    assert bound_contributions(bounded, limit, KEYS).to_bytes() == bounded.to_bytes()
    # The choice is each user's and window's own: it does not see what others hold.
    half = [event for event in events if event[0] in ("user 0", "user 1", "user 2")]
    mine = {user_hash(f"user {number}") for number in range(3)}
    alone = checked_rows(bound_contributions(all_pairs(half, schedule), limit, KEYS))
    assert alone == {row for row in checked_rows(bounded) if row[0] in mine}


def test_a_user_with_no_more_than_the_limit_keeps_everything() -> None:
    pairs = all_pairs([("u", f"item {number}", 100 * MICROS) for number in range(3)], FIXED)
    assert bound_contributions(pairs, 3, KEYS) is pairs
    assert len(bound_contributions(pairs, 2, KEYS)) == 2


# ---------------------------------------------------------------------------------------------------------------------
# Cells
# ---------------------------------------------------------------------------------------------------------------------


def checked_cells(cells: ItemHolders) -> dict[tuple[int, str], list[int]]:
    """Holders of each (window, item), in the order of the cells, after checking what the class promises."""
    assert_is_table(cells.table)
    at = [*zip(cells.windows.tolist(), cells.items.tolist(), strict=True)]
    assert at == sorted(set(at))
    assert cells.splits[0] == 0
    assert cells.splits[-1] == len(cells.holders)
    assert cells.counts.tolist() == np.diff(cells.splits).tolist()
    assert (cells.counts > 0).all()
    labels = cells.table.labels.to_pylist()
    found = {}
    for (window, item), (low, high) in zip(at, itertools.pairwise(cells.splits.tolist()), strict=True):
        holders = cells.holders[low:high].tolist()
        assert len(set(holders)) == len(holders)
        found[window, labels[item]] = sorted(holders)
    return found


def oracle_cells(rows: Iterable[Row]) -> dict[tuple[int, str], list[int]]:
    found: dict[tuple[int, str], list[int]] = {}
    for user, window, item in sorted(rows, key=lambda row: (row[1], item_hash(row[2]), row[0])):
        found.setdefault((window, item), []).append(user)
    return found


def same(first: dict, second: dict) -> bool:
    return [*first.items()] == [*second.items()]  # the order of the cells too


@given(events_strategy, st.sampled_from([FIXED, SLIDING]))
@settings(max_examples=80, deadline=None)
def test_item_holders_of_pairs(events: list[Event], schedule: WindowSchedule) -> None:
    cells = ItemHolders.of_pairs(all_pairs(events, schedule))
    expected = oracle_cells(oracle_rows(events, schedule))
    assert same(checked_cells(cells), expected)
    assert same(checked_cells(ItemHolders.from_bytes(cells.to_bytes())), expected)
    assert ItemHolders.from_bytes(cells.to_bytes()).to_bytes() == cells.to_bytes()
    by_window = {window: checked_cells(cells.select_range(part)) for window, part in cells.by_window()}
    assert [*by_window] == sorted({window for window, _ in expected})
    assert same({cell: holders for part in by_window.values() for cell, holders in part.items()}, expected)


@given(events_strategy, st.integers(1, 4), st.integers(1, 3), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_merging_cells_of_different_users(
    events: list[Event], user_shards: int, item_shards: int, order: random.Random
) -> None:
    """As the pipeline does it: users by shard, cells by shard of items, merged in any order."""
    by_item_shard: dict[int, list[bytes]] = {}
    for pairs in pairs_by_group(events, SLIDING, 1000, user_shards).values():
        for shard, cells in ItemHolders.of_pairs(pairs).shard_by_item(item_shards):
            checked_cells(cells)
            by_item_shard.setdefault(shard, []).append(cells.to_bytes())
    found: dict[tuple[int, str], list[int]] = {}
    for shard, blobs in by_item_shard.items():
        order.shuffle(blobs)
        merged = checked_cells(ItemHolders.merge([ItemHolders.from_bytes(blob) for blob in blobs]))
        assert all(item_hash(item) % (1 << 64) % item_shards == shard for _, item in merged)
        assert not merged.keys() & found.keys()
        found |= merged
    assert found == oracle_cells(oracle_rows(events, SLIDING))


@given(events_strategy, st.data())
@settings(max_examples=80, deadline=None)
def test_selecting_cells(events: list[Event], data: st.DataObject) -> None:
    cells = ItemHolders.of_pairs(all_pairs(events, SLIDING))
    everything = [*checked_cells(cells).items()]
    chosen = sorted(data.draw(st.sets(st.integers(0, len(cells) - 1)))) if len(cells) else []
    selected = cells.select(np.array(chosen, dtype=np.int64))
    assert [*checked_cells(selected).items()] == [everything[cell] for cell in chosen]
    assert set(selected.table.labels.to_pylist()) == {everything[cell][0][1] for cell in chosen}
    low = data.draw(st.integers(0, len(cells)))
    high = data.draw(st.integers(low, len(cells)))
    assert [*checked_cells(cells.select_range(slice(low, high))).items()] == everything[low:high]


# ---------------------------------------------------------------------------------------------------------------------
# Tables of items
# ---------------------------------------------------------------------------------------------------------------------

few = st.sampled_from([0, 1, 2, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
colliding = st.sets(st.tuples(few, few), min_size=1, max_size=12)


def table_of(hashes: Iterable[tuple[int, int]]) -> ItemTable:
    ordered = sorted(hashes)
    labels = [f"{high}/{low}" for high, low in ordered]
    return ItemTable.with_labels(np.array(ordered, dtype=np.uint64).reshape(-1, 2), pa.array(labels, pa.string()))


@given(st.lists(colliding, min_size=1, max_size=5))
@settings(deadline=None)
def test_merging_tables_whose_hashes_share_a_word(parts: list[set[tuple[int, int]]]) -> None:
    tables = [table_of(part) for part in parts]
    union, positions = ItemTable.merge(tables)
    assert [tuple(row) for row in union.hashes.tolist()] == sorted(set().union(*parts))
    assert union.labels.to_pylist() == table_of(set().union(*parts)).labels.to_pylist()
    for table, position in zip(tables, positions, strict=True):
        assert np.array_equal(union.hashes[position], table.hashes)
        assert union.labels.take(pa.array(position)).to_pylist() == table.labels.to_pylist()


@given(colliding, st.data())
@settings(deadline=None)
def test_tables_keep_labels_through_bytes_and_choices(hashes: set[tuple[int, int]], data: st.DataObject) -> None:
    table = table_of(hashes)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(table) - 1))))
    taken = table.take(np.array(chosen, dtype=np.int64))
    assert taken.labels.to_pylist() == [table.labels[item].as_py() for item in chosen]
    for sliced in (taken, ItemTable.with_labels(table.hashes[1:], table.labels[1:]), table):
        again = ItemTable.from_arrays(*unpack_arrays(pack_arrays(*sliced.arrays())))
        assert np.array_equal(again.hashes, sliced.hashes)
        assert again.labels.to_pylist() == sliced.labels.to_pylist()


def test_table_of_labels_finds_duplicates() -> None:
    labels = pa.array(["b", "a", "b", "", "c", "a"])
    table, positions = ItemTable.of_labels(labels, KEYS.hash_items)
    assert_is_table(table)
    assert len(table) == 4
    assert [table.labels[int(position)].as_py() for position in positions] == labels.to_pylist()
