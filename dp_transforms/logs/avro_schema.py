"""Which Avro schemas are read, and how: the schema of a file is checked against an allow-list and built again.

A hostile schema can end the process inside the Avro library (recursion) or keep it busy forever (arrays of values
without bytes). So the library never gets the file's schema, only the one built here: flat names, no recursion, no
logical types, text as bytes (its UTF-8 is checked later, cell by cell), every repeated value at least one byte long.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa

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

Symbols = tuple[bytes, ...]  # of an enum
Branch = tuple[str, "str | Symbols | None"]  # of a union, or the only one: type and logical type, or symbols


class RecordSchema(NamedTuple):
    """How the records of a file are decoded.

    record, array: the schemas to decode one with, or some, whose fields have names of their own.
    keys, branches: by the names in the file, these names, and the types that a field may have beside null.
    min_record_bytes: no record is shorter, which bounds the number of records in a block.
    """

    record: Any
    array: Any
    keys: dict[str, str]
    branches: dict[str, list[Branch]]
    min_record_bytes: int


class EventSchema(NamedTuple):
    """Which events are in the records. keys: of `EventFields.names` in the records. types: of their columns; of an enum
    its symbols."""

    records: RecordSchema
    keys: tuple[str, ...]
    types: tuple[pa.DataType | Symbols, ...]


def check_schema(path: str, text: bytes, fields: EventFields) -> EventSchema:
    """Raises EventFileError unless events can be read with the schema of this JSON text."""
    records = record_schema(path, text, fields)
    types = [column_type(records.branches[name], is_time=name == fields.time) for name in fields.names]
    as_columns = [pa.binary() if isinstance(each, tuple) else each for each in types]
    id_columns.check_event_types(path, as_columns, [_shown(records.branches[name]) for name in fields.names], fields)
    return EventSchema(records, tuple(records.keys[name] for name in fields.names), tuple(types))


def column_type(branches: list[Branch], *, is_time: bool) -> pa.DataType | Symbols | None:
    """The type of a column of ids or times; null where it never has a value; of an enum its symbols; None for a field
    that cannot be one."""
    kinds, logical = {kind for kind, _ in branches}, [logical for _, logical in branches]
    if not branches:
        return pa.null()
    if kinds == {"enum"} and len(branches) == 1 and not is_time:
        return logical[0]
    if "decimal" in logical or (is_time and len(branches) > 1):
        return None
    if kinds <= _WHOLE:
        return _TICKS.get(str(logical[0]), pa.int64()) if is_time else pa.int64()
    if kinds <= _TEXT | _WHOLE:
        return pa.binary()
    return pa.float64() if is_time and kinds <= {"float", "double"} else None


def _shown(branches: list[Branch]) -> str:
    """The types of a field for an error."""
    names = [kind if kind in _KINDS else "a named type" for kind, _ in branches]
    decimals = [" (decimal)" if logical == "decimal" else "" for _, logical in branches]
    return " or ".join(map(str.__add__, names, decimals))


def column_of(values: list[Any], arrow_type: pa.DataType | Symbols) -> pa.Array:
    """Values of a field, as fastavro returns them. arrow_type: of `column_type`."""
    if isinstance(arrow_type, tuple):
        symbols = dict(enumerate(arrow_type))
        return pa.array([symbols.get(value) for value in values], pa.binary())
    if pa.types.is_date32(arrow_type):  # a long of that logical type may be any number; what is cut is not a time
        return pa.array([None if day is None else max(-(2**31), min(day, 2**31 - 1)) for day in values], arrow_type)
    if pa.types.is_null(arrow_type):
        return pa.nulls(len(values), pa.binary())
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
    try:
        names = [field["name"] for field in schema["fields"]]
        if fields is not None:
            check_fields_present(path, names, fields, has_schema=True)
        record, size = _Builder().build(schema)
        branches = {field["name"]: _branches(field["type"]) for field in schema["fields"]}
    except _UnsupportedError as error:
        problem = f"its schema {error}, which is not supported. Write the file without that field."
        raise EventFileError(path, problem) from None
    except (AttributeError, KeyError, TypeError):
        raise damaged_error(path, "Avro") from None
    keys = dict(zip(names, (field["name"] for field in record["fields"]), strict=True))
    of_one, of_some = map(fastavro.parse_schema, (record, {"type": "array", "items": record}))
    return RecordSchema(of_one, of_some, keys, branches, max(1, size))


class _UnsupportedError(Exception):
    """Says what a schema has or is."""


class _Builder:
    """Builds the schema again. Named types are written out where they are used, so one that contains itself is nested
    too deeply. Raises AttributeError, KeyError or TypeError for what is no schema."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._types = 0

    def build(self, schema: Any, namespace: str = "", depth: int = 0) -> tuple[Any, int]:
        """The schema to decode with, and the bytes of the shortest value."""
        self._types += 1
        if depth > _MAX_DEPTH or self._types > _MAX_TYPES:
            raise _UnsupportedError("is nested too deeply or too large")
        if isinstance(schema, str):
            return _PRIMITIVES.get(schema) or self._build_named(_full_name(schema, namespace), depth)
        if isinstance(schema, list):
            if not schema or any(isinstance(branch, list) for branch in schema):
                raise TypeError
            branches = [self.build(branch, namespace, depth + 1) for branch in schema]
            return [branch for branch, _ in branches], 1 + min(size for _, size in branches)
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            name = _full_name(schema["name"], schema.get("namespace", namespace))
            self._named[name] = schema
            return self._build_named(name, depth)
        if kind in ("array", "map"):
            of_each = "items" if kind == "array" else "values"
            items, size = self.build(schema[of_each], namespace, depth + 1)
            if kind == "array" and size == 0:
                raise _UnsupportedError("has arrays of values without bytes")
            return {"type": kind, of_each: items}, 1
        return self.build(kind, namespace, depth + 1)

    def _build_named(self, name: str, depth: int) -> tuple[Any, int]:
        schema = self._named[name]
        if schema["type"] == "enum":
            return "long", 1
        if schema["type"] == "fixed":
            size = schema["size"]
            if not isinstance(size, int) or not 0 <= size <= _MAX_FIXED_BYTES:
                raise _UnsupportedError("has a fixed field of more than 1 MB")
            return {"type": "fixed", "name": f"fixed{self._types}", "size": size}, size
        if not all(isinstance(field["name"], str) for field in schema["fields"]):
            raise TypeError
        own_name, namespace = f"record{self._types}", name.rpartition(".")[0]
        built = [self.build(field["type"], namespace, depth + 1) for field in schema["fields"]]
        # No name of the file is kept, so names that Avro forbids do no harm.
        parts = [{"name": f"field{index}", "type": part} for index, (part, _) in enumerate(built)]
        return {"type": "record", "name": own_name, "fields": parts}, sum(size for _, size in built)


def _full_name(name: str, namespace: Any) -> str:
    return name if "." in name or not namespace or not isinstance(namespace, str) else namespace + "." + name


def _branches(schema: Any) -> list[Branch]:
    """(type, logical type) of each branch beside null of a field that `_Builder` has accepted."""
    if isinstance(schema, list):
        return [kind for branch in schema for kind in _branches(branch)]
    if isinstance(schema, str):
        return [(schema, None)] if schema != "null" else []
    kind, logical = schema["type"], schema.get("logicalType")
    if not isinstance(kind, str):
        return _branches(kind)
    if kind == "enum":
        return [(kind, tuple(symbol.encode("utf-8", "surrogatepass") for symbol in schema["symbols"]))]
    return [(kind, logical if isinstance(logical, str) else None)] if kind != "null" else []
