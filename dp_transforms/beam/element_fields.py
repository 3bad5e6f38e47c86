"""Element fields: where the user, the item and the time of an element of a PCollection are.

One rule: a function is asked; a mapping by its key; a plain tuple or list is ``(user, item)``, by position; all else,
such as rows and NamedTuples, by the name of an attribute. What the type of the elements can say is checked when the
pipeline is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
from apache_beam.typehints import typehints
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import named_fields_from_element_type

Getter = Callable[[Any], Any]
_NUMBERS = {int, float, np.int64, np.int32, np.int16, np.int8, np.float64, np.float32}


def getter_of(field: str | Getter, position: int) -> Getter:
    """position: in a pair. A step that sets timestamps often loses the type of elements, so each is looked at: a
    NamedTuple (item, user) must not be read by position."""
    if not isinstance(field, str):
        return field

    def get(element: Any) -> Any:
        if isinstance(element, Mapping):
            return element[field]
        if not isinstance(element, (tuple, list)) or hasattr(element, "_fields"):
            return getattr(element, field)
        if len(element) != 2:
            raise ValueError("the element is not a pair (user, item).")
        return element[position]

    return get


def check_getters(
    element_type: Any,
    user: str | Getter,
    items: Sequence[str | Getter],
    time: str | Getter | None,
    time_unit: str | None,
) -> None:
    """Raises ValueError where elements of this type cannot have these fields, or have numbers for times without a
    unit."""
    names = fields_of(element_type)
    if names is not None:
        times = [] if time is None else [("time", time)]
        for flag, field in [("user", user), *(("item", item) for item in items), *times]:
            if isinstance(field, str) and field not in names:
                raise ValueError(
                    f"{flag}={field!r} is not a field of the input, which has {', '.join(names)}."
                    " Name one of them, or give a function."
                )
        if isinstance(time, str) and time_unit is None and {names[time], *get_args(names[time])} & _NUMBERS:
            raise ValueError(f"the field {time!r} has numbers: give time_unit, one of s, ms, us.")
    elif may_be_mapping(element_type):  # whose keys no type says
        return
    elif callable(user) and callable(items[0]):
        if isinstance(time, str):
            raise ValueError("the input has no schema: give a function for time as well.")
    elif callable(user) or callable(items[0]):
        raise ValueError("the input has no schema: give functions for both user and item, or pairs (user, item).")
    elif not _may_be_pair(element_type):
        raise ValueError(
            "the input must have a schema, or be dicts, pairs (user, item) or EventBatch, got elements of"
            f" {element_type!r}."
            " Give functions for user and item, or declare the types with .with_output_types(tuple[str, str])."
        )
    elif isinstance(time, str) and not _is_anything(element_type):
        raise ValueError("pairs (user, item) have no field for their time: give a function for time.")


def fields_of(element_type: Any) -> dict[str, Any] | None:
    """Names and types of the fields of elements with a schema; None for others."""
    row_type = RowTypeConstraint.from_user_type(element_type) if isinstance(element_type, type) else element_type
    return dict(named_fields_from_element_type(row_type)) if isinstance(row_type, RowTypeConstraint) else None


def may_be_mapping(element_type: Any) -> bool:
    """Whether elements of this type are dicts or other mappings, or may also be: of a Union."""
    constraint = typehints.normalize(element_type)
    if isinstance(constraint, typehints.UnionConstraint):
        return any(map(may_be_mapping, constraint.union_types))
    return isinstance(constraint, (typehints.DictConstraint, typehints.MappingTypeConstraint))


def _may_be_pair(element_type: Any) -> bool:
    if _is_anything(element_type):
        return True
    constraint = typehints.normalize(element_type)
    return isinstance(constraint, typehints.TupleHint.TupleConstraint) and len(constraint.tuple_types) == 2


def _is_anything(element_type: Any) -> bool:
    return element_type in (Any, typehints.Any, object)
