"""Sums, known items and named items as columns: merging, cutting, packing, and bytes that are damaged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.monitor.followed_items import KnownItems
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.named_items import NamedItems
from tests.helpers.naming_runs import naming_settings
from tests.helpers.small_runs import SECRET

KEYS = naming_settings().stream_keys(SECRET)


def table_of(labels):
    return ItemTable.of_labels(pa.array(labels, pa.string()), KEYS.hash_items)


# --- Known items


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
    again = KnownItems.merge([KnownItems.from_bytes(cell) for cell in reversed(cells)])
    assert known_of(again) == dict(zip(labels, range(len(labels)), strict=True))
    assert (np.diff(again.table.hashes[:, 0].astype(object)) >= 0).all()


# --- Named items


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
