"""Kafka records: good ones of others, hostile ones of x'."""

from __future__ import annotations

import random

from tests.neighbours import hostile_lines


def hostile() -> list[bytes | None]:
    lines = [line for case in hostile_lines.JSON.values() for line in case[:20]]
    folded = [line.replace(b", ", b",\n") for line in lines if len(line) < 1_000]
    return [*lines, *folded, b"", None, b"\n", b"{\n}"]


def some(source: random.Random, count: int = 60) -> list[bytes | None]:
    return source.choices(hostile(), k=count)
