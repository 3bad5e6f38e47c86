"""Records as JSON and back. What is stored follows from the annotations of the records alone.

A record is a frozen dataclass of numbers, texts, records, and lists of whole numbers or records; a choice that was not
made is a missing record. What is read is hostile: errors show one line and little.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from dp_transforms.checks import as_float, check_whole, shown
from dp_transforms.errors import InputError

FORMAT_VERSION = 5
_MOST_NUMBERS = 1_000
_SMALLEST = -(2**62)
_WRITE_ONE = "Write one with `shh plan --output`."
_R = TypeVar("_R")


class Record:
    """Base of records: every field has the type that is declared, so that 2 and 2.0 make one plan. Objects and lists of
    JSON become the records and tuples that are declared."""

    def __post_init__(self) -> None:
        for name, (kind, may_miss) in _fields_of(cast(Any, type(self))).items():
            value = getattr(self, name)
            if value is not None or not may_miss:
                object.__setattr__(self, name, _as_declared(name, value, kind))


@functools.cache
def _fields_of(record: Any) -> Mapping[str, tuple[Any, bool]]:
    """Of each field its type, and whether it may be missing."""
    found, hints = {}, typing.get_type_hints(record)
    for field in dataclasses.fields(record):
        hint = hints[field.name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        found[field.name] = (kinds[0], types.NoneType in kinds)
    return found


def _as_declared(name: str, value: Any, kind: Any, least: int = _SMALLEST) -> Any:
    """Numbers of a list are at least 1."""
    if kind is float:
        if not math.isfinite(number := as_float(value)):
            raise InputError(name, f"must be a finite number, got {shown(value)}.")
        return number
    if kind is int:
        return check_whole(name, value, least)
    if typing.get_origin(kind) is tuple:
        of_each, rest = typing.get_args(kind)
        length = f"at most {_MOST_NUMBERS:,}" if rest is ... else "two"
        if not isinstance(value, (list, tuple)) or (len(value) > _MOST_NUMBERS if rest is ... else len(value) != 2):
            raise ValueError(f"{name} must be a list of {length} entries, got {shown(value)}.")
        return tuple(_as_declared(f"each of {name}", each, of_each, 1) for each in value)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return record_of(cast("type[Any]", kind), value, name)
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, got {shown(value)}.")
    return value


def record_of(record: type[_R], fields: Mapping[str, Any], name: str) -> _R:
    """The record of what `as_fields` gave and JSON kept. name: of the record, for errors. Raises ValueError."""
    known = _fields_of(cast(Any, record))
    needed = {field for field, (_, may_miss) in known.items() if not may_miss}
    if not needed <= fields.keys() <= known.keys():
        wrong = shown(", ".join(sorted(needed - fields.keys() | fields.keys() - known.keys())))[1:-1]
        raise ValueError(f"{name} has missing or unknown fields: {wrong}. {_WRITE_ONE}")
    return record(**fields)


def as_fields(record: Any) -> dict[str, Any]:
    """What is stored of a record, and of those in it; without what is missing."""
    values = ((field.name, getattr(record, field.name)) for field in dataclasses.fields(record))
    return {name: _stored(value) for name, value in values if value is not None}


def _stored(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_stored, value))
    return as_fields(value) if dataclasses.is_dataclass(value) else value


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
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"the plan is not JSON text as `shh plan` writes it. {_WRITE_ONE}")
    if fields.get("format_version") != FORMAT_VERSION:
        raise ValueError(f"the plan must have format_version {FORMAT_VERSION}. {_WRITE_ONE}")
    if fields.pop("fingerprint", None) != fingerprint_of(fields):
        raise ValueError(f"the plan was changed after `shh plan` wrote it: the fingerprint is wrong. {_WRITE_ONE}")
    del fields["format_version"]
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a field that is there twice a reader may take either."""
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else _refuse("twice")


def _refuse(_: str) -> Any:
    """Also NaN and infinities, which the standard parser lets pass."""
    raise ValueError
