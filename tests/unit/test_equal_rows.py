"""Sorting rows together with their places."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.monitor import equal_rows
from dp_transforms.monitor.equal_rows import (
    are_ascending,
    distinct_hashes,
    group_slices,
    group_starts,
    hash_order,
    order_in_groups,
    ranks_in_groups,
    sort_rows,
)


@pytest.mark.parametrize("limit", [2**62, 2], ids=["packed", "by argsort"])
@given(rows=st.lists(st.integers(0, 9) | st.integers(0, 2**62 - 1), max_size=40))
def test_rows_come_ascending_with_their_places_and_equal_ones_in_order(limit, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equal_rows, "_SORT_KEY_LIMIT", limit)
        ascending, order = sort_rows(np.array(rows, dtype=np.int64))
    expected = sorted(range(len(rows)), key=lambda place: (rows[place], place))
    assert order.tolist() == expected
    assert ascending.tolist() == [rows[place] for place in expected]


SPREAD = st.integers(0, 2**64 - 1)
ALIKE = st.integers(0, 63).map(
    lambda last: (1 << 63) + last
)  # apart in the last bits alone, where a position takes place


@given(hashes=st.lists(SPREAD | ALIKE, max_size=40))
def test_hashes_are_ordered_also_where_they_differ_in_their_last_bits_alone(hashes):
    order = hash_order(np.array(hashes, dtype=np.uint64))
    assert order.tolist() == sorted(range(len(hashes)), key=lambda place: (hashes[place], place))
    assert order.dtype == np.int64


@given(rows=st.lists(st.tuples(st.integers(0, 5) | st.integers(0, 2**40), SPREAD | ALIKE, SPREAD), max_size=40))
def test_rows_are_ordered_by_code_then_hash_also_where_hashes_begin_alike(rows):
    codes = np.array([code for code, _, _ in rows], dtype=np.int64)
    hashes = np.array([row[1:] for row in rows], dtype=np.uint64).reshape(-1, 2)
    assert order_in_groups(codes, hashes.__getitem__).tolist() == sorted(range(len(rows)), key=rows.__getitem__)


@given(hashes=st.lists(SPREAD | ALIKE, max_size=40).flatmap(lambda few: st.lists(st.sampled_from(few or [7]))))
def test_distinct_hashes_and_where_each_one_is(hashes):
    found, places = distinct_hashes(np.array(hashes, dtype=np.uint64))
    assert found.tolist() == sorted(set(hashes))
    assert [found[place] for place in places] == hashes
    assert (found.dtype, places.dtype) == (np.uint64, np.int64)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=12))
@settings(deadline=None)
def test_groups_of_equal_rows(rows):
    columns = np.array(rows, dtype=np.int64).reshape(-1, 2)
    slices = group_slices(columns[:, 0], columns[:, 1])
    assert [rows[part] for part in slices] == [[*group] for _, group in itertools.groupby(rows)]
    assert group_starts(columns[:, 0], columns[:, 1]).tolist() == [part.start for part in slices]
    assert ranks_in_groups(columns[:, 0], columns[:, 1]).tolist() == [
        place for part in slices for place in range(part.stop - part.start)
    ]
    assert are_ascending(columns[:, 0], columns[:, 1]) == (rows == sorted(set(rows)))
    assert are_ascending(columns[:, 1]) == all(one[1] < other[1] for one, other in itertools.pairwise(rows))
