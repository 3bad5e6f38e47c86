"""Pairs in the order of items hold the same as pairs in the order of users, and add up to the same."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor import equal_rows
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_pairs import ItemPairs, item_pairs_of_events
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.kept_pairs import keep_by_hash
from dp_transforms.monitor.packed_arrays import pack_arrays
from dp_transforms.monitor.user_pairs import UserPairs, pairs_of_events
from dp_transforms.plan.window_schedule import WindowSchedule

KEYS = StreamKeys(bytes(range(32)), run_id="r", plan_fingerprint="p", stream="s", threshold=5)
SCHEDULES = (WindowSchedule(0, 40, 10, 10), WindowSchedule(0, 40, 20, 10))
MICROS = 1_000_000

Event = tuple[str, str, int]
events_strategy = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("uvwxyz"), st.integers(-5, 45)), max_size=60
)


def batch_of(events: list[Event]) -> EventBatch:
    user, item = (pa.array([event[at] for event in events], pa.string()).dictionary_encode() for at in (0, 1))
    return EventBatch(user, item, np.array([event[2] * MICROS for event in events], dtype=np.int64))


def by_user(events: list[Event], schedule: WindowSchedule, shards: int) -> dict[int, UserPairs]:
    parts = pairs_of_events(batch_of(events), schedule, KEYS, windows_per_slab=schedule.horizon, shards=shards)
    return {shard: pairs for _, shard, pairs in parts}


def by_item(events: list[Event], schedule: WindowSchedule, shards: int, batches: int) -> dict[int, ItemPairs]:
    """Packed and merged as the pipeline does, from batches of events in any order."""
    found: dict[int, list[bytes]] = {}
    for part in range(batches):
        for shard, pairs in item_pairs_of_events(batch_of(events[part::batches]), schedule, KEYS, shards):
            found.setdefault(shard, []).append(pairs.to_bytes())
    return {shard: ItemPairs.merge([ItemPairs.from_bytes(blob) for blob in blobs]) for shard, blobs in found.items()}


def rows_of(pairs: UserPairs | ItemPairs) -> list[tuple[int, str, int]]:
    labels = pairs.table.labels.to_pylist()
    users = pairs.users[pairs.user_codes()].tolist()
    columns = zip(pairs.windows.tolist(), pairs.items.tolist(), users, strict=True)
    return [(window, labels[item], user) for window, item, user in columns]


@pytest.mark.parametrize("limit", [2**62, 2], ids=["packed", "by columns"])
@given(events_strategy, st.sampled_from(SCHEDULES), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_they_are_those_of_the_users(
    limit: int, events: list[Event], schedule: WindowSchedule, shards: int, batches: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equal_rows, "_SORT_KEY_LIMIT", limit)
        found = by_item(events, schedule, shards, batches)
    expected = by_user(events, schedule, shards)
    assert found.keys() == expected.keys()
    for shard, pairs in found.items():
        assert sorted(rows_of(pairs)) == sorted(rows_of(expected[shard]))
        assert np.array_equal(pairs.users, expected[shard].users)
        assert np.array_equal(pairs.counts, expected[shard].counts)
        assert np.array_equal(pairs.table.hashes, expected[shard].table.hashes)
        order = list(zip(pairs.windows.tolist(), pairs.items.tolist(), pairs.codes.tolist(), strict=True))
        assert order == sorted(set(order))


@given(events_strategy, st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=60, deadline=None)
def test_they_add_up_to_the_same_whether_a_user_has_one_weight_or_several(
    events: list[Event], source: random.Random, several: bool
) -> None:
    """Weights of a user and its digests: computed once for each user, or for each pair."""
    users, items = (found.get(0) for found in (by_user(events, SCHEDULES[0], 1), by_item(events, SCHEDULES[0], 1, 1)))
    if users is None or items is None:
        return
    weights = {row: source.choice([0, 1, 7]) for row in rows_of(users)}
    if not several:
        of_users = {row[2]: weight or 1 for row, weight in weights.items()}
        weights = {row: weight and of_users[row[2]] for row, weight in weights.items()}
    sums, same = (
        ItemSums.of_weights(pairs, np.array([weights[row] for row in rows_of(pairs)]), KEYS) for pairs in (users, items)
    )
    assert same.to_bytes() == sums.to_bytes()
    assert int(same.sums.sum()) == sum(weights.values())
    terms = [np.array([weights[row] << 1 for row in rows_of(pairs)], dtype=np.int64) for pairs in (users, items)]
    held, also = (ItemHolders.of_terms(pairs, each) for pairs, each in zip((users, items), terms, strict=True))
    assert also.to_bytes() == held.to_bytes()


@given(events_strategy, st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_the_same_pairs_of_a_user_are_kept(events: list[Event], most: int) -> None:
    kept = []
    for found in (by_user(events, SCHEDULES[1], 1), by_item(events, SCHEDULES[1], 1, 1)):
        for pairs in found.values():
            chosen = keep_by_hash(pairs, np.full(len(pairs.users), most), KEYS)
            rows = [row for row, is_kept in zip(rows_of(pairs), chosen.tolist(), strict=True) if is_kept]
            assert len(rows) == int(np.minimum(pairs.counts, most).sum())
            kept.append(sorted(rows))
    assert not kept or kept[0] == kept[1]


def test_rows_are_selected_with_their_users_and_items_alone() -> None:
    pairs = by_item([("a", "x", 1), ("b", "x", 1), ("a", "y", 11), ("c", "z", 31)], SCHEDULES[0], 1, 2)[0]
    some = np.array([0, 2])
    chosen = pairs.select(some)
    assert rows_of(chosen) == [rows_of(pairs)[0], rows_of(pairs)[2]]
    assert len(chosen.users) == len({row[2] for row in rows_of(chosen)})
    assert len(chosen.table) == len({row[1] for row in rows_of(chosen)})


def test_damaged_bytes_are_refused() -> None:
    pairs = by_item([("a", "x", 1), ("b", "x", 1), ("a", "y", 11), ("c", "z", 31)], SCHEDULES[0], 1, 1)[0]
    good = {
        "users": pairs.users,
        "codes": pairs.codes.astype(np.uint8),
        "first": pairs.windows[:1],
        "windows": (pairs.windows - pairs.windows[0]).astype(np.uint8),
        "items": pairs.items.astype(np.uint8),
    }
    assert pack_arrays(*good.values(), *pairs.table.arrays()) == pairs.to_bytes()
    damages = {
        "users": [pairs.users[::-1], pairs.users[:1]],
        "codes": [good["codes"][:-1], good["codes"] + np.uint8(3)],
        "first": [good["first"][:0], good["first"] - 1, good["first"] + 2**40],
        "windows": [good["windows"][::-1], good["windows"][1:]],
        "items": [good["items"] + np.uint8(3), good["items"][1:]],
    }
    for name, values in damages.items():
        for value in values:
            changed = {**good, name: np.ascontiguousarray(value)}
            with pytest.raises(ValueError, match="packed"):
                ItemPairs.from_bytes(pack_arrays(*changed.values(), *pairs.table.arrays()))
    twice = {
        name: np.repeat(value, 2) if name in ("codes", "windows", "items") else value for name, value in good.items()
    }
    with pytest.raises(ValueError, match="packed"):
        ItemPairs.from_bytes(pack_arrays(*twice.values(), *pairs.table.arrays()))
