"""Tables of items, and rows sorted together."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core import columns as packed_columns
from dp_transforms.core import item_table
from dp_transforms.core.columns import order_in_groups, sort_distinct
from dp_transforms.core.item_table import ItemTable

WORD = st.sampled_from([0, 1, 5, 2**63, 2**63 + 1, 2**64 - 1]) | st.integers(0, 2**64 - 1)
HASHES = st.lists(st.tuples(WORD, WORD), max_size=20)


def label(item):
    return f"{item[0]}-{item[1]}"


def table_of(items):
    """By the way that a log goes; the hash of a label is what it says."""

    def hashes(labels):
        said = [tuple(map(int, text.split("-"))) for text in labels.to_pylist()]
        return np.array(said, dtype=np.uint64).reshape(-1, 2)

    return ItemTable.of_labels(pa.array(list(map(label, items)), pa.string()), hashes)


def content(table):
    return list(zip(map(tuple, table.hashes.tolist()), table.labels.to_pylist(), strict=True))


@given(items=HASHES)
def test_labels_become_distinct_items_in_the_order_of_their_hashes(items):
    table, positions = table_of(items)
    assert content(table) == [(item, label(item)) for item in sorted(set(items))]
    assert [content(table)[at][0] for at in positions.tolist()] == items


@given(parts=st.lists(HASHES, min_size=2, max_size=4), keep=st.randoms(use_true_random=False))
def test_labels_are_those_of_their_items_however_they_are_merged_and_cut(monkeypatch, parts, keep):
    """Merged from what was merged and cut before, with labels in one piece and in many."""
    for joined_bytes in (0, 200, 1 << 20):
        monkeypatch.setattr(item_table, "_JOINED_BYTES", joined_bytes)
        union = ItemTable.none()
        for items in parts:
            union, _ = ItemTable.merge([union, table_of(items)[0]])
            union = union.take(np.flatnonzero([keep.random() < 0.8 for _ in range(len(union))]))
            assert union.labels.to_pylist() == list(map(label, map(tuple, union.hashes.tolist())))
            sliced = ItemTable.with_labels(union.hashes[1:], union.labels[1:])
            for table in (union, sliced):
                assert content(ItemTable.from_arrays(*table.arrays())) == content(table)


def test_tables_with_more_than_2_gb_of_labels_are_merged():
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


def test_more_than_4_gb_of_labels_are_packed_with_wide_offsets():
    """Whatever is packed is read again: shorter texts have offsets of 32 bits, as before."""
    wide = np.array([0, 2**32 + 5], np.int64)
    table = ItemTable.from_arrays(np.array([1, 2], np.uint64), wide, np.zeros(2**32 + 5, np.uint8))
    assert len(table) == 1
    hashes, offsets, text = table_of([(1, 2)])[0].arrays()
    assert offsets.dtype == np.uint32
    assert content(ItemTable.from_arrays(hashes, offsets.astype(np.int64), text)) == [((1, 2), "1-2")]


@pytest.mark.parametrize("limit", [2**62, 2], ids=["as one integer", "column by column"])
@given(
    parts=st.lists(st.lists(st.tuples(st.integers(0, 2**30), st.integers(0, 4)), max_size=20), min_size=1, max_size=3)
)
def test_distinct_rows_of_several_tables_are_in_order(limit, parts):
    columns = [np.array(rows, dtype=np.int64).reshape(-1, 2).T for rows in parts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_columns, "_SORT_KEY_LIMIT", limit)
        found = sort_distinct(columns, [10, 5])
    assert list(zip(*(column.tolist() for column in found), strict=True)) == sorted(set(itertools.chain(*parts)))


SPREAD = st.integers(0, 2**64 - 1)
ALIKE = st.integers(0, 63).map((1 << 63).__add__)  # apart in the last bits alone, where a code takes place


@given(rows=st.lists(st.tuples(st.integers(0, 5) | st.integers(0, 2**40), SPREAD | ALIKE, SPREAD), max_size=40))
def test_rows_are_ordered_by_code_then_hash_also_where_hashes_begin_alike(rows):
    codes = np.array([code for code, _, _ in rows], dtype=np.int64)
    hashes = np.array([row[1:] for row in rows], dtype=np.uint64).reshape(-1, 2)
    assert order_in_groups(codes, hashes.__getitem__).tolist() == sorted(range(len(rows)), key=rows.__getitem__)
