"""Which Avro schemas are read, and how: the schema of a file is checked against an allow-list and built again.

A hostile schema can end the process inside the Avro library (recursion) or keep it busy forever (arrays of values
without bytes). So the library never gets the file's schema, only the one built here: flat names, no recursion, no
logical types, text as bytes (its UTF-8 is checked later, cell by cell), every repeated value at least one byte long.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from dp_transforms.logs import times
from dp_transforms.logs.log_chunk import (
    EventFields,
    EventFileError,
    TimeReading,
    check_fields_present,
    damaged_error,
    id_type_error,
    time_type_error,
    time_unit_error,
)

_MAX_DEPTH = 32
_MAX_TYPES = 10_000
_MAX_FIXED_BYTES = 1 << 20

# type -> (the type it is read as, the bytes of its shortest value)
_PRIMITIVES = {
    "null": ("null", 0),
    "boolean": ("boolean", 1),
    "int": ("long", 1),
    "long": ("long", 1),
    "float": ("float", 4),
    "double": ("double", 8),
    "bytes": ("bytes", 1),
    "string": ("bytes", 1),
}
_TEXT, _WHOLE = frozenset({"string", "bytes"}), frozenset({"int", "long"})
TICKS = {
    "timestamp-millis": "ms",
    "timestamp-micros": "us",
    "timestamp-nanos": "ns",
    "local-timestamp-millis": "ms",
    "local-timestamp-micros": "us",
    "local-timestamp-nanos": "ns",
    "date": "d",
}


Branch = tuple[str, str | None]  # of a union, or the only one: type and logical type


@dataclasses.dataclass(frozen=True)
class RecordSchema:
    """How the records of a file are decoded.

    record: the schema to decode with, whose fields have names of their own. keys, branches: by the names in the file,
    these names, and the types that a field may have.
    min_record_bytes: no record is shorter, which bounds the number of records in a block.
    has_repeats: whether a record may hold any number of values, in an array or a map.
    """

    record: dict[str, Any]
    keys: dict[str, str]
    branches: dict[str, list[Branch]]
    min_record_bytes: int
    has_repeats: bool


@dataclasses.dataclass(frozen=True)
class EventSchema:
    """Which events are in the records.

    keys: of user, item and time in `RecordSchema.record`.
    user_is_number, item_is_number: all its values are whole numbers; else they are bytes or mixed.
    time_type: ``text``, ``whole`` or ``float``.
    time_reading: of numbers, and of numbers in text, the unit: ``s``, ``ms``, ``us``, ``ns`` or ``d``, None: text that
        is none; the form of other text; the zone of times without one (see `times.parse_times`).
    is_local: whether numbers count the time of a clock on the wall, in whichever zone.
    """

    records: RecordSchema
    keys: tuple[str, ...]
    user_is_number: bool
    item_is_number: bool
    time_type: str
    time_reading: TimeReading
    is_local: bool


def check_schema(path: str, text: bytes, fields: EventFields) -> EventSchema:
    """Raises EventFileError unless events can be read with the schema of this JSON text."""
    records = record_schema(path, text, fields)
    kinds = records.branches
    user_kinds, item_kinds = (_id_kinds(path, name, kinds[name]) for name in (fields.user, fields.item))
    time_type, time_unit = _time_type(path, kinds[fields.time], fields)
    return EventSchema(
        records=records,
        keys=tuple(records.keys[name] for name in fields.names),
        user_is_number=user_kinds <= _WHOLE,
        item_is_number=item_kinds <= _WHOLE,
        time_type=time_type,
        time_reading=(time_unit, fields.time_format, fields.time_zone),
        is_local=is_local(kinds[fields.time]),
    )


def record_schema(path: str, text: bytes, fields: EventFields | None = None) -> RecordSchema:
    """Raises EventFileError unless records can be decoded with the schema of this JSON text, and have these fields."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise damaged_error(path, "Avro") from None
    if not (isinstance(schema, dict) and schema.get("type") == "record"):
        raise EventFileError(path, "its records have no fields. Write one record per event.")
    field_list = schema.get("fields")
    if not (isinstance(field_list, list) and all(_is_field(field) for field in field_list)):
        raise damaged_error(path, "Avro")
    names = [field["name"] for field in field_list]
    if fields is not None:
        check_fields_present(path, names, fields, has_schema=True)
    builder = _Builder(path)
    record, size = builder.build(schema, 0)
    return RecordSchema(
        record=record,
        keys=dict(zip(names, (field["name"] for field in record["fields"]), strict=True)),
        branches={field["name"]: builder.branches(field["type"]) for field in field_list},
        min_record_bytes=max(1, size),
        has_repeats=builder.has_repeats,
    )


def is_primitive(kind: str) -> bool:
    """Whether values of a type are one value, and not of a named type."""
    return kind in _PRIMITIVES


def is_local(branches: list[Branch]) -> bool:
    """Whether numbers of a field count the time of a clock on the wall."""
    return any((logical or "").startswith("local-") for _, logical in branches)


def _is_field(field: Any) -> bool:
    return isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field


