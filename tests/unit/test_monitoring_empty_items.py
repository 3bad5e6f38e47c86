"""Empty items: a stream draws them window by window, a replay all at once, and both draw the same ones."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.empty_items import EmptyItemDraws, EmptyItems
from dp_transforms.monitor.item_domain import DomainTable
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.query_noise import query_noise
from tests.helpers.core_runs import monitor_settings
from tests.helpers.small_runs import SECRET

# What `ItemHolders` hold, in plain lists.


def cells_by_label(cells: ItemHolders) -> list[tuple[tuple[int, str], list[int]]]:
    """((window, label), holders) of each cell."""
    labels = cells.table.labels.to_pylist()
    return [
        ((window, labels[item]), sorted(cells.holders[low:high].tolist()))
        for window, item, (low, high) in zip(
            cells.windows.tolist(), cells.items.tolist(), itertools.pairwise(cells.splits.tolist()), strict=True
        )
    ]


ITEMS = tuple(f"item {number}" for number in range(40))
SHARDS = 3


@pytest.mark.parametrize(
    ("mode", "threshold"), [("hits-with-counts", 3), ("hits", 1), ("kms21", 6), ("hits-with-counts", 200)]
)
def test_items_that_nobody_holds_are_the_same_window_by_window(mode: str, threshold: int) -> None:
    """Else a restarted stream would publish others than it did. At 200 there are none, in 2^-100 of all keys."""
    chosen = monitor_settings(mode, threshold=threshold, domain=ITEMS)
    keys = chosen.stream_keys(SECRET)
    domain = DomainTable.of_labels(pa.array(ITEMS, pa.string()), keys.hash_items)
    wanted: dict[tuple[int, int], list] = {}
    drawn = EmptyItems(domain, query_noise(chosen, keys).empty_item_tail(), keys)
    horizon = chosen.schedule.horizon
    for shard in range(SHARDS):
        for (window, item), holders in cells_by_label(drawn.without_holders(0, horizon, shard, SHARDS)):
            assert holders == []
            wanted.setdefault((window, shard), []).append(item)
    found = {}
    for window, shard in itertools.product(range(horizon), range(SHARDS)):
        part = drawn.without_holders(window, window + 1, shard, SHARDS)
        if len(part):
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
    draws = EmptyItemDraws(size, int(share * 2**53) << 75, monitor_settings().stream_keys(SECRET).empty_item_uniforms())
    found = dict(draws.by_window(horizon))
    assert list(found) == sorted(found)
    assert len(list(draws.by_window(horizon))) == len(found)
    looked_at = {*list(found)[:50], *list(found)[-50:], 0, 65_535, 65_536, horizon - 1}
    for window in (window for window in looked_at if window < horizon):
        alone = [(at, items.tolist()) for at, items in draws.by_window(window + 1, window)]
        assert alone == ([(window, found[window].tolist())] if window in found else [])
    assert max(found) > horizon * 0.9
    # Each window has some with probability 1 - (1 - share)^5; off by eight deviations in fewer than 1e-14 of all keys.
    expected = horizon * (1 - (1 - share) ** size)
    assert abs(len(found) - expected) < 8 * expected**0.5
    never = EmptyItemDraws(
        size, 0, StreamKeys(SECRET, run_id="r", plan_fingerprint="p", stream="s", threshold=1).empty_item_uniforms()
    )
    assert list(never.by_window(9)) == []
