"""What an id is, of single values and of columns; batches of events hold ids as one type of column alone."""

import re
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core.event_batch import MAX_ID_BYTES, EventBatch, are_ids, concatenate
from dp_transforms.core.randomness import IdHasher
from dp_transforms.logs.event_ids import EMPTY, MISSING, BadIdError, fault_reason, id_of_value, ids_of_values

GOOD_TEXTS = [b"u", b" ", b"\0", b"\n", b"007", "\N{SNOWMAN}".encode(), b"x" * MAX_ID_BYTES]


@pytest.mark.parametrize("value", GOOD_TEXTS)
def test_an_id_is_kept_as_it_is_spelled(value):
    texts, faults = ids_of_values(pa.array([value]))
    assert (texts.to_pylist(), faults.tolist()) == ([value.decode()], [0])
    assert id_of_value(value, "user") == id_of_value(value.decode(), "user") == value.decode()
    assert id_of_value(bytearray(value), "user") == id_of_value(np.str_(value.decode()), "user")
    assert are_ids(pa.array([value.decode()]))


@given(st.binary(max_size=40) | st.text(max_size=9).map(str.encode))
def test_bytes_are_one_id_or_none_by_every_way(value):
    texts, faults = ids_of_values(pa.array([value], pa.binary()))
    if faults[0]:
        with pytest.raises(BadIdError, match=f"^{re.escape(fault_reason(faults[0], 'user'))}$"):
            id_of_value(value, "user")
    else:
        assert texts.to_pylist() == [id_of_value(value, "user")]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()])
def test_columns_of_text_of_any_layout(kind):
    texts, faults = ids_of_values(pa.array(["b", None, "", "a"], kind))
    assert texts.to_pylist() == ["b", "", "", "a"]
    assert faults.tolist() == [0, MISSING, EMPTY, 0]


@pytest.mark.parametrize("number", [0, 7, -7, 2**63, -(10**50), np.uint64(2**64 - 1), np.int8(-1)])
def test_a_whole_number_is_the_text_of_its_digits(number):
    assert id_of_value(number, "user") == str(number)
    if abs(int(number)) < 2**63:
        assert ids_of_values(pa.array([number]))[0].to_pylist() == [str(number)]


def test_whole_numbers_have_as_many_digits_as_ids_have_bytes():
    """Python's own conversion ends at 4,300 digits; a line of JSON may hold more."""
    assert id_of_value(10 ** (MAX_ID_BYTES - 1), "user") == "1" + "0" * (MAX_ID_BYTES - 1)
    assert id_of_value(-(10 ** (MAX_ID_BYTES - 2)) - 3, "user") == "-1" + "0" * (MAX_ID_BYTES - 3) + "3"
    assert not are_ids(pa.array(["a", ""]))
    assert not are_ids(pa.array(["x" * (MAX_ID_BYTES + 1)]))
    for number in (10**MAX_ID_BYTES, -(10 ** (MAX_ID_BYTES - 1)), 1 << 10_000_000):
        with pytest.raises(BadIdError, match=r"^user is longer than 16,384 bytes$"):
            id_of_value(number, "user")


TIMES = np.array([1, 2, 3], dtype=np.int64)
IDS = pa.array(["a", "b", "a"]).dictionary_encode()


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["7", "8", "7"]),
        pa.array(["7", "8", "7"], pa.large_string()),
        pa.array(["7", "8", "7"], pa.large_string()).dictionary_encode(),
        pa.array(["7", "8", "7"], pa.string_view()),
        pa.array([7, 8, 7], pa.uint16()),
        pa.chunked_array([pa.array([7]), pa.array([8, 7])]),
        pa.chunked_array([], pa.string()),
        pa.nulls(0),
        [],
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
    assert [id_of_value(one, "user") for one in ids] == batch.user.to_pylist()


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (pa.array(["a", "b", "a"], pa.large_string()).dictionary_encode(), "user must be dictionary.*of_columns"),
        (pa.array(["a", "b", "a"]), "user must be dictionary"),
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


def test_no_rows_have_no_types():
    assert len(EventBatch.of_columns([], [], [])) == 0
    with pytest.raises(ValueError, match="none of them null"):
        EventBatch.of_columns(pa.nulls(3), IDS, TIMES)


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
    with pytest.raises(ValueError, match="ids must be a string array without nulls"):
        IdHasher(b"k" * 32)(pa.array(["a"], pa.large_string()))


def test_bytes_come_back_and_other_bytes_are_refused():
    batch = EventBatch(IDS, IDS, TIMES)
    copy = EventBatch.from_bytes(batch.to_bytes())
    assert (copy.user.to_pylist(), copy.time_micros.tolist()) == (["a", "b", "a"], [1, 2, 3])
    data = batch.to_bytes()
    for wrong in (b"", b"x" * 100, data[: len(data) // 2]):
        with pytest.raises(ValueError, match="EventBatch"):
            EventBatch.from_bytes(wrong)


def test_batches_are_joined_in_order():
    others = EventBatch.of_columns(["b", "c"], ["a", "d"], [5, 4])
    joined = concatenate([EventBatch(IDS, IDS, TIMES), others, EventBatch(IDS, IDS, TIMES)])
    assert joined.user.to_pylist() == ["a", "b", "a", "b", "c", "a", "b", "a"]
    assert joined.item.to_pylist() == ["a", "b", "a", "a", "d", "a", "b", "a"]
    assert joined.time_micros.tolist() == [1, 2, 3, 5, 4, 1, 2, 3]
    assert concatenate([others]) is others
