"""Messages that are gathered by counting: cut small, announced, and complete when all have come."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dp_transforms.monitor.counted_messages import (
    GatheredCount,
    Message,
    batches_of_blobs,
    holder_messages,
    messages_of,
    pair_messages,
)
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.user_pairs import UserPairs, pairs_of_events
from tests.helpers import small_runs
from tests.helpers.cells import cells_by_label, cells_by_position
from tests.helpers.core_runs import START, busy_log, monitor_settings
from tests.helpers.small_runs import MICROS, SECRET, batch_of, batches_of, settings_of, small_plan


def test_the_last_message_announces_all_and_none_is_one_without_content() -> None:
    assert messages_of([]) == [Message(1, b"")]
    assert messages_of([b"a", b"b", b"c"]) == [Message(0, b"a"), Message(0, b"b"), Message(3, b"c")]


def test_a_count_is_complete_when_all_senders_announced_and_all_messages_came() -> None:
    """Two senders of 3 and 1 messages, in an order in which the announcements come early."""
    count = GatheredCount()
    for announcement, is_complete in ((0, False), (1, False), (3, False), (0, True)):
        count = GatheredCount(count.to_bytes())
        count.add(announcement)
        assert (count.is_complete(2), count.has_too_many(2)) == (is_complete, False)
    assert count.has_too_many(1), "there is one sender more than expected"
    count.add(0)
    assert count.has_too_many(2), "one message more than was announced"
    assert not count.is_complete(2)
    assert len(count.to_bytes()) == GatheredCount.SIZE


def test_blobs_are_batched_in_order_and_never_cut() -> None:
    blobs = [b"aaa", b"bb", b"c", b"dddddd", b"e"]
    assert batches_of_blobs(blobs, 5) == [[b"aaa", b"bb"], [b"c"], [b"dddddd"], [b"e"]]
    assert batches_of_blobs(blobs, 100) == [blobs]
    assert batches_of_blobs(blobs, 1) == [[blob] for blob in blobs]
    assert batches_of_blobs([], 5) == [[]]


def busy_pairs() -> UserPairs:
    chosen = monitor_settings(sliding=3)
    keys = chosen.stream_keys(SECRET)
    log = [(user, item, time) for user, item, time in busy_log(3) if time >= START * 1_000_000]
    parts = [
        pairs
        for batch in batches_of(log, 50)
        for _, _, pairs in pairs_of_events(batch, chosen.schedule, keys, windows_per_slab=100, shards=1)
    ]
    return UserPairs.merge(parts)


def rows(pairs: UserPairs) -> list[tuple[int, int, str]]:
    labels = pairs.table.labels.to_pylist()
    users = pairs.users[pairs.user_codes()].tolist()
    return [
        (user, window, labels[item])
        for user, window, item in zip(users, pairs.windows.tolist(), pairs.items.tolist(), strict=True)
    ]


@pytest.mark.parametrize("limit", [1, 300, 1000, 10**6])
def test_messages_of_pairs_are_small_and_hold_every_row_once(limit: int) -> None:
    whole = busy_pairs()
    messages = list(pair_messages(whole, limit))
    parts = [UserPairs.from_bytes(message) for message in messages]
    assert sum(map(len, parts)) == len(whole) > 200
    assert all(len(message) <= limit or len(part) == 1 for message, part in zip(messages, parts, strict=True))
    assert rows(UserPairs.merge(parts)) == rows(whole)
    assert list(itertools.chain.from_iterable(map(rows, parts))) == rows(whole), "in order: the first half first"
    # Halves of halves: no message is far smaller than it has to be.
    assert max(map(len, parts)) <= 2 * min(map(len, parts)) + 1
    assert list(pair_messages(UserPairs.from_bytes(whole.to_bytes()), 10**9)) == [whole.to_bytes()]


@pytest.mark.parametrize("limit", [1, 300, 1000, 10**6])
def test_messages_of_cells_are_small_and_hold_every_holder_once(limit: int) -> None:
    whole = ItemHolders.of_pairs(busy_pairs())
    empty = ItemHolders.without_holders(np.array([1]), np.array([0]), whole.table)
    messages = list(holder_messages(whole, limit))
    parts = [ItemHolders.from_bytes(message) for message in messages]
    assert cells_by_label(ItemHolders.merge(parts)) == cells_by_label(whole)
    assert sum(len(part.holders) for part in parts) == len(whole.holders) > 100
    for message, part in zip(messages, parts, strict=True):
        assert len(message) <= limit or (len(part) == 1 and len(part.holders) <= 1)
    if limit == 1:
        assert {len(part.holders) for part in parts} == {1}
    elif limit < 10**6:
        cells = [len(part) for part in parts if len(part) > 1]
        assert not cells or max(cells) <= 2 * min(cells) + 1, "halves"
    assert [cells_by_label(ItemHolders.from_bytes(message)) for message in holder_messages(empty, limit)] == [
        cells_by_label(empty)
    ]
    none = whole.select_range(slice(0, 0))
    assert list(holder_messages(none, limit)) == []


def test_messages_stay_under_their_limit_and_add_up_to_the_whole() -> None:
    plan = small_plan(6, sliding=3)
    keys = settings_of(plan).stream_keys(SECRET)
    batch = batch_of(
        [
            (f"u{number % 50}", f"item {number % 9} {'x' * 90}", (small_runs.START + number) * MICROS)
            for number in range(99)
        ]
    )
    ((_, _, pairs),) = pairs_of_events(batch, plan.schedule, keys, windows_per_slab=100, shards=1)
    for limit in (200, 1500, 10**6):
        blobs = list(pair_messages(pairs, limit))
        assert (max(map(len, blobs)) <= limit) == (limit > 200), "a row alone can be larger"
        assert UserPairs.merge([UserPairs.from_bytes(blob) for blob in blobs]).to_bytes() == pairs.to_bytes()
    cells = ItemHolders.of_pairs(pairs)
    for limit in (265, 1500, 10**6):
        blobs = list(holder_messages(cells, limit))
        assert max(map(len, blobs)) <= limit
        assert (len(blobs) > len(cells)) == (limit == 265), "cells were cut too"
        merged = ItemHolders.merge([ItemHolders.from_bytes(blob) for blob in blobs])
        assert cells_by_position(merged) == cells_by_position(cells)
