"""Batches of events hold ids as one type of column alone, and refuse what would blur identities."""

import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core.event_batch import EventBatch, concatenate
from dp_transforms.core.randomness import IdHasher

TIMES = np.array([1, 2, 3], dtype=np.int64)
IDS = pa.array(["a", "b", "a"]).dictionary_encode()


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["7", "8", "7"]),
        pa.array(["7", "8", "7"], pa.large_string()).dictionary_encode(),
        pa.array(["7", "8", "7"], pa.string_view()),
        pa.array([7, 8, 7], pa.uint16()),
        pa.chunked_array([pa.array([7]), pa.array([8, 7])]),
        pa.nulls(0),
        ["7", "8", "7"],
        np.array([7, 8, 7]),
    ],
)
def test_columns_of_any_layout_become_the_same_ids(column):
    batch = EventBatch.of_columns(column, column, TIMES[: len(column)])
    for ids in (batch.user, batch.item):
        assert ids.type == pa.dictionary(pa.int32(), pa.string())
        assert ids.to_pylist() == ["7", "8", "7"][: len(column)]


@pytest.mark.parametrize("made", [list, lambda ids: pa.array([one.bytes for one in ids], pa.uuid())])
def test_uuids_are_their_texts(made):
    ids = [uuid.UUID(int=number << 90) for number in (0, 1, 2**38 - 1)]
    batch = EventBatch.of_columns(made(ids), made(ids), TIMES)
    assert batch.user.to_pylist() == batch.item.to_pylist() == [str(one) for one in ids]


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (pa.array(["a", "b", "a"], pa.large_string()).dictionary_encode(), "user must be dictionary.*of_columns"),
        (pa.array(["a", None, "a"]).dictionary_encode(), "none of them null"),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array(["a", None])), "none of them null"),
        (pa.array(["a", "", "a"]).dictionary_encode(), "1 to 16,384 bytes"),
        (pa.array(["a", "x" * 16_385, "a"]).dictionary_encode(), "1 to 16,384 bytes"),
        (pa.array([b"a", b"\xff", b"a"]).view(pa.string()).dictionary_encode(), "UTF-8"),
        (IDS.slice(0, 2), "one length"),
    ],
)
def test_what_would_blur_identities_is_refused(column, named):
    with pytest.raises(ValueError, match=named):
        EventBatch(column, IDS, TIMES)
    with pytest.raises(ValueError, match=named.replace("user", "item")):
        EventBatch(IDS, column, TIMES)


def test_times_and_types_are_checked():
    with pytest.raises(ValueError, match="int64, got float64"):
        EventBatch(IDS, IDS, TIMES.astype(np.float64))
    invalid = pa.array([b"a", b"\xff", b"a"]).view(pa.string())
    with pytest.raises(ValueError, match="UTF-8"):
        EventBatch.of_columns(invalid, IDS, TIMES)
    assert EventBatch.of_columns(IDS, IDS, [1, 2, 3]).time_micros.dtype == np.int64
    for wrong in (pa.array([1.5, 2, 3]), pa.array([True, False, True]), pa.array([b"a", b"b", b"c"]), ["a", 7, "b"], 7):
        with pytest.raises(ValueError, match=r"text or .*whole numbers"):
            EventBatch.of_columns(wrong, IDS, TIMES)
    with pytest.raises(ValueError, match="none of them null"):
        EventBatch.of_columns(pa.nulls(3), IDS, TIMES)
    with pytest.raises(ValueError, match="ids must be a string array without nulls"):
        IdHasher(b"k" * 32)(pa.array(["a"], pa.large_string()))


@given(data=st.data())
def test_bytes_that_an_engine_hands_back_changed_are_refused_or_a_batch(data):
    """Whichever byte it is: no error but a ValueError, and what is read can be used."""
    packed = EventBatch(IDS, IDS, TIMES).to_bytes()
    copy = EventBatch.from_bytes(packed)
    assert (copy.user.to_pylist(), copy.time_micros.tolist()) == (["a", "b", "a"], [1, 2, 3])
    for wrong in (b"", b"x" * 100, packed[: len(packed) // 2]):
        with pytest.raises(ValueError, match="EventBatch"):
            EventBatch.from_bytes(wrong)
    at, new = data.draw(st.integers(0, len(packed) - 1)), data.draw(st.binary(min_size=1, max_size=9))
    try:
        found = EventBatch.from_bytes(packed[:at] + new + packed[at + len(new) :])
    except ValueError:
        return
    assert len(found.user.to_pylist()) == len(found.item.to_pylist()) == len(found.time_micros) == len(found)


def test_batches_are_joined_in_order():
    others = EventBatch.of_columns(["b", "c"], ["a", "d"], [5, 4])
    joined = concatenate([EventBatch(IDS, IDS, TIMES), others, EventBatch(IDS, IDS, TIMES)])
    assert joined.user.to_pylist() == ["a", "b", "a", "b", "c", "a", "b", "a"]
    assert joined.item.to_pylist() == ["a", "b", "a", "a", "d", "a", "b", "a"]
    assert joined.time_micros.tolist() == [1, 2, 3, 5, 4, 1, 2, 3]
    assert concatenate([others]) is others
