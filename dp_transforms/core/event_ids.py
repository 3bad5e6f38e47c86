"""What an id of a user or an item is: one rule for all readers, and one reason for each value that is not an id.

An id is UTF-8 text of 1 to 16,384 bytes, kept as it is spelled. A whole number is the text of its digits: the integer 7
and the text ``7`` are the same id, ``007`` is another. A UUID is its text in lower case.

A value that is not an id has one reason, the first of these that applies: it is missing (there is no value), it has the
wrong type, it is too long, it is not UTF-8, it is empty. "Too long" comes before "not UTF-8" because readers may pass
over a long cell without looking at its bytes.
"""

from __future__ import annotations

import decimal
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MAX_ID_BYTES = 16_384  # one longer label would be copied with each of its windows, and no report needs it
ID_RULE = f"UTF-8 text of 1 to {MAX_ID_BYTES:,} bytes"

# Faults of a value, uint8; 0 is none. Rejected rows are reported in the order of these numbers; 5 is a bad time.
MISSING, EMPTY, NOT_UTF8, WRONG_TYPE, TOO_LONG = 1, 2, 3, 4, 6
_REASONS = {
    MISSING: "missing {0}",
    WRONG_TYPE: "{0} has the wrong type",
    TOO_LONG: f"{{0}} is longer than {MAX_ID_BYTES:,} bytes",
    NOT_UTF8: "{0} is not valid UTF-8 (of Latin-1: iconv -f latin1 -t utf-8)",
    EMPTY: "empty {0}",
}
_DIGITS_OF_UUID = [place for place in range(36) if place not in (8, 13, 18, 23)]  # others are dashes
_MOST_BITS = 4 * MAX_ID_BYTES  # a whole number of more bits has more digits than an id may have bytes


def fault_reason(fault: int, name: str) -> str:
    """Why a value was rejected. name: ``user`` or ``item``. Contains no part of the value."""
    return _REASONS[fault].format(name)


class BadIdError(ValueError):
    """A value that is not an id. Its message is the reason, and contains no part of the value."""


def id_of_value(value: Any, name: str) -> str:
    """The id of one value: text, UTF-8 bytes, a whole number or a UUID. Raises BadIdError. name: ``user``, ``item``."""
    text, fault = _text_of_value(value)
    if fault:
        raise BadIdError(fault_reason(fault, name))
    return text


def _text_of_value(value: Any) -> tuple[str, int]:
    """The id and 0, or some text and the fault."""
    if value is None:
        return "", MISSING
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return _text_of_whole(int(value))
    if isinstance(value, uuid.UUID):
        return str(value), 0
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")  # bytes that are not UTF-8 where it holds a lone surrogate
    elif isinstance(value, (bytes, bytearray)):
        data = bytes(value)
    else:
        return "", WRONG_TYPE
    if len(data) > MAX_ID_BYTES:
        return "", TOO_LONG
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "", NOT_UTF8
    return text, 0 if text else EMPTY


def _text_of_whole(number: int) -> tuple[str, int]:
    if number.bit_length() > _MOST_BITS:
        return "", TOO_LONG
    text = f"{decimal.Decimal(number):f}"  # Python's own conversion ends at 4,300 digits
    return (text, 0) if len(text) <= MAX_ID_BYTES else ("", TOO_LONG)


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
            is_utf8 = np.fromiter((_is_utf8(value) for value in binary.to_pylist()), np.bool_, len(binary))
            text = pc.if_else(pa.array(is_utf8), binary, b"").cast(pa.string())
            faults[~is_utf8] = NOT_UTF8
    if text.null_count:
        faults[text.is_null().to_numpy(zero_copy_only=False)] = MISSING
        text = text.fill_null("")
    is_empty = pc.equal(pc.binary_length(text), 0).to_numpy(zero_copy_only=False)
    faults[is_empty & (faults == 0)] = EMPTY
    return text, faults


def is_uuid_type(column_type: pa.DataType) -> bool:
    return isinstance(column_type, pa.UuidType)


def uuid_texts(column: pa.Array) -> pa.StringArray:
    """UUIDs as text, as Python and DuckDB spell them."""
    count, storage = len(column), column.storage
    cells = memoryview(storage.buffers()[1] or b"")[16 * storage.offset : 16 * (storage.offset + count)]
    digits = cells.hex().encode()
    texts = np.full((count, 36), ord("-"), np.uint8)
    texts[:, _DIGITS_OF_UUID] = np.frombuffer(digits, np.uint8).reshape(count, 32)
    ends = np.arange(count + 1, dtype=np.int32) * 36
    found = pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(texts))
    return pc.if_else(storage.is_valid(), found, None) if storage.null_count else found


def are_ids(texts: pa.StringArray) -> bool:
    """Whether all of them are ids."""
    lengths = pc.binary_length(texts)
    if len(texts) and not 0 < pc.min(lengths).as_py() <= pc.max(lengths).as_py() <= MAX_ID_BYTES:
        return False
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def id_column(name: str, column: pa.Array | pa.ChunkedArray | Sequence[Any]) -> pa.DictionaryArray:
    """Texts, whole numbers or UUIDs as ids. Raises ValueError for columns of other types; the texts are not checked."""
    try:
        array = column if isinstance(column, (pa.Array, pa.ChunkedArray)) else pa.array(column)
        array = one_chunk(array) if isinstance(array, pa.ChunkedArray) else array
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if is_uuid_type(array.type):
            array = uuid_texts(array)
        kinds = (
            *(pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
            pa.types.is_null,  # of no rows, or of rows without a value
        )
        if any(is_kind(array.type) for is_kind in kinds):
            return array.cast(pa.string()).dictionary_encode()
    except (pa.ArrowException, TypeError):
        raise ValueError(f"{name} must be one column of text or of whole numbers. Cast it to text.") from None
    raise ValueError(f"{name} must be text or whole numbers, got {array.type}. Cast it to text.")


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def as_binary(array: pa.Array) -> pa.BinaryArray:
    """The bytes of a text column of any layout, unchecked."""
    if pa.types.is_string_view(array.type) or pa.types.is_large_string(array.type):
        array = array.cast(pa.string())
    elif not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        array = array.cast(pa.binary())
    return array.view(pa.binary()) if pa.types.is_string(array.type) else array


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


# The label of an item that is named by several fields: ``DE / page``.
#
# No two different rows of values, of whatever number, have one label. In a value a backslash is doubled, and a slash
# that stands alone (a blank or an end of the value on both sides) gets a backslash before it. So the separator stands
# nowhere but between values, and each value can be read again (tests/unit/test_item_fields.py has the inverse).

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
