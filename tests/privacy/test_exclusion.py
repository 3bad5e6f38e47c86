"""A user that reaches its budget in the middle of a window is not counted for the items that follow in it, in the order
of the keyed hash. Nothing here is random: uniforms are chosen, or the key is fixed."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.candidates import find_candidates
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.pairs import pairs_of_events
from tests.helpers.exact_monitor import ONE, ChosenKeys, TailIntegers, cells_of, hits_of, settings_for, state_with_hits

EPSILON, THRESHOLD = 0.5, 4


class _ZeroNoiseKeys(ChosenKeys):
    """Selects Z = 0 for every item, whatever its count (which must be at least the threshold)."""

    def __init__(self, cells: ItemHolders) -> None:
        super().__init__()
        tails = TailIntegers(EPSILON)
        for item, count in zip(cells.table.hashes[:, 1].tolist(), cells.counts.tolist(), strict=True):
            self.passes[item] = 0
            self.noise[item] = tails.cut(1, THRESHOLD - count)  # the smallest uniform with Z < 1


def _counts(holders_by_item: list[list[int]], paid: dict[int, int], hits: int) -> tuple[dict[str, int], MonitorState]:
    """Published counts without noise, and the state after the window."""
    settings = settings_for("hits-with-counts", EPSILON, hits, THRESHOLD, max_items=3)
    cells = cells_of(0, holders_by_item)
    keys = _ZeroNoiseKeys(cells)
    state = state_with_hits(paid)
    candidates = find_candidates(cells, settings, keys)  # type: ignore[arg-type]
    report, _ = HeavyHitterMonitor(settings, keys).close_window(0, candidates, state)  # type: ignore[arg-type]
    return ({hitter.item: hitter.noisy_count for hitter in report.heavy_hitters} if report else {}), state


def test_who_paid_at_the_first_item_is_not_counted_at_the_second() -> None:
    """Users 1 and 2 hold both items; they have one hit left when the window begins."""
    first, second = [1, 2, 10, 11, 12], [1, 2, 20, 21, 22, 23]
    counts, state = _counts([first, second], {1: 1, 2: 1}, hits=2)
    assert counts == {"item 0": 5, "item 1": 4}
    assert {user: hits_of(state, user) for user in (1, 2, 10, 20)} == {1: 2, 2: 2, 10: 1, 20: 1}
    # With a hit more they count twice.
    counts, state = _counts([first, second], {1: 1, 2: 1}, hits=3)
    assert counts == {"item 0": 5, "item 1": 6}
    assert hits_of(state, 1) == 3


def test_exclusion_can_hide_the_item_that_follows() -> None:
    first, second = [1, 2, 3, 4], [1, 2, 3, 30, 31]
    counts, state = _counts([first, second], {}, hits=1)
    assert counts == {"item 0": 4}
    assert [hits_of(state, user) for user in (1, 30)] == [1, 0], "no charge for a result that was not published"
    # Three items: the third sees what the first two have charged.
    counts, _ = _counts([first, [1, 2, 3, 4, 30, 31, 32, 33], [4, 30, 31, 32, 40, 41, 42, 43]], {}, hits=1)
    assert counts == {"item 0": 4, "item 1": 4, "item 2": 4}


def test_nobody_active_means_that_the_item_is_not_tested() -> None:
    everybody = [1, 2, 3, 4, 5]
    counts, state = _counts([everybody, everybody], {}, hits=1)
    assert counts == {"item 0": 5}
    assert [hits_of(state, user) for user in everybody] == [1] * 5


@pytest.mark.parametrize("key_byte", range(4))
def test_the_order_within_a_window_is_that_of_the_keyed_hash(key_byte: int) -> None:
    """Through the real keys, from events: of three items that the same eight users hold, the first in the order of the
    128-bit hashes is published, and takes all active holders from the others: whatever the order of the events."""
    settings = settings_for("hits-with-counts", 8.0, 1, THRESHOLD, max_items=3)  # noise 0 except for 1 draw in 1,500
    keys = StreamKeys(bytes([key_byte]) * 32, run_id="r", plan_fingerprint="p", stream="s", threshold=THRESHOLD)
    labels = ["apple", "pear", "quince"]
    hashes = keys.hash_items(pa.array(labels))
    first = min(range(3), key=lambda item: int(hashes[item, 0]) << 64 | int(hashes[item, 1]))
    published = set()
    for order in itertools.permutations(range(3)):
        events = [(f"user {user}", labels[item]) for item in order for user in range(8 + item)]
        batch = EventBatch(
            pa.array([user for user, _ in events]).dictionary_encode(),
            pa.array([item for _, item in events]).dictionary_encode(),
            np.zeros(len(events), dtype=np.int64),
        )
        [(_, _, pairs)] = pairs_of_events(batch, settings.schedule, keys, windows_per_slab=1, shards=1)
        candidates = find_candidates(ItemHolders.of_pairs(pairs), settings, keys)
        report, _ = HeavyHitterMonitor(settings, keys).close_window(0, candidates, MonitorState())
        assert report is not None
        published.add(tuple(report.heavy_hitters))
    [hitters] = published
    assert {hitter.item for hitter in hitters} == {labels[first]}


def test_labels_far_above_the_zone_never_exclude() -> None:
    settings = settings_for("hits", EPSILON, 1, THRESHOLD, 2, max_items=2)
    cells = cells_of(0, [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5], [1, 2, 3, 4, 7]])
    keys = _ZeroNoiseKeys(cells)
    state = MonitorState()
    candidates = find_candidates(cells, settings, keys)  # type: ignore[arg-type]
    report, charges = HeavyHitterMonitor(settings, keys).close_window(0, candidates, state)  # type: ignore[arg-type]
    assert report is not None
    # Count 6 is above (free); 5 is in the zone and charged, so that only user 7 is left for the third.
    assert [tuple(hitter)[:3] for hitter in report.heavy_hitters] == [
        ("item 0", "above", None),
        ("item 1", "between", 5),
    ]
    assert charges.users.tolist() == [1, 2, 3, 4, 5]
    assert charges.hits.tolist() == [1] * 5
    assert max(keys.noise.values()) < ONE