class _Builder:
    """Builds the schema again. Named types are written out where they are used; they may not contain themselves."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()
        self._types = 0
        self.has_repeats = False

    def build(self, schema: Any, depth: int, namespace: str = "") -> tuple[Any, int]:
        """The schema to decode with, and the bytes of the shortest value."""
        self._types += 1
        if depth > _MAX_DEPTH or self._types > _MAX_TYPES:
            raise self._unsupported("is nested too deeply or too large")
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]
            return self._build_named(_full_name(schema, namespace), depth)
        if isinstance(schema, list):
            if any(isinstance(branch, list) for branch in schema) or not schema:
                raise damaged_error(self._path, "Avro")
            branches = [self.build(branch, depth + 1, namespace) for branch in schema]
            return [branch for branch, _ in branches], 1 + min(size for _, size in branches)
        if not isinstance(schema, dict):
            raise damaged_error(self._path, "Avro")
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            if not isinstance(schema.get("name"), str):
                raise damaged_error(self._path, "Avro")
            name = _full_name(schema["name"], schema.get("namespace", namespace))
            self._named[name] = schema
            return self._build_named(name, depth)
        if kind in ("array", "map"):
            self.has_repeats = True
            items, size = self.build(schema.get("items" if kind == "array" else "values"), depth + 1, namespace)
            if kind == "array" and size == 0:
                raise self._unsupported("has arrays of values without bytes")
            return {"type": kind, "items" if kind == "array" else "values": items}, 1
        return self.build(kind, depth + 1, namespace)

    def _build_named(self, name: str, depth: int) -> tuple[Any, int]:
        schema = self._named.get(name)
        if schema is None:
            raise damaged_error(self._path, "Avro")
        if schema["type"] == "enum":
            return "long", 1
        if schema["type"] == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or not 0 <= size <= _MAX_FIXED_BYTES:
                raise self._unsupported("has a fixed field of more than 1 MB")
            return {"type": "fixed", "name": f"fixed{self._types}", "size": size}, size
        if name in self._open:
            raise self._unsupported("has a record that contains itself")
        field_list = schema.get("fields")
        if not (isinstance(field_list, list) and all(_is_field(field) for field in field_list)):
            raise damaged_error(self._path, "Avro")
        self._open.add(name)
        own_name, namespace = f"record{self._types}", name.rpartition(".")[0]
        built = [self.build(field["type"], depth + 1, namespace) for field in field_list]
        self._open.remove(name)
        # No name of the file is kept, so names that Avro forbids do no harm.
        parts = [{"name": f"field{index}", "type": part} for index, (part, _) in enumerate(built)]
        return {"type": "record", "name": own_name, "fields": parts}, sum(size for _, size in built)

    def branches(self, schema: Any) -> list[Branch]:
        """(type, logical type) of each branch of a field that `build` has accepted."""
        if isinstance(schema, list):
            return [kind for branch in schema for kind in self.branches(branch)]
        if isinstance(schema, dict) and isinstance(schema.get("type"), (dict, list)):
            return self.branches(schema["type"])
        if isinstance(schema, dict):
            logical = schema.get("logicalType")
            return [(str(schema.get("type")), logical if isinstance(logical, str) else None)]
        return [(str(schema), None)]

    def _unsupported(self, what: str) -> EventFileError:
        return EventFileError(
            self._path, f"its schema {what}, which is not supported. Write the file without that field."
        )


def _full_name(name: str, namespace: Any) -> str:
    return name if "." in name or not isinstance(namespace, str) or not namespace else f"{namespace}.{name}"


def _id_kinds(path: str, name: str, branches: list[Branch]) -> frozenset[str]:
    for kind, logical in branches:
        if kind not in _TEXT | _WHOLE | {"null"} or logical == "decimal":
            raise id_type_error(path, name, _shown(kind, logical))
    kinds = frozenset(kind for kind, _ in branches) - {"null"}
    if not kinds:
        raise id_type_error(path, name, "null")
    return kinds


def _time_type(path: str, branches: list[Branch], fields: EventFields) -> tuple[str, str | None]:
    """`EventSchema.time_type`, and the unit."""
    kinds = [(kind, logical) for kind, logical in branches if kind != "null"]
    if len(kinds) != 1:
        raise time_type_error(path, fields.time, f"a union of {len(kinds)} types")
    ((kind, logical),) = kinds
    if kind in _WHOLE and logical in TICKS:
        return "whole", TICKS[logical]
    if kind in _WHOLE | {"float", "double"}:
        if fields.time_unit not in times.MICROS_PER_UNIT:
            raise time_unit_error(path, fields)
        return "whole" if kind in _WHOLE else "float", fields.time_unit
    if kind in _TEXT and logical != "decimal":
        return "text", fields.time_unit
    raise time_type_error(path, fields.time, _shown(kind, logical))


def _shown(kind: str, logical: str | None) -> str:
    known = kind in (*_PRIMITIVES, "record", "enum", "array", "map", "fixed")
    shown = kind if known else "of a named type"
    return f"{shown} (decimal)" if logical == "decimal" else shown
