"""The order of rows and the types of columns of the streaming core, for as many rows as sorts begin to mix up.

NumPy sorts up to sixteen rows by insertion, which keeps the order of equal ones whatever was asked for.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.contributions import bound_contributions
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.user_pairs import UserPairs, pairs_of_events
from dp_transforms.plan.window_schedule import WindowSchedule

KEYS = StreamKeys(bytes(range(32)), run_id="r", plan_fingerprint="p", stream="s", threshold=5)
SCHEDULE = WindowSchedule(0, 30, 10, 10)
USERS, ITEMS = 700, 3


def pairs_of(users: range, items: int = ITEMS) -> UserPairs:
    """Each user with each item in each of the three windows."""
    rows = [(f"u{user}", f"i{item}", window) for user in users for item in range(items) for window in range(3)]
    rng = np.random.default_rng(5)
    rows = [rows[at] for at in rng.permutation(len(rows)).tolist()]
    user, item = (pa.array([row[at] for row in rows]).dictionary_encode() for at in (0, 1))
    batch = EventBatch(user, item, np.array([row[2] * 10_000_000 for row in rows], dtype=np.int64))
    ((slab, shard, pairs),) = pairs_of_events(batch, SCHEDULE, KEYS, windows_per_slab=3, shards=1)
    assert (slab, shard) == (0, 0)
    return pairs


def types_of(columns: UserPairs | ItemHolders) -> dict[str, str]:
    return {name: str(value.dtype) for name, value in vars(columns).items() if isinstance(value, np.ndarray)}


PAIR_TYPES = {"users": "uint64", "splits": "int64", "windows": "int64", "items": "int64"}
CELL_TYPES = {"windows": "int64", "items": "int64", "splits": "int64", "holders": "uint64"}


def test_pairs_are_sorted_by_user_window_and_item() -> None:
    pairs = pairs_of(range(USERS))
    assert types_of(pairs) == PAIR_TYPES
    assert len(pairs) == USERS * 3 * ITEMS
    assert (np.diff(pairs.users.astype(object)) > 0).all()
    assert np.array_equal(pairs.splits, np.arange(USERS + 1) * 3 * ITEMS)
    assert np.array_equal(pairs.windows, np.tile(np.repeat(np.arange(3), ITEMS), USERS))
    assert np.array_equal(pairs.items, np.tile(np.arange(ITEMS), 3 * USERS))
    again = UserPairs.from_bytes(pairs.to_bytes())
    assert types_of(again) == PAIR_TYPES
    assert again.to_bytes() == pairs.to_bytes()


def test_pairs_that_are_merged_are_those_of_all_events() -> None:
    whole = pairs_of(range(USERS))
    parts = [pairs_of(range(0, 400)), pairs_of(range(300, USERS))]
    merged = UserPairs.merge(parts)
    assert types_of(merged) == PAIR_TYPES
    assert np.array_equal(merged.users, whole.users)
    assert np.array_equal(merged.splits, whole.splits)
    assert np.array_equal(merged.windows, whole.windows)


def holders_of(cells: ItemHolders) -> list[list[int]]:
    """Of each cell, sorted: they are in no particular order."""
    return [
        sorted(cells.holders[begin:end].tolist()) for begin, end in zip(cells.splits, cells.splits[1:], strict=False)
    ]


def test_every_cell_has_all_of_its_holders() -> None:
    pairs = pairs_of(range(USERS))
    cells = ItemHolders.of_pairs(pairs)
    merged = ItemHolders.merge([ItemHolders.of_pairs(pairs_of(users)) for users in (range(300, USERS), range(0, 300))])
    for found in (cells, merged, ItemHolders.from_bytes(cells.to_bytes())):
        assert types_of(found) == CELL_TYPES
        assert np.array_equal(found.windows, np.repeat(np.arange(3), ITEMS))
        assert np.array_equal(found.items, np.tile(np.arange(ITEMS), 3))
        assert np.array_equal(found.splits, np.arange(3 * ITEMS + 1) * USERS)
        assert holders_of(found) == [pairs.users.tolist()] * (3 * ITEMS)
        assert np.array_equal(found.table.hashes, pairs.table.hashes)
    assert ItemHolders.from_bytes(cells.to_bytes()).to_bytes() == cells.to_bytes()


def test_cells_without_holders_stand_among_the_others() -> None:
    held = ItemHolders.of_pairs(pairs_of(range(USERS)))
    empty = ItemHolders.without_holders(np.array([0, 1, 1, 2]), np.array([0, 1, 2, 0]), held.table)
    assert types_of(empty) == CELL_TYPES
    without = held.select(np.array([0, 3, 7]))
    for parts in ([without, empty], [empty, without]):
        merged = ItemHolders.merge(parts)
        assert types_of(merged) == CELL_TYPES
        found = list(zip(merged.windows.tolist(), merged.counts.tolist(), strict=True))
        assert sorted(found) == sorted([(0, USERS), (1, USERS), (2, USERS), (1, 0), (1, 0), (2, 0)])
        assert (np.diff(merged.windows * len(merged.table) + merged.items) > 0).all()
        assert [cell for cell in holders_of(merged) if cell] == [holders_of(held)[0]] * 3


@pytest.mark.parametrize("most", [1, 2, 3])
def test_every_user_keeps_as_many_items_in_each_window(most: int) -> None:
    bounded = bound_contributions(pairs_of(range(USERS)), most, KEYS)
    assert types_of(bounded) == PAIR_TYPES
    counts = np.zeros((USERS, 3), dtype=int)
    np.add.at(counts, (bounded.user_codes(), bounded.windows), 1)
    assert (counts == most).all()
    rows = (bounded.user_codes() * 3 + bounded.windows) * ITEMS + bounded.items
    assert (np.diff(rows) > 0).all()
    if most == 1:  # each item is as likely as any other: off by a third with a probability below 1e-30
        assert (np.abs(np.bincount(bounded.items) - USERS) < USERS / 3).all()
