"""What streams ask of the core, window by window, is what a replay makes at once: zero items, and messages."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.counted_messages import holder_messages, pair_messages
from dp_transforms.monitoring.domain_table import DomainTable
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.user_pairs import UserPairs, pairs_of_events
from dp_transforms.monitoring.zero_items import ZeroItemDraws, ZeroItemsOfWindows, draw_zero_items
from tests.helpers.cells import cells_by_label
from tests.helpers.core_runs import START, busy_log, monitor_settings
from tests.helpers.small_runs import SECRET, batches_of

ITEMS = tuple(f"item {number}" for number in range(40))
SHARDS = 3


@pytest.mark.parametrize(("release", "threshold"), [("counts", 3), ("labels", 1), ("kms21", 6), ("counts", 200)])
def test_items_that_nobody_holds_are_the_same_window_by_window(release: str, threshold: int) -> None:
    """Else a restarted stream would publish others than it did. At 200 there are none, in 2^-100 of all keys."""
    chosen = monitor_settings(release, threshold=threshold, domain=ITEMS)
    keys = chosen.stream_keys(SECRET)
    domain = DomainTable.of_labels(pa.array(ITEMS, pa.string()), keys.item_ids)
    wanted: dict[tuple[int, int], list] = {}
    for slab, shard, cells in draw_zero_items(domain, chosen, keys, windows_per_slab=2, shards=SHARDS):
        for (window, item), holders in cells_by_label(cells):
            assert window // 2 == slab
            assert holders == []
            wanted.setdefault((window, shard), []).append(item)
    one_by_one = ZeroItemsOfWindows(domain, chosen, keys, SHARDS)
    found = {}
    for window, shard in itertools.product(range(chosen.schedule.horizon), range(SHARDS)):
        part = one_by_one.cells(window, shard)
        if part is not None:
            assert {at for (at, _), _ in cells_by_label(part)} == {window}
            assert {tuple(holders) for _, holders in cells_by_label(part)} == {()}
            found[window, shard] = [item for (_, item), _ in cells_by_label(part)]
    assert found == wanted
    assert bool(found) is (threshold < 200)
    if found:
        assert {shard for _, shard in found} == set(range(SHARDS))


@pytest.mark.parametrize("share", [2e-4, 0.3])
def test_many_windows_are_drawn_in_slices_that_leave_none_out_and_repeat_none(share: float) -> None:
    """Two slices and a bit: 65,536 windows are drawn at once."""
    size, horizon = 5, 2 * 65_536 + 10 if share < 0.1 else 200
    draws = ZeroItemDraws(size, int(share * 2**53) << 75, monitor_settings().stream_keys(SECRET).zero_item_uniforms())
    found = dict(draws.by_window(horizon))
    assert list(found) == sorted(found)
    assert len(list(draws.by_window(horizon))) == len(found)
    looked_at = {*list(found)[:50], *list(found)[-50:], 0, 65_535, 65_536, horizon - 1}
    for window in (window for window in looked_at if window < horizon):
        one = draws.of_window(window)
        assert one.tolist() == found.get(window, np.zeros(0)).tolist()
        assert one.dtype == np.int64
    assert max(found) > horizon * 0.9
    # Each window has some with probability 1 - (1 - share)^5; off by eight deviations in fewer than 1e-14 of all keys.
    expected = horizon * (1 - (1 - share) ** size)
    assert abs(len(found) - expected) < 8 * expected**0.5
    never = ZeroItemDraws(
        size, 0, StreamKeys(SECRET, run_id="r", plan_fingerprint="p", stream="s", threshold=1).zero_item_uniforms()
    )
    assert never.of_window(3).tolist() == []
    assert never.of_window(3).dtype == np.int64
    assert list(never.by_window(9)) == []


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
