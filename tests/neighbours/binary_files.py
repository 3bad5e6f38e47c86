"""Writers of Parquet and Avro logs, and what x' puts into their cells."""

from __future__ import annotations

import functools
import io
import json
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.avro_bytes import PACK, avro_container
from tests.helpers.small_runs import MICROS, START
from tests.neighbours.hostile_lines import MB
from tests.neighbours.logs import ADDED_USER, Log, iso
from tests.reference.log import Event

NAMES = ("user", "item", "timestamp")
_T = (START + 90) * MICROS
_LAST = 2**63 - 1

Cells = tuple[Any, Any, Any]  # user, item, time


def hostile_cells(kind: str) -> dict[str, list[Cells]]:
    """kind: of the times: ``whole`` (microseconds), ``float`` (seconds) or ``text``. Ids are bytes."""
    me, good = ADDED_USER.encode(), {"whole": _T, "float": _T / MICROS, "text": iso(_T).encode()}[kind]
    odd = {
        "whole": [None, 0, -1, _LAST, -_LAST - 1, 253_402_300_800_000_000, -62_135_596_800_000_001, 10**18],
        "float": [None, 0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e300, -1e300, 5e-324, 2.0**63],
        "text": [None, b"", b"\0", b"\xff", b"soon", b"9" * 400, b"1e999", b"9999-12-31T23:59:59Z", b"-1", b'"'],
    }[kind]
    texts = [b"", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\n", b"\r", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b'"', b"a\0b"]
    return {
        "well formed": [(me, b"A", good), (me, b"mine", good)],
        "nulls": [(None, b"A", good), (me, None, good), (me, b"A", None), (None, None, None)],
        "odd users": [(text, b"A", good) for text in texts],
        "odd items": [(me, text, good) for text in texts],
        "odd times": [(me, b"A", time) for time in odd],
        "long ids": [(me, b"A" * 16_384, good), (me, b"A" * 16_385, good), (b"x'" * 9_000, b"A", good)],
        "1 MB": [(me, b"A" * MB, good), (b"A" * MB, b"A", good)],
        "many rows": [(me, b"A", good)] * 1_000,
        "many rows of nulls": [(None, None, None)] * 1_000,
        "many items": [(me, b"mine %d" % number, good) for number in range(2_000)],
    }


@functools.cache
def large_cells() -> dict[str, list[Cells]]:
    me = ADDED_USER.encode()
    return {
        "17 MB": [(me, b"A" * (17 * MB), _T)],
        "a user of 20 MB, twice": [(b"x" * (20 * MB), b"A", _T)] * 2,
        "20 of 1 MB": [(me, b"A" * MB, _T)] * 20,
        "20,000 rows": [(me, b"A", _T)] * 20_000,
    }


def cells_of(events: Iterable[Event], kind: str) -> list[Cells]:
    spell = {"whole": int, "float": lambda time: time / MICROS, "text": lambda time: iso(time).encode()}[kind]
    return [(user.encode(), item.encode(), spell(time)) for user, item, time in events]


def odd_cells(kind: str) -> list[Cells]:
    """Of others, each judged by itself."""
    return [
        (b"o1", cells[1], cells[2])
        for lines in ("odd items", "odd times", "long ids")
        for cells in hostile_cells(kind)[lines]
    ]


class ParquetLayout(NamedTuple):
    """ids: the type of ids. kind: of the times. group: rows of a row group."""

    ids: pa.DataType
    kind: str
    group: int
    options: dict[str, Any]


PARQUET = {
    "binary": ParquetLayout(pa.binary(), "whole", 1 << 20, {}),
    "small groups and pages": ParquetLayout(pa.binary(), "whole", 37, {"data_page_size": 64}),
    "no dictionary": ParquetLayout(pa.binary(), "whole", 1 << 20, {"use_dictionary": False, "compression": "none"}),
    "small dictionary": ParquetLayout(pa.binary(), "whole", 700, {"dictionary_pagesize_limit": 64}),
    "large_binary, gzip": ParquetLayout(pa.large_binary(), "float", 100, {"compression": "gzip"}),
    "texts for times, zstd, pages of version 2": ParquetLayout(
        pa.binary(), "text", 1 << 20, {"compression": "zstd", "data_page_version": "2.0"}
    ),
    "nanoseconds": ParquetLayout(pa.binary(), "ns", 500, {}),
}
_TIME_TYPES = {
    "whole": pa.timestamp("us", "UTC"),
    "float": pa.float64(),
    "text": pa.binary(),
    "ns": pa.timestamp("ns", "UTC"),
}


def write_parquet(path: pathlib.Path, layout: ParquetLayout, log: Log) -> None:
    columns = [list(column) for column in zip(*(row.body for row in log), strict=True)] or [[], [], []]
    if layout.kind == "ns":
        columns[2] = [None if time is None else max(-(2**63), min(2**63 - 1, time * 1000)) for time in columns[2]]
    types = (layout.ids, layout.ids, _TIME_TYPES[layout.kind])
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    pq.write_table(pa.table(dict(zip(NAMES, arrays, strict=True))), path, row_group_size=layout.group, **layout.options)


def avro_schema(kind: str) -> dict[str, Any]:
    """Fields that may be null, of bytes, which hold whatever they are given; and one more around them."""
    time = {"whole": {"type": "long", "logicalType": "timestamp-micros"}, "float": "double", "text": "bytes"}[kind]
    types = {"before": "long", "user": ["null", "bytes"], "item": ["null", "bytes"], "timestamp": ["null", time]}
    fields = [{"name": name, "type": of_type} for name, of_type in {**types, "after": "bytes"}.items()]
    return {"type": "record", "name": "Event", "fields": fields}


def write_avro(path: pathlib.Path, kind: str, log: Log, codec: str, block_bytes: int = 16_000) -> None:
    """As its writers do: a block ends with the record that fills it. (fastavro lacks two of the codecs here.)"""
    schema, size = fastavro.parse_schema(avro_schema(kind)), 0
    blocks: list[list[bytes]] = [[]]
    for number, row in enumerate(log):
        record = {"before": number % 3, "after": b"", **dict(zip(NAMES, row.body, strict=True))}
        fastavro.schemaless_writer(written := io.BytesIO(), schema, record)
        value = written.getvalue()
        if size >= block_bytes:
            blocks.append([])
            size = 0
        blocks[-1].append(value)
        size += len(value)
    packed = [(len(block), PACK[codec](b"".join(block))) for block in blocks if block]
    text = json.dumps(avro_schema(kind)).encode()
    path.write_bytes(avro_container({"avro.schema": text, "avro.codec": codec.encode()}, packed))
