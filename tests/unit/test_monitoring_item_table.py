"""Tables of items: the order of 128-bit hashes, and one entry for each, whatever the words that two hashes share."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp_transforms.monitor import item_table
from dp_transforms.monitor.item_table import ItemTable

WORD = st.sampled_from([0, 1, 5, 2**63, 2**63 + 1, 2**64 - 1]) | st.integers(0, 2**64 - 1)
HASHES = st.lists(st.tuples(WORD, WORD), max_size=20)


def label(item: tuple[int, int]) -> str:
    return f"{item[0]}-{item[1]}"


def table_of(items: list[tuple[int, int]]) -> tuple[ItemTable, np.ndarray]:
    """By the way that a log goes; the hash of a label is what it says."""

    def hashes(labels: pa.StringArray) -> np.ndarray:
        said = [tuple(map(int, text.split("-"))) for text in labels.to_pylist()]
        return np.array(said, dtype=np.uint64).reshape(-1, 2)

    return ItemTable.of_labels(pa.array(list(map(label, items)), pa.string()), hashes)


def content(table: ItemTable) -> list[tuple[tuple[int, int], str]]:
    return list(zip(map(tuple, table.hashes.tolist()), table.labels.to_pylist(), strict=True))


@given(items=HASHES)
def test_labels_become_distinct_items_in_the_order_of_their_hashes(items: list[tuple[int, int]]) -> None:
    table, positions = table_of(items)
    assert content(table) == [(item, label(item)) for item in sorted(set(items))]
    assert [content(table)[at][0] for at in positions.tolist()] == items


@given(parts=st.lists(HASHES, min_size=2, max_size=4))
def test_merged_tables_hold_each_item_once_in_order(parts: list[list[tuple[int, int]]]) -> None:
    tables = [table_of(items)[0] for items in parts]
    union, positions = ItemTable.merge(tables)
    assert content(union) == [(item, label(item)) for item in sorted({item for items in parts for item in items})]
    for table, at in zip(tables, positions, strict=True):
        assert [content(union)[place] for place in at.tolist()] == content(table)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(HASHES, min_size=2, max_size=4), keep=st.randoms(use_true_random=False))
def test_labels_are_those_of_their_items_however_they_are_merged_and_cut(
    monkeypatch: pytest.MonkeyPatch, parts: list[list[tuple[int, int]]], keep: object
) -> None:
    """Merged from what was merged and cut before, with labels in one piece and in many."""
    for joined_bytes in (0, 200, 1 << 20):
        monkeypatch.setattr(item_table, "_JOINED_BYTES", joined_bytes)
        union = ItemTable.none()
        for items in parts:
            union, _ = ItemTable.merge([union, table_of(items)[0]])
            union = union.take(np.flatnonzero([keep.random() < 0.8 for _ in range(len(union))]))  # type: ignore[attr-defined]
            assert union.labels.to_pylist() == list(map(label, map(tuple, union.hashes.tolist())))
            sliced = ItemTable.with_labels(union.hashes[1:], union.labels[1:])
            for table in (union, sliced):
                assert content(ItemTable.from_arrays(*table.arrays())) == content(table)


def test_tables_with_more_than_2_gb_of_labels_are_merged() -> None:
    """An Arrow array of texts ends at 2^31 bytes. All labels here are zeros, in one piece of memory that the system
    gives only where it is written; they differ in length."""
    text = np.zeros(70_000 * 16_384, np.uint8)
    tables = []
    for first in (0, 1):
        lengths = 16_000 + np.arange(70_000) % 150 + 200 * first
        hashes = np.stack([2 * np.arange(70_000) + first, np.zeros(70_000)], axis=1).astype(np.uint64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32)
        tables.append(ItemTable.from_arrays(hashes.reshape(-1), offsets, text))
    union, _ = ItemTable.merge(tables)
    assert len(union) == 140_000
    few = union.take(np.array([0, 1, 2, 3, 139_998, 139_999]))
    assert [len(each) for each in few.labels.to_pylist()] == [16_000, 16_200, 16_001, 16_201, 16_099, 16_299]


def test_more_than_4_gb_of_labels_are_packed_with_wide_offsets() -> None:
    """Whatever is packed is read again: shorter texts have offsets of 32 bits, as before."""
    wide = np.array([0, 2**32 + 5], np.int64)
    table = ItemTable.from_arrays(np.array([1, 2], np.uint64), wide, np.zeros(2**32 + 5, np.uint8))
    assert len(table) == 1
    hashes, offsets, text = table_of([(1, 2)])[0].arrays()
    assert offsets.dtype == np.uint32
    assert content(ItemTable.from_arrays(hashes, offsets.astype(np.int64), text)) == [((1, 2), "1-2")]
