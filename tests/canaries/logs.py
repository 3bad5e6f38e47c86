"""Logs of the canaries in every format, whole and broken: an item that all hold, and one that each holds alone."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.canaries.tokens import Canaries
from tests.helpers.looks_plans import looks_plan_of

START = 1_767_225_600  # 2026-01-01T00:00:00Z
SHARED = "all-of-them-hold-this"
FORMATS = ("parquet", "avro", "csv", "jsonl")
Row = tuple[object, object, object]
# At a delta of 1e-11 for each user, a label that one user holds alone shows in one of 10^8 runs.
BUDGET = (
    *("--start", "2026-01-01", "--end", "2026-01-01T02:00:00Z", "--window", "1h", "--epsilon", "8", "--delta", "1e-11"),
    *("--charge", "hits"),
)
BY_BEAM = ("--runner", "DirectRunner", "--noise-key-file", "noise.key")


def looks_plan() -> Plan:
    """The same budget for mode `looks`."""
    schedule = WindowSchedule.fixed("2026-01-01", "2026-01-01T02:00:00Z", 3600)
    return looks_plan_of(
        schedule, epsilon=8.0, delta=1e-12, order=7.0, known_error=1e-6, forget_after=2, most_ids=10_000
    )


def rows_of(canaries: Canaries) -> list[Row]:
    """Shuffled: (user, item, seconds). Users who are numbers too."""
    rows: list[Row] = []
    for number, (user, label) in enumerate(zip(canaries.users, canaries.labels, strict=True)):
        rows += [(user, SHARED, START + number), (user, label, START + number), (user, SHARED, START + 10**8)]
    random.Random(1).shuffle(rows)
    return rows


def number_rows(canaries: Canaries) -> list[Row]:
    return [
        row
        for number, label in zip(canaries.numbers, canaries.labels, strict=True)
        for row in ((number, 7, START + 5), (number, number, START + 6), (number, label, START + 7))
    ]


def file_of(form: str, rows: Sequence[Row], fields: Sequence[str] = ("user", "item", "timestamp")) -> bytes:
    """The bytes of a log whose user and item are text."""
    if form == "csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerows([fields, *rows])
        return text.getvalue().encode()
    if form == "jsonl":
        return b"".join(json.dumps(dict(zip(fields, row, strict=True))).encode() + b"\n" for row in rows)
    if form == "parquet":
        return parquet({name: [row[index] for row in rows] for index, name in enumerate(fields)})
    return avro(rows, fields)


def parquet(columns: dict[str, Any], **options: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, row_group_size=500, **options)
    return stream.getvalue()


def avro(
    rows: Sequence[Row], fields: Sequence[str] = ("user", "item", "timestamp"), types: Any = None, **options: Any
) -> bytes:
    stream = io.BytesIO()
    types = types or ("string", "string", "long")
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": f, "type": t} for f, t in zip(fields, types, strict=True)],
    }
    records = [dict(zip(fields, row, strict=True)) for row in rows]
    fastavro.writer(stream, schema, records, sync_interval=4000, **options)
    return stream.getvalue()


def damages(form: str, data: bytes) -> dict[str, bytes]:
    """The file, damaged at several places."""
    source = random.Random(2)

    def flipped(low: int, high: int) -> bytes:
        out = bytearray(data)
        for _ in range(20):
            out[source.randrange(low, high)] ^= 1 << source.randrange(8)
        return bytes(out)

    size = len(data)
    return {
        f"{form} cut off": data[: size // 2],
        f"{form} cut off near its end": data[: size - 5],
        f"{form} flipped at the begin": flipped(0, min(400, size)),
        f"{form} flipped in the middle": flipped(size // 3, size // 2),
        f"{form} flipped at the end": flipped(size - min(400, size), size),
        f"{form} without its begin": data[100:],
        f"{form} with zeros in the middle": data[: size // 2] + bytes(1000) + data[size // 2 + 1000 :],
    }


def hostile_logs(canaries: Canaries) -> dict[str, tuple[str, bytes]]:
    """What users or careless writers put into logs, by name: (ending of the file, its bytes)."""
    rows = rows_of(canaries)
    user, label = canaries.users[1], canaries.labels[2]
    other = canaries.users[5]
    lines = file_of("jsonl", rows)
    cells = file_of("csv", rows)
    bare = cells.split(b"\n", 1)[1]

    def object_line(**fields: object) -> bytes:
        return json.dumps({"user": user, "item": "x", "timestamp": START, **fields}).encode() + b"\n"

    def table(**columns: Any) -> bytes:
        whole = {"user": [user, other], "item": [label, "x"], "timestamp": [START, START]}
        return parquet({**whole, **columns})

    logs: dict[str, tuple[str, bytes]] = {
        "csv without a header": ("csv", bare),
        "csv with one column of a token": ("csv", (user + "\n" + label + "\n").encode()),
        "csv with other marks": ("csv", bare.replace(b",", b";")),
        "csv with more cells": ("csv", cells + f"{user},{label},1,2,{other}\n".encode() * 30),
        "csv with fewer cells": ("csv", cells + f"{user}\n".encode() * 30),
        "csv with an open quote": ("csv", cells + f'"{user},{label},{START}\n{other},a,1\n'.encode()),
        "csv with a line end in a cell": ("csv", cells + f'"{user}\n{other}",{label},{START}\n'.encode()),
        "csv with a huge cell": ("csv", cells + f"{user * 400_000},{label},{START}\n".encode()),
        "csv with a header twice": (
            "csv",
            b"user,item,timestamp,user\n" + f"{user},{label},{START},{other}\n".encode(),
        ),
        "csv with tokens as times": ("csv", b"user,item,timestamp\n" + f"a,{label},{user}\n".encode() * 50),
        "csv that is utf-16": ("csv", cells.decode().encode("utf-16")),
        "csv that is latin-1": ("csv", cells.decode().encode("latin-1")),
        "csv with NUL": ("csv", cells.replace(user.encode(), user.encode() + b"\0")),
        "csv in a cut gzip": ("csv.gz", gzip.compress(cells)[:-2000]),
        "csv that is no gzip": ("csv.gz", cells),
        "jsonl keyed by users": ("jsonl", b"".join(json.dumps({u: SHARED}).encode() + b"\n" for u in canaries.users)),
        "jsonl of plain texts": ("jsonl", b"".join(json.dumps(u).encode() + b"\n" for u in canaries.users)),
        "jsonl of arrays": ("jsonl", json.dumps(canaries.users).encode()),
        "jsonl of no JSON": ("jsonl", "\n".join(canaries.users).encode()),
        "jsonl with odd types": ("jsonl", lines + object_line(user=[user]) + object_line(user={user: user}) * 40),
        "jsonl with odd items": ("jsonl", lines + object_line(item=[label]) + object_line(item={label: label}) * 40),
        "jsonl with tokens as times": ("jsonl", lines + object_line(timestamp=other) * 40),
        "jsonl with only tokens as times": ("jsonl", object_line(timestamp=other) * 40),
        "jsonl with objects as times": ("jsonl", lines + object_line(timestamp={other: 1}) * 40),
        "jsonl with a huge cell": ("jsonl", lines + object_line(item=label * 200_000)),
        "jsonl with keys twice": ("jsonl", lines + f'{{"user": "{other}", "user": "a", "item": 1}}\n'.encode() * 40),
        "jsonl with a lone surrogate": (
            "jsonl",
            lines + b'{"user": "\\ud800' + other.encode() + b'", "item": "x"}\n' * 40,
        ),
        "jsonl nested deep": ("jsonl", lines + b'{"user": ' + b"[" * 100_000 + other.encode() + b"\n"),
        "jsonl with broken lines": ("jsonl", lines + f'{{"user": "{user}", "item": {label}\n'.encode() * 40),
        "jsonl broken from the first line": ("jsonl", f'{{"user": "{user}", "item": {label}\n'.encode() + lines),
        "jsonl that is utf-16": ("jsonl", lines.decode().encode("utf-16")),
        "jsonl with bytes that are no text": ("jsonl", lines + b'{"user": "' + other.encode() + b'\xff"}\n' * 40),
        "jsonl in a cut gzip": ("jsonl.gz", gzip.compress(lines)[:-2000]),
        "parquet with lists as users": ("parquet", table(user=[[user], [other]])),
        "parquet with structs as users": ("parquet", table(user=[{"a": user}, {"a": other}])),
        "parquet with maps as items": (
            "parquet",
            table(item=pa.array([[(user, label)], []], pa.map_(pa.string(), pa.string()))),
        ),
        "parquet with dictionaries": ("parquet", table(user=pa.array([user, other]).dictionary_encode())),
        "parquet with tokens as times": ("parquet", table(timestamp=[user, other])),
        "parquet with bytes that are no text": ("parquet", table(user=[other.encode() + b"\xff", b"\xfe"])),
        "parquet with missing cells": ("parquet", table(user=[user, None], item=[None, label])),
        "parquet with fractions as users": ("parquet", table(user=[0.5, 1.5])),
        "parquet with a huge cell": ("parquet", table(item=[label * 200_000, "x"])),
        "parquet with tokens in its metadata": (
            "parquet",
            parquet_with_metadata({"user": [user], "item": [1.5], "timestamp": [START]}, {user: label}),
        ),
        "avro with lists as users": (
            "avro",
            avro([([user], label, START)], types=({"type": "array", "items": "string"}, "string", "long")),
        ),
        "avro with tokens as times": ("avro", avro([(user, label, other)] * 3, types=("string", "string", "string"))),
        "avro with missing cells": (
            "avro",
            avro(
                [(None, label, START), (user, None, START)] * 5, types=(["null", "string"], ["null", "string"], "long")
            ),
        ),
        "avro with a huge cell": ("avro", avro([(user, label * 900_000, START), (user, SHARED, START)])),
        "avro with bytes that are no text": (
            "avro",
            avro([(other.encode() + b"\xff", label.encode(), START)] * 5, types=("bytes", "bytes", "long")),
        ),
        "avro with a token as its schema": (
            "avro",
            avro(rows[:50]).replace(b'"timestamp"', b'"' + user.encode()[:9] + b'"'),
        ),
    }
    for form in FORMATS:
        for name, data in damages(form, file_of(form, rows)).items():
            logs[name] = form, data
    return logs


def parquet_with_metadata(columns: dict[str, Any], metadata: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), stream)
    return stream.getvalue()
