"""Which Avro schemas are read, and how: fields of a schema are checked against an allow-list, and it is built again.

A hostile schema can end the process inside the Avro library (recursion) or keep it busy forever (arrays of values
without bytes). So the library never gets the file's schema, only the one built here: flat, with names of its own, no
logical types, text as bytes (its UTF-8 is checked later, cell by cell). A file with other fields, also beside those of
events, is refused: to pass over a value, its type must be known too.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa

from dp_transforms.logs import id_columns
from dp_transforms.logs.log_chunk import EventFields, EventFileError, check_fields_present

_READ_AS = {
    **{kind: kind for kind in ("null", "boolean", "long", "float", "double", "bytes")},
    **{"int": "long", "string": "bytes", "enum": "long"},
}
_NOT_FLAT = (
    "its schema is not one of flat records, whose fields are null, boolean, a number, text, bytes, an enum, or a union"
    " of these. Make JSON lines of it: fastavro OLD.avro > NEW.jsonl, which shh doctor looks at."
)
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
    return " or ".join("decimal" if logical == "decimal" else kind for kind, logical in branches)


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
        names = [str(field["name"]) for field in schema["fields"]]
        types, branches = zip(*(_field(field["type"]) for field in schema["fields"]), strict=True)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise EventFileError(path, _NOT_FLAT) from None
    if fields is not None:
        check_fields_present(path, names, fields, has_schema=True)
    keys = [f"field{number}" for number in range(len(names))]  # so names that Avro forbids do no harm
    parts = [{"name": key, "type": kind} for key, kind in zip(keys, types, strict=True)]
    record = {"type": "record", "name": "event", "fields": parts}
    of_one, of_some = map(fastavro.parse_schema, (record, {"type": "array", "items": record}))
    size = max(1, sum(kind != "null" for kind in types))
    return RecordSchema(
        of_one, of_some, dict(zip(names, keys, strict=True)), dict(zip(names, branches, strict=True)), size
    )


def _field(schema: Any) -> tuple[Any, list[Branch]]:
    """The type to decode a field with, and its branches. Raises KeyError or TypeError for one that is not read."""
    is_union = isinstance(schema, list)
    found = [_branch(part) for part in (schema if is_union else [schema])]
    types = [_READ_AS[kind] for kind, _ in found]
    if not types:
        raise TypeError
    return types if is_union else types[0], [branch for branch in found if branch[0] != "null"]


def _branch(schema: Any) -> Branch:
    if isinstance(schema, str):
        return schema, None
    kind, logical = schema["type"], schema.get("logicalType")
    if kind == "enum":
        return kind, tuple(symbol.encode("utf-8", "surrogatepass") for symbol in schema["symbols"])
    return kind, logical if isinstance(logical, str) else None
