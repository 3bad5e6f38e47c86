"""Small logs of every kind that is read. Each cell holds one of `CELL_MARKS`."""

from __future__ import annotations

import csv
import datetime
import functools
import gzip
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from dp_transforms.logs import EventFields
from tests.fuzz import avro_mutators, format_mutators, parquet_mutators
from tests.fuzz.avro_mutators import PACK, avro_container
from tests.fuzz.reader import Sample

NAMES = ("user", "item", "timestamp")
ROWS = 24
TEXT_TIMES = EventFields()
SECONDS = EventFields(time_unit="s")
MILLIS = EventFields(time_unit="ms")
GERMAN = EventFields(time_format="%d.%m.%Y %H:%M:%S", time_zone="Europe/Berlin", csv_separator=";")
LOCAL = EventFields(time_zone="America/New_York")

_BEGIN = datetime.datetime(2017, 10, 1, 3, 41, 27, tzinfo=datetime.UTC)
USERS = [f"user-QZX-{row % 9}" for row in range(ROWS)]
ITEMS = [f"item-QZX-{row % 5}" for row in range(ROWS)]
ODD_USERS = [f"Ünï QZX\u2028{row}" for row in range(ROWS)]
NUMBERS = [4711000000 + row for row in range(ROWS)]
MOMENTS = [_BEGIN + datetime.timedelta(hours=row) for row in range(ROWS)]
TIMES = [moment.isoformat().replace("+00:00", "Z") for moment in MOMENTS]
GERMAN_TIMES = [moment.strftime("%d.%m.%Y %H:%M:%S") for moment in MOMENTS]
LOCAL_TIMES = [moment.isoformat().removesuffix("+00:00") for moment in MOMENTS]
TICKS = [4711000000 + row for row in range(ROWS)]  # in the year 2119, as seconds


# Parquet


def _parquet(name: str, columns: dict[str, pa.Array], fields: EventFields = TEXT_TIMES, **options: Any) -> Sample:
    sink = io.BytesIO()
    options = {"row_group_size": 10, "compression": "NONE", **options}
    pq.write_table(pa.table(columns), sink, **options)
    return Sample(name, sink.getvalue(), ".parquet", parquet_mutators.PARQUET, fields)


def _table(**other: Any) -> dict[str, pa.Array]:
    given = {"user": USERS, "item": ITEMS, "timestamp": MOMENTS, **other}
    return {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in given.items()}


@functools.cache
def parquet_samples() -> list[Sample]:
    big = pa.array([2**64 - 1 - row for row in range(ROWS)], pa.uint64())
    some = [None if row % 4 == 0 else user for row, user in enumerate(USERS)]
    nested = [{"a": [row, None], "b": {"c": "QZX"}} for row in range(ROWS)]
    small = [row % 3 for row in range(ROWS)]
    plain = {"use_dictionary": False}
    return [
        _parquet("dictionary", _table()),
        _parquet("dictionary, no Arrow schema", _table(), store_schema=False),
        _parquet("dictionary, one group", _table(), row_group_size=ROWS, write_statistics=False),
        _parquet(
            "dictionary, small pages", _table(), row_group_size=ROWS, data_page_size=16, dictionary_pagesize_limit=64
        ),
        _parquet("dictionary, version 2", _table(), data_page_version="2.0", compression="zstd"),
        _parquet("dictionary, checksums", _table(), write_page_checksum=True, write_page_index=True),
        _parquet("snappy", _table(), compression="snappy"),
        _parquet("gzip", _table(user=NUMBERS), compression="gzip"),
        _parquet("brotli", _table(item=NUMBERS), compression="brotli"),
        _parquet("lz4", _table(), compression="lz4", data_page_version="2.0"),
        _parquet("plain", _table(), **plain),
        _parquet("plain, version 2, nulls", _table(user=some), data_page_version="2.0", **plain),
        _parquet("nulls", _table(user=some, item=some)),
        _parquet(
            "deltas",
            _table(user=NUMBERS),
            column_encoding={
                "user": "DELTA_BINARY_PACKED",
                "item": "DELTA_BYTE_ARRAY",
                "timestamp": "DELTA_BINARY_PACKED",
            },
            **plain,
        ),
        _parquet("delta lengths", _table(), column_encoding={"user": "DELTA_LENGTH_BYTE_ARRAY"}, **plain),
        _parquet(
            "split floats",
            _table(timestamp=[float(tick) for tick in TICKS]),
            SECONDS,
            column_encoding={"timestamp": "BYTE_STREAM_SPLIT"},
            **plain,
        ),
        _parquet("int96", _table(), use_deprecated_int96_timestamps=True),
        _parquet("small integers", _table(user=pa.array(small, pa.int8()), item=big, timestamp=TICKS), SECONDS),
        _parquet("times of a form", _table(timestamp=GERMAN_TIMES), GERMAN),
        _parquet("local times", _table(timestamp=[moment.replace(tzinfo=None) for moment in MOMENTS]), LOCAL),
        _parquet("text times", _table(timestamp=TIMES, item=pa.array(ITEMS, pa.large_string()))),
        _parquet(
            "dates", _table(timestamp=[moment.date() for moment in MOMENTS], user=pa.array(USERS, pa.string_view()))
        ),
        _parquet(
            "binary, dictionary type",
            _table(user=pa.array([user.encode() for user in USERS]), item=pa.array(ITEMS).dictionary_encode()),
        ),
        _parquet("nested beside", {"nested": pa.array(nested), **_table(user=ODD_USERS)}),
    ]


