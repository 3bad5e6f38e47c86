"""Records as JSON and back: what is stored follows from the annotations of the records alone, and so does the schema.

A record is a frozen dataclass. Its fields are numbers, texts, pairs and lists of whole numbers, lists of texts, and
records; a choice that was not made is a missing record. What is read is hostile: errors show one line and little.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from dp_transforms.checks import check_whole, is_whole, shown

_MOST_NUMBERS = 1_000
_SMALLEST = -(2**62)
_WRITE_ONE = "Write one with `shh plan --output`."
_R = TypeVar("_R")


class Record:
    """Base of records: every field has the type that is declared, so that 2 and 2.0 make one plan."""

    def __post_init__(self) -> None:
        for name, kinds in fields_of(cast(Any, type(self))).items():
            object.__setattr__(self, name, _checked(name, getattr(self, name), kinds))


@functools.cache
def fields_of(record: Any) -> Mapping[str, tuple[Any, ...]]:
    """The types that each field may have; `NoneType` is among them if it may be missing."""
    hints = typing.get_type_hints(record)
    return {field.name: _kinds_of(hints[field.name]) for field in dataclasses.fields(record)}


def as_fields(record: Any) -> dict[str, Any]:
    """The fields of a record, and of those in it; without what is missing."""
    values = ((field.name, getattr(record, field.name)) for field in dataclasses.fields(record))
    return {
        name: as_fields(value) if dataclasses.is_dataclass(value) else value
        for name, value in values
        if value is not None
    }


def read_record(record: Callable[..., _R], fields: object, name: str) -> _R:
    """The record of what `as_fields` gave and JSON kept. name: of the record, for errors. Raises ValueError."""
    known = fields_of(record)
    if not isinstance(fields, dict):
        raise ValueError(f"{name} must be an object, got {shown(fields)}. {_WRITE_ONE}")
    wrong = set(fields) - set(known) | {each for each in known if each not in fields and not _may_miss(known[each])}
    if wrong:
        raise ValueError(f"{name} has missing or unknown fields: {shown(', '.join(sorted(wrong)))[1:-1]}. {_WRITE_ONE}")
    values = {each: _read(value, known[each], each) for each, value in fields.items()}
    return record(**values)


def fingerprint_of(fields: Mapping[str, Any]) -> str:
    """Hex SHA-256 of the canonical JSON of fields: equal for equal ones only. 2 and 2.0 are one number."""
    text = json.dumps(_canonical(fields), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(fields: Mapping[str, Any]) -> str:
    """As JSON, with the fingerprint of the fields. One line a field; a list has one line."""
    return "{\n" + ",\n".join(_lines({**fields, "fingerprint": fingerprint_of(fields)}, "  ")) + "\n}"


def sealed_schema(record: Any, format_version: int) -> dict[str, Any]:
    """The JSON schema of `sealed` texts."""
    schema = schema_of(record)
    stored = {"format_version": {"const": format_version}, "fingerprint": {"type": "string"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "properties": {**schema["properties"], **stored},
        "required": [*schema["required"], *stored],
    }


def unsealed(text: str | bytes, format_version: int) -> dict[str, Any]:
    """The fields of a text of `sealed`, without the version. Raises ValueError for another one.

    The fingerprint finds changes that were made by accident, in an editor or on the way. It is not a signature: anybody
    can compute it again, and so change anything that the other checks let pass.
    """
    fields = parse(text)
    version = fields.get("format_version")
    if not is_whole(version) or version != format_version:
        raise ValueError(f"the plan must have format_version {format_version}. {_WRITE_ONE}")
    if fields.pop("fingerprint", None) != fingerprint_of(fields):
        raise ValueError(f"the plan was changed after `shh plan` wrote it: the fingerprint is wrong. {_WRITE_ONE}")
    del fields["format_version"]
    return fields


def parse(text: str | bytes) -> dict[str, Any]:
    """A JSON object, without what the standard parser lets pass: fields named twice, NaN, infinities."""
    try:
        fields = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except _RefusedJsonError as error:
        raise ValueError(f"the plan {error}. {_WRITE_ONE}") from None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"the plan is not JSON text as `shh plan` writes it. {_WRITE_ONE}")
    return fields


def schema_of(record: type) -> dict[str, Any]:
    """The JSON schema of what `as_fields` gives, with what each record says of its fields."""
    known = fields_of(record)
    return {
        "description": " ".join((inspect.getdoc(record) or "").split()),
        "type": "object",
        "properties": {name: _schema(kinds) for name, kinds in known.items()},
        "required": [name for name, kinds in known.items() if not _may_miss(kinds)],
        "additionalProperties": False,
    }


def as_float(name: str, value: object) -> float:
    """A field as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, got {shown(value)}.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a finite number, got a larger one.") from None


