"""Sums, known items and named items as columns: merging, cutting, packing, and bytes that are damaged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.monitor.item_sums import ItemSums, sum_messages
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.packed_arrays import pack_arrays
from tests.helpers.naming_runs import naming_settings
from tests.helpers.small_runs import SECRET

KEYS = naming_settings().stream_keys(SECRET)
CELLS = st.dictionaries(
    st.tuples(st.integers(0, 2**31 - 1), st.sampled_from([*"abcdefgh", "a long label " * 9])),
    st.tuples(st.integers(1, 10**12), st.integers(0, 2**128 - 1)),
    max_size=30,
)


def table_of(labels):
    return ItemTable.of_labels(pa.array(labels, pa.string()), KEYS.hash_items)


def sums_of(cells):
    """``{(window, label): (sum, digest)}`` as columns."""
    table, code = table_of([label for _, label in cells])
    windows = np.array([window for window, _ in cells], dtype=np.int64)
    order = np.lexsort((code, windows))
    totals = np.array([total for total, _ in cells.values()], dtype=np.int64)
    digests = np.array([divmod(digest, 2**64) for _, digest in cells.values()], dtype=np.uint64).reshape(-1, 2)
    return ItemSums(windows[order], code[order], totals[order], digests[order], table)


def cells_of(sums):
    labels = sums.table.labels.to_pylist()
    rows = zip(sums.windows.tolist(), sums.items.tolist(), sums.sums.tolist(), sums.digests.tolist(), strict=True)
    found = {(window, labels[item]): (total, high * 2**64 + low) for window, item, total, (high, low) in rows}
    assert len(found) == len(sums)
    assert sorted({label for _, label in found}) == sorted(labels), "a table of the items of its cells alone"
    order = sums.windows * len(sums.table) + sums.items
    assert (np.diff(order) > 0).all()
    return found


@settings(max_examples=60, deadline=None)
@given(cells=CELLS, shards=st.integers(1, 6), most_bytes=st.integers(1, 2000))
def test_sums_survive_shards_and_messages(cells, shards, most_bytes):
    sums = sums_of(cells)
    messages = [
        message for _, part in sums.shard_by_item(shards) for message in sum_messages(part, most_bytes=most_bytes)
    ]
    parts = [ItemSums.from_bytes(message) for message in messages]
    assert cells_of(ItemSums.merge(parts)) == cells
    for part, message in zip(parts, messages, strict=True):
        assert len(message) <= most_bytes or len(part) == 1
        assert len(part) >= 1
    of_shards = [set(part.table.labels.to_pylist()) for _, part in sums.shard_by_item(shards)]
    assert sum(map(len, of_shards)) == len(set().union(*of_shards)), "an item is in one shard"


@settings(max_examples=60, deadline=None)
@given(one=CELLS, other=CELLS)
def test_merging_adds_sums_and_digests(one, other):
    merged = cells_of(ItemSums.merge([sums_of(one), sums_of(other)]))
    assert set(merged) == {*one, *other}
    for cell, (total, digest) in merged.items():
        entries = [part[cell] for part in (one, other) if cell in part]
        assert total == sum(entry[0] for entry in entries)
        assert digest == sum(entry[1] for entry in entries) % 2**128


def test_an_empty_item_vanishes_in_a_cell_with_a_sum():
    cells = {(3, "a"): (5, 77), (4, "b"): (1, 2)}
    empty = {(3, "a"): (0, 0), (3, "b"): (0, 0)}
    assert cells_of(ItemSums.merge([sums_of(empty), sums_of(cells)])) == {**cells, (3, "b"): (0, 0)}


def test_a_sum_of_very_many_users_fits():
    """10^8 users of weight 12,000 in one cell, as the merge of ten thousand parts."""
    part = sums_of({(0, "a"): (10**4 * 12_000, 2**128 - 1)})
    merged = ItemSums.merge([ItemSums.from_bytes(part.to_bytes())] * 10_000)
    assert cells_of(merged) == {(0, "a"): (10**8 * 12_000, -10_000 % 2**128)}
    assert ItemSums.from_bytes(merged.to_bytes()).sums.tolist() == [12 * 10**11]


def test_sums_by_window_and_ranges():
    sums = sums_of({(1, "a"): (5, 1), (1, "b"): (6, 2), (9, "a"): (7, 3)})
    assert [(window, cells.stop - cells.start) for window, cells in sums.by_window()] == [(1, 2), (9, 1)]
    low, high = sums.select_range(slice(0, 2)), sums.select_range(slice(2, 3))
    assert (low.sums.tolist(), high.sums.tolist(), high.windows.tolist()) == ([*low.sums], [7], [9])
    assert sorted(low.sums.tolist()) == [5, 6]
    assert cells_of(sums.select(np.array([2]))) == {(9, "a"): (7, 3)}


def test_nothing_is_packed_and_unpacked():
    assert cells_of(ItemSums.merge([])) == {}
    assert cells_of(ItemSums.from_bytes(ItemSums.none().to_bytes())) == {}
    assert [*sum_messages(ItemSums.none())] == []
    assert [*ItemSums.none().shard_by_item(1)] == [*ItemSums.none().shard_by_item(3)] == []
    assert KnownItems.none().to_cells() == []
    assert len(KnownItems.from_cells([])) == len(NamedItems.merge([])) == 0
    assert len(NamedItems.from_bytes(NamedItems.none().to_bytes())) == 0


def _arrays(first=0, windows=(0, 1), items=(0, 0), sums=(1, 1), digests=4):
    table, _ = table_of(["a"])
    return pack_arrays(
        np.array([first]),
        np.array(windows, dtype=np.uint8),
        np.array(items, dtype=np.uint8),
        np.array(sums),
        np.zeros(digests, dtype=np.uint64),
        *table.arrays(),
    )


@pytest.mark.parametrize(
    "fault",
    [
        {"first": -1},
        {"first": 2**31},
        {"windows": (0,)},
        {"windows": (1, 0)},
        {"windows": (0, 0)},
        {"items": (0, 1)},
        {"sums": (1, -1)},
        {"digests": 3},
    ],
)
def test_damaged_sums_are_refused(fault):
    assert len(ItemSums.from_bytes(_arrays())) == 2
    with pytest.raises(ValueError, match="damaged"):
        ItemSums.from_bytes(_arrays(**fault))


# ---------------------------------------------------------------------------------------------------------------------
# Known items
# ---------------------------------------------------------------------------------------------------------------------


def named_of(*cells):
    """(window, label) as named items of level 1."""
    table, code = table_of([label for _, label in cells])
    windows = np.array([window for window, _ in cells], dtype=np.int64)
    order = np.lexsort((code, windows))
    ones = np.ones(len(cells), dtype=np.int64)
    return NamedItems(windows[order], code[order], ones, ones, table)


def known_of(known):
    return dict(zip(known.table.labels.to_pylist(), known.last_named.tolist(), strict=True))


def test_known_is_what_was_named_in_the_last_windows():
    known = KnownItems.none().after(named_of((2, "a"), (4, "a"), (3, "b"), (0, "c")), 5, 2)
    assert known_of(known) == {"a": 4, "b": 3}
    assert known_of(known.after(NamedItems.none(), 6, 2)) == {"a": 4}
    assert known_of(known.after(named_of((5, "b")), 6, 2)) == {"a": 4, "b": 5}
    assert known_of(known.after(named_of((5, "b")), 8, 2)) == {}
    assert known_of(known.after(named_of((5, "b")), 6, 0)) == {}
    assert known_of(known.after(named_of((5, "d")), 6, 100)) == {"a": 4, "b": 3, "d": 5}


def test_known_items_fit_in_cells_under_10_mb():
    labels = [f"{number:07d}" + "x" * 60 for number in range(150_000)]
    table, code = table_of(labels)
    last_named = np.empty(len(labels), dtype=np.int64)
    last_named[code] = np.arange(len(labels))
    cells = KnownItems(table, last_named).to_cells()
    assert len(cells) > 1
    assert max(map(len, cells)) < 10_000_000
    again = KnownItems.from_cells(reversed(cells))
    assert known_of(again) == dict(zip(labels, range(len(labels)), strict=True))
    assert (np.diff(again.table.hashes[:, 0].astype(object)) >= 0).all()
    with pytest.raises(ValueError, match="damaged"):
        KnownItems.from_cells([*cells, cells[0]])


# ---------------------------------------------------------------------------------------------------------------------
# Named items
# ---------------------------------------------------------------------------------------------------------------------


def test_named_items_in_slabs_of_windows():
    named = named_of((0, "a"), (9, "b"), (10, "a"), (35, "c"))
    slabs = {slab: (part.windows.tolist(), part.table.labels.to_pylist()) for slab, part in named.by_slab(10)}
    assert {slab: (windows, sorted(labels)) for slab, (windows, labels) in slabs.items()} == {
        0: ([0, 9], ["a", "b"]),
        1: ([10], ["a"]),
        3: ([35], ["c"]),
    }


def test_reports_are_in_order_of_size_and_say_nothing_of_what_is_left():
    chosen = naming_settings()
    table, code = table_of(["b", "a", "c"])
    named = NamedItems(np.full(3, 4), np.arange(3), np.array([1, 1, 2]), np.array([3, 3, 9])[np.argsort(code)], table)
    ((window, report),) = named.window_reports(chosen, chosen.stream)
    assert window == 4
    assert [hitter.item for hitter in report.heavy_hitters] == ["c", "a", "b"]
    assert (report.window_start, report.window_end) == (
        chosen.schedule.window_start_micros(4),
        chosen.schedule.window_end_micros(4),
    )
    assert report.epsilon_spent == report.epsilon_total == chosen.epsilon
    assert all(hitter.zone is None and hitter.noisy_count is None for hitter in report.heavy_hitters)
    with pytest.raises(ValueError, match="damaged"):
        NamedItems.from_bytes(
            NamedItems(named.windows, named.items + 1, named.levels, named.at_least_users, table).to_bytes()
        )
