"""Packed arrays and groups of equal rows."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.monitor.equal_rows import group_slices, group_starts
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.packed_arrays import pack_arrays, unpack_arrays


@given(st.lists(st.tuples(st.sampled_from(["u1", "u4", "i8", "u8"]), st.integers(0, 5)), max_size=6))
@settings(deadline=None)
def test_packed_arrays_round_trip(shapes: list[tuple[str, int]]) -> None:
    arrays = [np.arange(length).astype(f"<{kind}") * 37 for kind, length in shapes]
    again = unpack_arrays(pack_arrays(*arrays))
    assert [array.dtype for array in again] == [array.dtype for array in arrays]
    assert all(np.array_equal(one, other) for one, other in zip(again, arrays, strict=True))


def test_foreign_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="not packed arrays of this version"):
        unpack_arrays(b"SHH0" + bytes(8))
    with pytest.raises(ValueError, match="not an EventBatch"):
        EventBatch.from_bytes(b"SHH1 and more")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=12))
@settings(deadline=None)
def test_groups_of_equal_rows(rows: list[tuple[int, int]]) -> None:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 2)
    slices = group_slices(columns[:, 0], columns[:, 1])
    assert [rows[part] for part in slices] == [[*group] for _, group in itertools.groupby(rows)]
    assert group_starts(columns[:, 0], columns[:, 1]).tolist() == [part.start for part in slices]


def test_labels_that_are_not_text_or_not_there_are_refused() -> None:
    hashes, offsets = np.arange(4, dtype=np.uint64), np.array([0, 1, 3], dtype=np.uint32)

    def labels_of(text: bytes, offsets: npt.NDArray[np.uint32] = offsets) -> list[str]:
        return ItemTable.from_arrays(hashes, offsets, np.frombuffer(text, dtype=np.uint8)).labels.to_pylist()

    assert labels_of("aé".encode()) == ["a", "é"]
    for text, wrong in ((b"a\xff\xff", offsets), (b"a", offsets), (b"abc", offsets[:0]), (b"abc", offsets[:2])):
        with pytest.raises(ValueError, match="packed arrays are damaged"):
            labels_of(text, wrong)
