"""Logs in each format, of rows: user, item and time as they are to stand there; None: a cell without a value."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

NAMES = ("user", "item", "timestamp")
AVRO_MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def write_csv(path: Any, rows: Iterable[Sequence[Any]], header: Sequence[str] = NAMES, separator: str = ",") -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n", delimiter=separator)
        writer.writerow(header)
        writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return str(path)


def write_json(path: Any, rows: Iterable[Sequence[Any]]) -> str:
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({"other": [1, {"x": None}], **dict(zip(NAMES, row, strict=True))}) + "\n")
    return str(path)


def write_parquet(path: Any, rows: Sequence[Sequence[Any]], types: Sequence[pa.DataType], group: int = 1 << 20) -> str:
    arrays = [pa.array([row[k] for row in rows], types[k]) for k in range(3)]
    pq.write_table(pa.table(dict(zip(NAMES, arrays, strict=True))), path, row_group_size=group)
    return str(path)


def avro_schema(types: Sequence[Any], extra: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in zip(NAMES, types, strict=True)]
    return {"type": "record", "name": "Event", "fields": [*extra, *fields]}


def write_avro(
    path: Any, rows: Iterable[Sequence[Any]], types: Sequence[Any], codec: str = "null", interval: int = 16_000
) -> str:
    records = [dict(zip(NAMES, row, strict=True)) for row in rows]
    with open(path, "wb") as file:
        fastavro.writer(file, fastavro.parse_schema(avro_schema(types)), records, codec=codec, sync_interval=interval)
    return str(path)
