"""Records as JSON and back. What is stored follows from the annotations of the records alone.

A record is a frozen dataclass of numbers, texts, records, and lists of whole numbers or records; a choice that was not
made is a missing record. What is read is hostile: errors show one line and little.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from dp_transforms.checks import check_whole, is_whole, shown

FORMAT_VERSION = 5
_MOST_NUMBERS = 1_000
_SMALLEST = -(2**62)
_WRITE_ONE = "Write one with `shh plan --output`."
_R = TypeVar("_R")


class Record:
    """Base of records: every field has the type that is declared, so that 2 and 2.0 make one plan."""

    def __post_init__(self) -> None:
        for name, (kind, may_miss) in _fields_of(cast(Any, type(self))).items():
            value = getattr(self, name)
            if value is not None or not may_miss:
                object.__setattr__(self, name, _checked(name, value, kind))


@functools.cache
def _fields_of(record: Any) -> Mapping[str, tuple[Any, bool]]:
    """Of each field its type, and whether it may be missing."""
    found, hints = {}, typing.get_type_hints(record)
    for field in dataclasses.fields(record):
        hint = hints[field.name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        found[field.name] = (kinds[0], types.NoneType in kinds)
    return found


def _checked(name: str, value: Any, kind: Any) -> Any:
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name} must be a number, got {shown(value)}.")
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name} must be a finite number, got a larger one.") from None
    if kind is int:
        return check_whole(name, value, _SMALLEST)
    if typing.get_origin(kind) is tuple:
        is_pair, of_each = ... not in typing.get_args(kind), typing.get_args(kind)[0]
        if not isinstance(value, (list, tuple)) or len(value) > _MOST_NUMBERS or (is_pair and len(value) != 2):
            some = "a pair of" if is_pair else f"at most {_MOST_NUMBERS:,}"
            raise ValueError(f"{name} must be {some} {_names_of(of_each)}, got {shown(value)}.")
        if of_each is not int:
            return tuple(_checked(f"each of {name}", each, of_each) for each in value)
        return tuple(check_whole(f"each of {name}", each, 1) for each in value)
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, got {shown(value)}.")
    return value


def _names_of(kind: Any) -> str:
    return "whole numbers" if kind is int else f"{kind.__name__} records"


def as_fields(record: Any) -> dict[str, Any]:
    """What is stored of a record, and of those in it; without what is missing."""
    values = ((field.name, getattr(record, field.name)) for field in dataclasses.fields(record))
    return {name: _stored(value) for name, value in values if value is not None}


def _stored(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_stored, value))
    return as_fields(value) if dataclasses.is_dataclass(value) else value


def read_record(record: type[_R], stored: object, name: str) -> _R:
    """The record of what `as_fields` gave and JSON kept. name: of the record, for errors. Raises ValueError."""
    if not isinstance(stored, dict):
        raise ValueError(f"{name} must be an object, got {shown(stored)}. {_WRITE_ONE}")
    left, values = dict(stored), {}
    for field, (kind, may_miss) in _fields_of(cast(Any, record)).items():
        if field not in left:
            if not may_miss:
                left[field] = None
            continue
        value = left.pop(field)
        if value is None:
            raise ValueError(f"{field} must not be null: leave it out. {_WRITE_ONE}")
        of_each = next(iter(typing.get_args(kind)), None)
        if dataclasses.is_dataclass(of_each) and isinstance(value, list):
            value = [read_record(cast(Any, of_each), each, f"each of {field}") for each in value]
        is_record = dataclasses.is_dataclass(kind)
        values[field] = read_record(kind, value, field) if is_record else value
    if left:
        wrong = shown(", ".join(sorted(left)))[1:-1]
        raise ValueError(f"{name} has missing or unknown fields: {wrong}. {_WRITE_ONE}")
    return record(**values)


def fingerprint_of(fields: Mapping[str, Any]) -> str:
    """Hex SHA-256 of the canonical JSON of fields: equal for equal ones only. 2 and 2.0 are one number."""
    text = json.dumps(_canonical(fields), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def sealed(fields: Mapping[str, Any]) -> str:
    """As JSON, with the fingerprint of the fields. One line a field; a list has one line."""
    return _text({**fields, "fingerprint": fingerprint_of(fields)}, "\n")


def _text(value: Any, line_end: str) -> str:
    if not isinstance(value, dict):
        return json.dumps(value, allow_nan=False)
    inner = line_end + "  "
    lines = (f"{inner}{json.dumps(name)}: {_text(each, inner)}" for name, each in value.items())
    return "{" + ",".join(lines) + line_end + "}"


def unsealed(text: str | bytes) -> dict[str, Any]:
    """The fields of a text of `sealed`, without the version. Raises ValueError, also for another version.

    The fingerprint finds changes that were made by accident, in an editor or on the way. It is not a signature: anybody
    can compute it again, and so change anything that the other checks let pass.
    """
    try:
        fields = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except _RefusedJsonError as error:
        raise ValueError(f"the plan {error}. {_WRITE_ONE}") from None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"the plan is not JSON text as `shh plan` writes it. {_WRITE_ONE}")
    version = fields.get("format_version")
    if not is_whole(version) or version != FORMAT_VERSION:
        raise ValueError(f"the plan must have format_version {FORMAT_VERSION}. {_WRITE_ONE}")
    if fields.pop("fingerprint", None) != fingerprint_of(fields):
        raise ValueError(f"the plan was changed after `shh plan` wrote it: the fingerprint is wrong. {_WRITE_ONE}")
    del fields["format_version"]
    return fields


class _RefusedJsonError(Exception):
    """What the standard parser lets pass: fields named twice, of which readers may take either; NaN; infinities."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twice = next(name for name, count in collections.Counter(name for name, _ in pairs).items() if count > 1)
        raise _RefusedJsonError(f"has the field {shown(twice)} twice")
    return fields


def _refuse(name: str) -> Any:
    raise _RefusedJsonError("contains NaN or an infinity")
