"""The label of an item that is named by several fields: ``DE / page``.

No two different rows of values, of whatever number, have one label. In a value a backslash is doubled, and a slash that
stands alone (a blank or an end of the value on both sides) gets a backslash before it. So the separator stands nowhere
but between values, and each value can be read again (tests/unit/test_item_fields.py has the inverse).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.monitor.event_ids import id_of_value

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