# Avro

MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def avro_schema(*types: Any, beside: Sequence[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in zip(NAMES, types, strict=True)]
    return {"type": "record", "name": "Event", **more, "fields": [*beside, *fields]}


def avro_record(schema: Any, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), record)
    return out.getvalue()


def avro_log(schema: dict[str, Any], records: Sequence[dict[str, Any]], codec: str = "null", step: int = 9) -> bytes:
    packed = [avro_record(schema, record) for record in records]
    parts = [packed[begin : begin + step] for begin in range(0, len(packed), step)]
    metadata = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    return avro_container(metadata, [(len(part), PACK[codec](b"".join(part))) for part in parts])


def records_of(*columns: Sequence[Any], **beside: Any) -> list[dict[str, Any]]:
    return [{**beside, **dict(zip(NAMES, row, strict=True))} for row in zip(*columns, strict=True)]


_BESIDE = [
    {"name": "list", "type": {"type": "array", "items": "string"}},
    {"name": "map", "type": {"type": "map", "values": ["null", "double"]}},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 4}},
    {"name": "in", "type": {"type": "record", "name": "In", "fields": [{"name": "id", "type": ["null", "Id"]}]}},
]
_BESIDE_VALUES = {"list": ["QZX", "b"], "map": {"QZX": 1.5}, "kind": "B", "id": b"QZX!", "in": {"id": b"QZX?"}}

# (name, schema, records, fields)
AVRO_KINDS: list[tuple[str, dict[str, Any], list[dict[str, Any]], EventFields]] = [
    ("text", avro_schema("string", "string", "string"), records_of(USERS, ITEMS, TIMES), TEXT_TIMES),
    (
        "micros",
        avro_schema("string", "bytes", MICROS),
        records_of(ODD_USERS, [item.encode() for item in ITEMS], MOMENTS),
        TEXT_TIMES,
    ),
    ("times of a form", avro_schema("string", "string", "string"), records_of(USERS, ITEMS, GERMAN_TIMES), GERMAN),
    ("numbers", avro_schema("long", "int", "long"), records_of(NUMBERS, [7] * ROWS, TICKS), SECONDS),
    (
        "unions",
        avro_schema(["null", "string"], ["string", "long", "null"], ["null", "double"]),
        records_of([None, *USERS[1:]], [*NUMBERS[:9], None, *ITEMS[10:]], [None, *map(float, TICKS[1:])]),
        SECONDS,
    ),
    (
        "beside",
        avro_schema("string", "string", MICROS, beside=_BESIDE, namespace="a.b"),
        records_of(USERS, ITEMS, MOMENTS, **_BESIDE_VALUES),
        TEXT_TIMES,
    ),
]


