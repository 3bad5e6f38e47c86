"""Labels of several item fields: no row of x' changes what is read of the others, or how their labels are made."""

from __future__ import annotations

import json
import pathlib
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.logs import EventFields
from tests.neighbours.logs import ADDED_USER, NOW, PLACES, Log, crowd, expected_pairs, place
from tests.neighbours.replayed import Neighbours
from tests.neighbours.text_files import FORMATS, write

FIELDS = EventFields(item=["country", "item"])
EVENTS = crowd(3)
EXPECTED = frozenset((window, user, f"D/E / {item}") for window, user, item in expected_pairs(EVENTS))
# What x' has for a country: what separates and escapes, what is none, and labels of others.
COUNTRIES = ("D/E", "", " / ", "/", "\\", "D/E / A", "D", "\\/", "x" * 16_380, "x" * 17_000, "\u2028")


def in_csv(line: bytes, country: str) -> bytes:
    return b'"' + country.encode() + b'",' + line


def in_json(line: bytes, country: str) -> bytes:
    return line.replace(b"{", b'{"country": ' + json.dumps(country).encode() + b", ", 1)


@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_lines(tmp_path: pathlib.Path, name: str) -> None:
    form, pair = FORMATS[name], Neighbours(tmp_path)
    of_country = in_json if name == "jsonl" else in_csv
    form = form if form.header is None else form._replace(header=b"country," + form.header)
    others = [of_country(form.spell(event), "D/E") for event in EVENTS]
    source = random.Random(name)
    hostile = [line for lines in form.hostile.values() for line in lines[:40] if len(line) < 100_000]
    for where in PLACES:
        added = [of_country(line, source.choice(COUNTRIES)) for line in source.sample(hostile, len(hostile))]
        log = place(others, added, where, source.getrandbits(32))
        given = pair.write(lambda folder, rows: write(folder, form, rows), log).same(FIELDS)
        assert given.pairs == EXPECTED, where


def write_parquet(folder: pathlib.Path, log: Log) -> None:
    """As dictionaries, with a long item once for all rows of x'."""
    users, countries, items, times = zip(*(row.body for row in log), strict=True)
    columns = {"user": users, "country": countries, "item": items, "timestamp": times}
    table = pa.table({name: pa.array(column, pa.string()).dictionary_encode() for name, column in columns.items()})
    pq.write_table(table, folder / "log.parquet", row_group_size=200)


def test_columns(tmp_path: pathlib.Path) -> None:
    pair = Neighbours(tmp_path)
    others = [(user, "D/E", item, str(np.datetime64(time, "us"))) for user, item, time in EVENTS]
    source = random.Random("parquet")
    items = ["A", None, "", "y" * 16_000, " / A"]
    added = [(ADDED_USER, source.choice([*COUNTRIES, None]), source.choice(items), NOW) for _ in range(300)]
    log = place(others, added, source.choice(PLACES), source.getrandbits(32))
    assert pair.write(write_parquet, log).same(FIELDS).pairs == EXPECTED
