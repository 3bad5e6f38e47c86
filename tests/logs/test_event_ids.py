"""What an id is, of single values and of columns; and labels of several values, which never meet and are read again."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_transforms.core.event_batch import MAX_ID_BYTES
from dp_transforms.logs.event_ids import (
    BadIdError,
    escaped,
    fault_reason,
    id_of_value,
    ids_of_values,
    joined_label,
    joined_labels,
    label_getter,
)


@given(st.binary(max_size=40) | st.text(max_size=9).map(str.encode))
@example(b"x" * MAX_ID_BYTES)
@example(b"x" * (MAX_ID_BYTES + 1))
@example(b"\xff" * (MAX_ID_BYTES + 1))
def test_bytes_are_one_id_or_none_by_every_way(value):
    texts, faults = ids_of_values(pa.array([value], pa.binary()))
    if faults[0]:
        with pytest.raises(BadIdError, match=f"^{re.escape(fault_reason(faults[0], 'user'))}$"):
            id_of_value(value, "user")
    else:
        assert texts.to_pylist() == [id_of_value(value, "user")]


@pytest.mark.parametrize("number", [0, 7, -7, 2**63, -(10**50), np.uint64(2**64 - 1), np.int8(-1)])
def test_a_whole_number_is_the_text_of_its_digits(number):
    assert id_of_value(number, "user") == str(number)
    if abs(int(number)) < 2**63:
        assert ids_of_values(pa.array([number]))[0].to_pylist() == [str(number)]


VALUES = (
    st.text(" /\\a", max_size=8) | st.sampled_from(["", "/", " / ", " / / ", "\\/", "/ / / /"]) | st.text(max_size=5)
)
ROWS = st.lists(VALUES, min_size=2, max_size=4)


def values_of(label):
    """The inverse of `joined_label`, of two values or more."""
    return [re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL) for value in label.split(" / ")]


@given(ROWS)
def test_each_label_is_read_again(values):
    """So two rows of values, of whatever number, never have one label."""
    assert values_of(joined_label(values)) == values
    assert joined_label(values[:1]) == values[0]


@given(st.lists(ROWS.filter(lambda row: len(row) > 2), min_size=1, max_size=6))
def test_columns_are_joined_as_rows_are(rows):
    for width in (2, 3):
        columns = [escaped(pa.array([row[place] for row in rows], pa.string())) for place in range(width)]
        labels = columns[0]
        for column in columns[1:]:
            labels = joined_labels(labels, column)
        assert labels.to_pylist() == [joined_label(row[:width]) for row in rows]


@pytest.mark.parametrize(
    ("values", "label"),
    [
        (["DE", "page"], "DE / page"),
        (["DE", "/home/a"], "DE / /home/a"),
        (["a / b", "c"], r"a \/ b / c"),
        (["/", "a\\b"], r"\/ / a\\b"),
        (["a", "", "b"], "a /  / b"),
        ([" ", "/ / /"], r"  / \/ \/ \/"),
    ],
)
def test_how_labels_look(values, label):
    assert joined_label(values) == label
    assert pc.binary_join_element_wise(*(escaped(pa.array([value])) for value in values), " / ").to_pylist() == [label]


def test_an_element_without_a_value_has_no_label():
    label_of = label_getter([lambda element: element[0], lambda element: element[1]])
    assert label_of(("DE", 7)) == "DE / 7"
    for element, reason in ((("DE", None), "missing item"), (("", "a"), "empty item"), ((0.5, "a"), "wrong type")):
        with pytest.raises(BadIdError, match=reason):
            label_of(element)
