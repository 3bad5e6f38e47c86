"""Parquet and Avro: no record of x' changes what is read of the others, nor whether the run ends in an error."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Iterator

import pytest

from dp_transforms.logs import EventFields
from tests.neighbours.binary_files import (
    PARQUET,
    Cells,
    cells_of,
    hostile_cells,
    large_cells,
    odd_cells,
    write_avro,
    write_parquet,
)
from tests.neighbours.logs import PLACES, Log, crowd, expected_pairs, place
from tests.neighbours.replayed import FIELDS, Neighbours

EVENTS = crowd(1)
EXPECTED = expected_pairs(EVENTS)
SECONDS = EventFields(time_unit="s")


def fields_of(kind: str) -> EventFields:
    return SECONDS if kind == "float" else FIELDS


def others_of(kind: str) -> list[Cells]:
    cells = cells_of(EVENTS, kind) + odd_cells(kind)
    random.Random(3).shuffle(cells)
    return cells


def logs(name: str, kind: str) -> Iterator[Log]:
    """Each case of rows of x' in turn, somewhere among the others."""
    for case, added in hostile_cells(kind).items():
        source = random.Random(f"{name} {kind} {case}")
        yield place(others_of(kind), added, source.choice(PLACES), source.getrandbits(32))


@pytest.mark.parametrize("name", PARQUET)
def test_parquet(tmp_path: pathlib.Path, name: str) -> None:
    layout, pair = PARQUET[name], Neighbours(tmp_path)
    kind = "whole" if layout.kind == "ns" else layout.kind
    for log in logs(name, kind):
        pair.write(lambda folder, rows: write_parquet(folder / "log.parquet", layout, rows), log)
        assert pair.same(fields_of(kind)).pairs >= EXPECTED


@pytest.mark.parametrize(
    ("kind", "codec"), [("whole", "null"), ("whole", "snappy"), ("float", "deflate"), ("text", "zstandard")]
)
def test_avro(tmp_path: pathlib.Path, kind: str, codec: str) -> None:
    pair = Neighbours(tmp_path)
    block_bytes = {"whole": 16_000, "float": 2_000, "text": 100}[kind]
    for log in logs(codec, kind):
        pair.write(lambda folder, rows: write_avro(folder / "log.avro", kind, rows, codec, block_bytes), log)
        assert pair.same(fields_of(kind)).pairs >= EXPECTED


def write_large(folder: pathlib.Path, form: str, log: Log) -> None:
    if form == "parquet":
        write_parquet(folder / "log.parquet", PARQUET["binary"]._replace(group=1 << 20), log)
    else:
        write_avro(folder / "log.avro", "whole", log, form)


@pytest.mark.parametrize("case", large_cells())
@pytest.mark.parametrize("form", ["parquet", "deflate"])
def test_large_cells_and_many_rows(tmp_path: pathlib.Path, form: str, case: str) -> None:
    """Avro writers put what follows a large record into the block behind it, and what came before it into its own."""
    pair = Neighbours(tmp_path)
    source = random.Random(f"{form} {case}")
    log = place(others_of("whole"), large_cells()[case], source.choice(PLACES), source.getrandbits(32))
    pair.write(lambda folder, rows: write_large(folder, form, rows), log)
    assert pair.same().pairs >= EXPECTED