def _kinds_of(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _may_miss(kinds: tuple[Any, ...]) -> bool:
    return types.NoneType in kinds


def _is_pair(kind: Any) -> bool:
    return ... not in typing.get_args(kind)


def _checked(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    if value is None and _may_miss(kinds):
        return None
    if float in kinds:
        return as_float(name, value)
    if int in kinds:
        return check_whole(name, value, _SMALLEST)
    if typing.get_origin(kinds[0]) is tuple:
        return _as_tuple(name, value, kinds[0])
    if not isinstance(value, tuple(kind for kind in kinds if kind is not types.NoneType)):
        raise ValueError(f"{name} must be a {kinds[0].__name__}, got {shown(value)}.")
    return value


def _as_tuple(name: str, value: object, kind: Any) -> tuple[Any, ...]:
    is_pair, is_text = _is_pair(kind), str in typing.get_args(kind)
    if not isinstance(value, (list, tuple)) or len(value) > _MOST_NUMBERS or (is_pair and len(value) != 2):
        some = "a pair of" if is_pair else f"at most {_MOST_NUMBERS:,}"
        raise ValueError(f"{name} must be {some} {'texts' if is_text else 'whole numbers'}, got {shown(value)}.")
    if is_text:
        return tuple(_checked(f"each of {name}", each, (str,)) for each in value)
    return tuple(check_whole(f"each of {name}", each, 1) for each in value)


def _read(value: object, kinds: tuple[Any, ...], name: str) -> Any:
    records = [kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
    if value is None:
        raise ValueError(f"{name} must not be null: leave it out. {_WRITE_ONE}")
    if not records:
        return value
    given = value.keys() if isinstance(value, dict) else set()
    return read_record(max(records, key=lambda kind: len(given & fields_of(kind).keys())), value, name)


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _lines(fields: Mapping[str, Any], indent: str) -> list[str]:
    lines = []
    for name, value in fields.items():
        if isinstance(value, dict):
            inner = ",\n".join(_lines(value, indent + "  "))
            lines.append(f"{indent}{json.dumps(name)}: {{\n{inner}\n{indent}}}")
        else:
            lines.append(f"{indent}{json.dumps(name)}: {json.dumps(value, allow_nan=False)}")
    return lines


def _schema(kinds: tuple[Any, ...]) -> dict[str, Any]:
    found = [_schema_of_kind(kind) for kind in kinds if kind is not types.NoneType]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _schema_of_kind(kind: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        return schema_of(cast(type, kind))
    if typing.get_origin(kind) is tuple:
        length = {"minItems": 2, "maxItems": 2} if _is_pair(kind) else {"maxItems": _MOST_NUMBERS}
        return {"type": "array", "items": _schema_of_kind(typing.get_args(kind)[0]), **length}
    return {"type": {float: "number", int: "integer", str: "string"}[kind]}


class _RefusedJsonError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twice = next(name for name, count in collections.Counter(name for name, _ in pairs).items() if count > 1)
        raise _RefusedJsonError(f"has the field {shown(twice)} twice")
    return fields


def _refuse(name: str) -> Any:
    raise _RefusedJsonError("contains NaN or an infinity")


def flat(fields: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Every number with the name of its record; no lists."""
    found: list[tuple[str, Any]] = []
    for name, value in fields.items():
        if isinstance(value, dict):
            found += flat(value, f"{name}: ")
        elif not isinstance(value, tuple):
            found.append((before + name, value))
    return found
