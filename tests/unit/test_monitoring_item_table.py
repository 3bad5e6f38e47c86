"""Tables of items: the order of 128-bit hashes, and one entry for each, whatever the words that two hashes share."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.monitoring.item_table import ItemTable

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
