"""Which Avro schemas are read, and how: the schema of a file is checked against an allow-list and built again.

A hostile schema can end the process inside the Avro library (recursion) or keep it busy forever (arrays of values
without bytes). So the library never gets the file's schema, only the one built here: flat names, no recursion, no
logical types, text as bytes (its UTF-8 is checked later, cell by cell), every repeated value at least one byte long.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import fastavro
import pyarrow as pa

from dp_transforms.core.event_batch import uuid_texts
from dp_transforms.logs import id_columns
from dp_transforms.logs.log_chunk import EventFields, EventFileError, check_fields_present, damaged_error

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
_KINDS = (*_PRIMITIVES, "record", "enum", "array", "map", "fixed")
_TEXT, _WHOLE = frozenset({"string", "bytes"}), frozenset({"int", "long"})
_TICKS = {
    f"{local}timestamp-{name}": pa.timestamp(unit, None if local else "UTC")
    for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    for local in ("", "local-")  # the time of a clock on the wall, in whichever zone
} | {"date": pa.date32()}

Branch = tuple[str, str | None]  # of a union, or the only one: type and logical type

_UUID: Branch = ("fixed", "uuid")


@dataclasses.dataclass(frozen=True)
class RecordSchema:
    """How the records of a file are decoded.

    record: the schema to decode with, whose fields have names of their own. keys, branches: by the names in the file,
    these names, and the types that a field may have beside null.
    min_record_bytes: no record is shorter, which bounds the number of records in a block.
    has_repeats: whether a record may hold any number of values, in an array or a map.
    """

    record: dict[str, Any]
    keys: dict[str, str]
    branches: dict[str, list[Branch]]
    min_record_bytes: int
    has_repeats: bool

    @functools.cached_property
    def array(self) -> Any:
        """Of records, parsed."""
        return fastavro.parse_schema({"type": "array", "items": self.record})


@dataclasses.dataclass(frozen=True)
class EventSchema:
    """Which events are in the records. keys: of `EventFields.names` in `RecordSchema.record`. types: their columns."""

    records: RecordSchema
    keys: tuple[str, ...]
    types: tuple[pa.DataType, ...]


def check_schema(path: str, text: bytes, fields: EventFields) -> EventSchema:
    """Raises EventFileError unless events can be read with the schema of this JSON text."""
    records = record_schema(path, text, fields)
    found = [(name == fields.time, records.branches[name]) for name in fields.names]
    types = [time_type(branches) if is_time else id_type(branches) for is_time, branches in found]
    id_columns.check_event_types(
        path, types, [_shown(branches, is_time=is_time) for is_time, branches in found], fields
    )
    return EventSchema(records, tuple(records.keys[name] for name in fields.names), tuple(types))


def id_type(branches: list[Branch]) -> pa.DataType | None:
    """The type of a column of ids; null where it never has a value; None for a field that cannot be one."""
    if not branches:
        return pa.null()
    if branches == [_UUID]:
        return pa.uuid()
    if not all(map(_may_be_id, branches)):
        return None
    return pa.int64() if all(kind in _WHOLE for kind, _ in branches) else pa.binary()


def _may_be_id(branch: Branch) -> bool:
    return branch[0] in _TEXT | _WHOLE and branch[1] != "decimal"


def time_type(branches: list[Branch]) -> pa.DataType | None:
    """The type of a column of times, or of numbers that need a unit; null where it never has a value; None for a field
    that cannot be one."""
    if not branches:
        return pa.null()
    if len(branches) != 1 or branches[0][1] == "decimal":
        return None
    ((kind, logical),) = branches
    if kind in _WHOLE:
        return _TICKS.get(logical or "", pa.int64())
    return pa.binary() if kind in _TEXT else pa.float64() if kind in ("float", "double") else None


def _shown(branches: list[Branch], *, is_time: bool) -> str:
    """The type of a field for an error: of an id the first of its types that no id has."""
    if is_time and len(branches) > 1:
        return f"a union of {len(branches)} types"
    odd = [branch for branch in branches if is_time or not _may_be_id(branch)]
    kind, logical = odd[0] if odd else ("null", None)
    return (kind if kind in _KINDS else "of a named type") + (" (decimal)" if logical == "decimal" else "")


def column_of(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """Values of a field, as fastavro returns them. arrow_type: of `id_type` or `time_type`."""
    if pa.types.is_date32(arrow_type):  # a long of that logical type may be any number; what is cut is not a time
        return pa.array([None if day is None else max(-(2**31), min(day, 2**31 - 1)) for day in values], arrow_type)
    if pa.types.is_null(arrow_type):
        return pa.nulls(len(values), pa.binary())
    if arrow_type == pa.uuid():
        return uuid_texts(pa.array(values, arrow_type))
    try:
        return pa.array(values, arrow_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # a union of text and whole numbers
        return pa.array([str(value).encode() if isinstance(value, int) else value for value in values], arrow_type)


def record_schema(path: str, text: bytes, fields: EventFields | None = None) -> RecordSchema:
    """Raises EventFileError unless records can be decoded with the schema of this JSON text, and have these fields."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise damaged_error(path, "Avro") from None
    if not (isinstance(schema, dict) and schema.get("type") == "record"):
        raise EventFileError(path, "its records have no fields. Write one record per event.")
    builder = _Builder(path)
    field_list = builder.fields_of(schema)
    names = [field["name"] for field in field_list]
    if fields is not None:
        check_fields_present(path, names, fields, has_schema=True)
    record, size = builder.build(schema, 0)
    branches = {
        field["name"]: [branch for branch in builder.branches(field["type"]) if branch[0] != "null"]
        for field in field_list
    }
    keys = dict(zip(names, (field["name"] for field in record["fields"]), strict=True))
    return RecordSchema(record, keys, branches, max(1, size), builder.has_repeats)


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
            known = _PRIMITIVES.get(schema)
            return known or self._build_named(_full_name(schema, namespace), depth)
        if isinstance(schema, list) and schema and not any(isinstance(branch, list) for branch in schema):
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
            of_each = "items" if kind == "array" else "values"
            items, size = self.build(schema.get(of_each), depth + 1, namespace)
            if kind == "array" and size == 0:
                raise self._unsupported("has arrays of values without bytes")
            return {"type": kind, of_each: items}, 1
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
        self._open.add(name)
        own_name, namespace = f"record{self._types}", name.rpartition(".")[0]
        built = [self.build(field["type"], depth + 1, namespace) for field in self.fields_of(schema)]
        self._open.remove(name)
        # No name of the file is kept, so names that Avro forbids do no harm.
        parts = [{"name": f"field{index}", "type": part} for index, (part, _) in enumerate(built)]
        return {"type": "record", "name": own_name, "fields": parts}, sum(size for _, size in built)

    def fields_of(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        found = record.get("fields")
        is_good = isinstance(found, list) and all(
            isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field for field in found
        )
        if not is_good:
            raise damaged_error(self._path, "Avro")
        return found  # type: ignore[return-value]

    def branches(self, schema: Any) -> list[Branch]:
        """(type, logical type) of each branch of a field that `build` has accepted."""
        if isinstance(schema, list):
            return [kind for branch in schema for kind in self.branches(branch)]
        if not isinstance(schema, dict):
            return [(str(schema), None)]
        if isinstance(schema.get("type"), (dict, list)):
            return self.branches(schema["type"])
        kind, logical = str(schema.get("type")), schema.get("logicalType")
        if not isinstance(logical, str) or ((kind, logical) == _UUID and schema.get("size") != 16):
            logical = None
        return [(kind, logical)]

    def _unsupported(self, what: str) -> EventFileError:
        problem = f"its schema {what}, which is not supported. Write the file without that field."
        return EventFileError(self._path, problem)


def _full_name(name: str, namespace: Any) -> str:
    return name if "." in name or not isinstance(namespace, str) or not namespace else f"{namespace}.{name}"
