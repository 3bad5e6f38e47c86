"""Kafka records in each format: good ones of others, hostile ones of x'."""

from __future__ import annotations

import json
import random

from tests.helpers.oracle import Event
from tests.helpers.small_runs import MICROS, START
from tests.neighbours import hostile_lines
from tests.neighbours.binary_files import avro_schema, avro_values, cells_of, hostile_cells
from tests.neighbours.logs import as_json, odd_json_lines

AVRO = json.dumps(avro_schema("whole"))


def as_avro(event: Event) -> bytes:
    return avro_values(cells_of([event], "whole"), "whole")[0]


def hostile_avro() -> list[bytes | None]:
    whole = as_avro(("x'", "A", (START + 90) * MICROS))
    cells = [cells for case in hostile_cells("whole").values() for cells in case[:40]]
    parts = [whole[:cut] for cut in range(len(whole))] + [whole + b"\0", whole * 2, whole[::-1], b"\xff" * 40]
    counts = [whole[:1] + b"\x02" + count + whole[3:] for count in (b"\xfe\xff\xff\xff\x0f", b"\x01", b"\xff" * 10)]
    return [*avro_values(cells, "whole"), *parts, *counts, b"", None]


def hostile_json() -> list[bytes | None]:
    lines = [line for case in hostile_lines.JSON.values() for line in case[:20]]
    folded = [line.replace(b", ", b",\n") for line in lines if len(line) < 1_000]
    return [*lines, *folded, b"", None, b"\n", b"{\n}"]


FORMATS = {
    "json": (as_json, hostile_json, odd_json_lines, {}),
    "avro": (as_avro, hostile_avro, list, {"record_format": "avro", "avro_schema": AVRO}),
}


def some(kind: str, source: random.Random, count: int = 60) -> list[bytes | None]:
    return source.choices(FORMATS[kind][1](), k=count)