@functools.cache
def avro_samples() -> list[Sample]:
    samples = [
        Sample(f"{name}, {codec}", avro_log(schema, records, codec), ".avro", avro_mutators.CONTAINER, fields)
        for name, schema, records, fields in AVRO_KINDS
        for codec in (PACK if name == "text" else ["null", "deflate"])
    ]
    whole = avro_log(AVRO_KINDS[0][1], AVRO_KINDS[0][2], step=ROWS)
    return [*samples, Sample("one block", whole, ".avro", avro_mutators.CONTAINER, TEXT_TIMES)]


# CSV and JSON lines


def _csv(rows: Iterable[Sequence[Any]], **options: Any) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, **{"lineterminator": "\n", **options})
    writer.writerows(rows)
    return out.getvalue().encode()


def _rows(users: Sequence[Any], items: Sequence[Any], times: Sequence[Any]) -> list[Sequence[Any]]:
    return [NAMES, *zip(users, items, times, strict=True)]


@functools.cache
def csv_samples() -> list[Sample]:
    quoted = _csv(_rows([f'QZX "{user}", x' for user in USERS], ITEMS, TIMES), quoting=csv.QUOTE_ALL)
    wide = [("a", *row, "z") for row in _rows(USERS, ODD_USERS, TIMES)]
    plain = _csv(_rows(USERS, ITEMS, TIMES))
    return [
        Sample("plain", plain, ".csv", (), TEXT_TIMES),
        Sample("quoted", quoted, ".csv", (), TEXT_TIMES),
        Sample("CRLF, mark, wide", b"\xef\xbb\xbf" + _csv(wide, lineterminator="\r\n"), ".csv", (), TEXT_TIMES),
        Sample("tabs, numbers", _csv(_rows(NUMBERS, ITEMS, TICKS), delimiter="\t"), ".tsv", (), SECONDS),
        Sample("German", _csv(_rows(USERS, ITEMS, GERMAN_TIMES), delimiter=";"), ".csv", (), GERMAN),
        Sample("not UTF-8", plain.replace(b"-4", b"-\xe9"), ".csv", (), TEXT_TIMES),
    ]


def json_line(user: Any, item: Any, time: Any, **beside: Any) -> bytes:
    return json.dumps({"user": user, "item": item, "timestamp": time, **beside}).encode()


def _json_lines(*columns: Sequence[Any], **beside: Any) -> bytes:
    return b"".join(json_line(*row, **beside) + b"\n" for row in zip(*columns, strict=True))


@functools.cache
def json_samples() -> list[Sample]:
    plain = _json_lines(USERS, ITEMS, TIMES)
    odd = [None, 7, True, 1.5, "", "\ud800", [1], {"a": 2}, *USERS[8:]]
    folded = plain.replace(b", ", b" ,\t").replace(b"\n", b"\r\n\n")
    beside = {"b": {"c": [{}, [], "QZX", None, -0.0]}, "d": "\u2028"}
    floats = [time + 0.25 for time in TICKS]
    kinds = [
        ("plain", plain, TEXT_TIMES),
        ("odd", _json_lines(odd, odd, TIMES), TEXT_TIMES),
        ("blanks, no end", b"\xef\xbb\xbf\n" + folded.rstrip(), TEXT_TIMES),
        ("beside, floats", _json_lines(ODD_USERS, ITEMS, floats, **beside), MILLIS),
        ("numbers", _json_lines(NUMBERS, NUMBERS, TICKS), SECONDS),
        ("times of a form", _json_lines(USERS, ITEMS, GERMAN_TIMES), GERMAN),
        ("local times", _json_lines(USERS, ITEMS, LOCAL_TIMES), LOCAL),
    ]
    return [Sample(name, data, ".jsonl", format_mutators.JSON, fields) for name, data, fields in kinds]


@functools.cache
def gzip_samples() -> list[Sample]:
    texts = [csv_samples()[0], csv_samples()[1], csv_samples()[3], json_samples()[0], json_samples()[3]]
    return [
        Sample(one.name, gzip.compress(one.data, mtime=0), one.ending + ".gz", format_mutators.GZIP, one.context)
        for one in texts
    ]
