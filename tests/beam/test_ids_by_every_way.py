"""Every way in gives the same reason for the same bad id: readers of files, decoders of records, single elements."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.beam.read_events import CollectEventsDoFn
from dp_transforms.core.event_batch import MAX_ID_BYTES
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.kafka_reader import RecordDecoder
from tests.helpers.event_files_oracle import read_all

Pair = tuple[Any, Any]
TIME = "2017-10-01T03:00:00Z"
AVRO_SCHEMA = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "user", "type": ["null", "bytes"]},
        {"name": "item", "type": ["null", "bytes"]},
        {"name": "timestamp", "type": "string"},
    ],
}

# {0} is user or item. No line of CSV and no line of JSON is broken by these bytes.
BAD_BYTES = [
    (None, "missing {0}"),
    (b"", "empty {0}"),
    (b"\xff", "{0} is not valid UTF-8 (of Latin-1: iconv -f latin1 -t utf-8)"),
    (b"u\xc3", "{0} is not valid UTF-8 (of Latin-1: iconv -f latin1 -t utf-8)"),
    (b"\xed\xa0\x80", "{0} is not valid UTF-8 (of Latin-1: iconv -f latin1 -t utf-8)"),
    (b"x" * (MAX_ID_BYTES + 1), "{0} is longer than 16,384 bytes"),
    (b"\xff" * (MAX_ID_BYTES + 1), "{0} is longer than 16,384 bytes"),
]
# Only JSON and elements can hold these.
BAD_VALUES = [
    (True, "{0} has the wrong type"),
    (1.5, "{0} has the wrong type"),
    (["a"], "{0} has the wrong type"),
    ("\ud800", "{0} is not valid UTF-8 (of Latin-1: iconv -f latin1 -t utf-8)"),
    (10**MAX_ID_BYTES, "{0} is longer than 16,384 bytes"),
]


def by_reason(rejected, first):
    return {part.reason: [position - first for position in part.positions] for part in rejected}


def of_file(path, first):
    _, rejected = read_all(str(path))
    return {reason: [position - first for position in positions] for reason, positions in rejected.items()}


def json_line(pair):
    def cell(value: Any) -> bytes:
        if isinstance(value, bytes):
            return b'"' + value + b'"'
        return b"1" + b"0" * MAX_ID_BYTES if type(value) is int else json.dumps(value).encode()

    return b'{"user":%s,"item":%s,"timestamp":"%s"}' % (cell(pair[0]), cell(pair[1]), TIME.encode())


def in_json_file(pairs, folder):
    path = folder / "log.jsonl"
    path.write_bytes(b"".join(json_line(pair) + b"\n" for pair in pairs))
    return of_file(path, 1)


def in_json_records(pairs, folder):
    decoder = RecordDecoder(EventFields())
    return by_reason(decoder.decode("t:0", [json_line(pair) for pair in pairs], np.arange(len(pairs))).rejected, 0)


def in_csv_file(pairs, folder):
    path = folder / "log.csv"
    path.write_bytes(b"user,item,timestamp\n" + b"".join(b"%s,%s,%s\n" % (*pair, TIME.encode()) for pair in pairs))
    return of_file(path, 2)


def in_parquet_file(pairs, folder):
    path = folder / "log.parquet"
    users, items = zip(*pairs, strict=True)
    columns = {"user": pa.array(users, pa.binary()), "item": pa.array(items, pa.binary())}
    pq.write_table(pa.table({**columns, "timestamp": [TIME] * len(pairs)}), path)
    return of_file(path, 1)


def avro_events(pairs):
    return [{"user": user, "item": item, "timestamp": TIME} for user, item in pairs]


def in_avro_file(pairs, folder):
    path = folder / "log.avro"
    with path.open("wb") as file:
        fastavro.writer(file, AVRO_SCHEMA, avro_events(pairs))
    return of_file(path, 1)


def in_elements(pairs, folder):
    do_fn = CollectEventsDoFn(lambda pair: pair[0], lambda pair: pair[1])
    do_fn.start_bundle()
    for number, pair in enumerate(pairs):
        assert not list(do_fn.process(pair, timestamp=type("Stamp", (), {"micros": number})()))
    outputs = [windowed.value for windowed in do_fn.finish_bundle() if hasattr(windowed, "tag")]
    return by_reason([stamped.value for stamped in outputs], 0)


WAYS: dict[str, Callable[[Sequence[Pair], pathlib.Path], dict[str, list[int]]]] = {
    way.__name__: way
    for way in (*(in_json_file, in_json_records, in_csv_file, in_parquet_file), *(in_avro_file, in_elements))
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_bad_id_has_the_same_reason(way, tmp_path):
    bad = [(value, reason) for value, reason in BAD_BYTES if value is not None or way != "in_csv_file"]
    bad += BAD_VALUES if way in ("in_json_file", "in_json_records", "in_elements") else []
    pairs: list[Pair] = [(b"u", b"i")]
    expected: dict[str, list[int]] = {}
    for value, reason in bad:
        for pair, name in (((value, b"i"), "user"), ((b"u", value), "item"), ((value, value), "user")):
            expected.setdefault(reason.format(name), []).append(len(pairs))
            pairs += [pair, (b"u", b"i")]
    assert WAYS[way](pairs, tmp_path) == expected
