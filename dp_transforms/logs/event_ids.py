"""Values of a log -> ids (`core.event_batch` says what an id is): one rule for all readers, and one reason for each
value that is not an id. And the label of an item that is named by several fields.

A value that is not an id has one reason, the first of these that applies: it is missing (there is no value), it has the
wrong type, it is too long, it is not UTF-8, it is empty. "Too long" comes before "not UTF-8" because readers may pass
over a long cell without looking at its bytes.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.core.event_batch import MAX_ID_BYTES, is_uuid_type, uuid_texts

# Faults of a value, uint8; 0 is none. Rejected rows are reported in the order of these numbers.
MISSING, EMPTY, NOT_UTF8, WRONG_TYPE, BAD_TIME, TOO_LONG = 1, 2, 3, 4, 5, 6
_REASONS = {
    MISSING: "missing {0}",
    WRONG_TYPE: "{0} has the wrong type",
    TOO_LONG: f"{{0}} is longer than {MAX_ID_BYTES:,} bytes",
    NOT_UTF8: "{0} is not valid UTF-8 (of Latin-1: iconv -f latin1 -t utf-8)",
    EMPTY: "empty {0}",
    BAD_TIME: "bad {0}",
}


def fault_reason(fault: int, name: str) -> str:
    """Why a value was rejected. name: ``user``, ``item`` or ``time``. Contains no part of the value."""
    return _REASONS[fault].format(name)


class BadIdError(ValueError):
    """A value that is not an id. Its message is the reason, and contains no part of the value."""


def id_of_value(value: Any, name: str) -> str:
    """The id of one value: text, UTF-8 bytes, a whole number or a UUID. Raises BadIdError. name: ``user``, ``item``."""
    fault, data = TOO_LONG, value
    with contextlib.suppress(ValueError):  # of a number of over 4,300 digits, or bytes that are not UTF-8
        if isinstance(value, (int, np.integer, uuid.UUID)) and not isinstance(value, bool):
            data = str(value)
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogatepass")
        fault = NOT_UTF8
        if not isinstance(data, (bytes, bytearray)):
            fault = MISSING if value is None else WRONG_TYPE
        elif not data:
            fault = EMPTY
        elif len(data) > MAX_ID_BYTES:
            fault = TOO_LONG
        else:
            return data.decode()
    raise BadIdError(fault_reason(fault, name))


def ids_of_values(values: pa.Array) -> tuple[pa.StringArray, npt.NDArray[np.uint8]]:
    """The same rule for an Arrow array of whole numbers, of UUIDs, or of text or bytes of any layout.

    Returns n texts and their faults, uint8[n]; a value with a fault becomes the empty text, which no id is.
    """
    faults = np.zeros(len(values), np.uint8)
    if pa.types.is_integer(values.type):
        text = values.cast(pa.string())
    elif is_uuid_type(values.type):
        text = uuid_texts(values)
    else:
        binary = as_binary(values)
        is_long = pc.greater(pc.binary_length(binary), MAX_ID_BYTES).fill_null(False)
        if is_long.true_count:
            faults[is_long.to_numpy(zero_copy_only=False)] = TOO_LONG
            binary = pc.if_else(is_long, b"", binary)
        try:
            text = binary.cast(pa.string())
        except pa.ArrowInvalid:
            are_utf8 = np.fromiter((is_utf8(value or b"") for value in binary.to_pylist()), np.bool_, len(binary))
            text = pc.if_else(pa.array(are_utf8), binary, b"").cast(pa.string())
            faults[~are_utf8] = NOT_UTF8
    if text.null_count:
        faults[text.is_null().to_numpy(zero_copy_only=False)] = MISSING
        text = text.fill_null("")
    is_empty = pc.equal(pc.binary_length(text), 0).to_numpy(zero_copy_only=False)
    faults[is_empty & (faults == 0)] = EMPTY
    return text, faults


def is_text_type(column_type: pa.DataType) -> bool:
    checks = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return any(getattr(pa.types, f"is_{name}")(column_type) for name in checks)


def as_binary(array: pa.Array) -> pa.BinaryArray:
    """The bytes of a text column of any layout, unchecked."""
    if pa.types.is_string_view(array.type) or pa.types.is_large_string(array.type):
        array = array.cast(pa.string())
    elif not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        array = array.cast(pa.binary())
    return array.view(pa.binary()) if pa.types.is_string(array.type) else array


def is_utf8(text: bytes) -> bool:
    try:
        return text.isascii() or text.decode() is not None
    except UnicodeDecodeError:
        return False


# The label of an item that is named by several fields: ``DE / page``.
#
# No two different rows of values, of whatever number, have one label. In a value a backslash is doubled, and a slash
# that stands alone (a blank or an end of the value on both sides) gets a backslash before it. So the separator stands
# nowhere but between values, and each value can be read again (tests/logs/test_event_ids.py has the inverse).

SEPARATOR = " / "
_ALONE, _ESCAPED = r"(\A| )/( |\z)", r"\1\\/\2"
_ALONE_IN_PYTHON = re.compile(r"(\A| )/( |\Z)")


def joined_label(values: Sequence[str]) -> str:
    """Of one row; of a single value that value as it is."""
    return values[0] if len(values) == 1 else SEPARATOR.join(map(_escaped, values))


def joined_labels(values: pa.StringArray, others: pa.StringArray) -> pa.StringArray:
    """Of n rows, of whose values all but the last ones are joined already. others: the last ones, `escaped`."""
    return pc.binary_join_element_wise(values, others, SEPARATOR)


def escaped(values: pa.StringArray) -> pa.StringArray:
    """Values as they stand in labels."""
    doubled = pc.replace_substring(values, "\\", "\\\\")
    once = pc.replace_substring_regex(doubled, _ALONE, _ESCAPED)
    return pc.replace_substring_regex(once, _ALONE, _ESCAPED)  # those that share a blank with one before


def label_getter(getters: Sequence[Callable[[Any], Any]]) -> Callable[[Any], str]:
    """From an element to its label. Raises BadIdError for an element of which a value is no id."""
    return lambda element: joined_label([id_of_value(get(element), "item") for get in getters])


def _escaped(value: str) -> str:
    once = _ALONE_IN_PYTHON.sub(_ESCAPED, value.replace("\\", "\\\\"))
    return _ALONE_IN_PYTHON.sub(_ESCAPED, once)
