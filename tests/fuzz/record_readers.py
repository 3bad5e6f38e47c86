"""Readers of what Kafka carries: records of events. And of schemas of Avro."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np

from dp_transforms.logs import EventFileError
from dp_transforms.logs.avro import records_of, to_arrow
from dp_transforms.logs.avro_schema import check_schema
from dp_transforms.logs.streams.kafka_reader import RecordDecoder
from tests.fuzz import avro_mutators, format_mutators, log_samples
from tests.fuzz.log_readers import check_batch, check_rejected, check_times, events_of
from tests.fuzz.reader import FaultError, Reader, Sample, place_bytes

_FIRST = 1000  # the position of the first value
_COPIES = 30


def _check_decoded(decoder: Any, values: list[bytes | None], good: list[int]) -> Any:
    """good: numbers of the values that are events whatever stands beside them."""
    decoded = decoder.decode("topic:0", values, np.arange(_FIRST, _FIRST + len(values)))
    check_batch(decoded.batch)
    check_times(decoded.batch)
    rejected = check_rejected(decoded.rejected, _FIRST, _FIRST + len(values) - 1)
    if len(decoded.rows) != len(decoded.batch) or len(decoded.batch) + rejected != len(values):
        raise FaultError("rows", f"{len(decoded.batch)} events and {rejected} rejected of {len(values)} values")
    if (np.diff(decoded.rows) <= 0).any():
        raise FaultError("rows", "not rising")
    missing = set(good) - set(decoded.rows.tolist())
    if missing:
        raise FaultError("others", f"{len(missing)} values of others are gone")
    return [events_of(decoded.batch), decoded.rows.tolist()]


def _read_record(sample: Sample, data: bytes) -> Any:
    """Alone, and among so many others that they are decoded in one call: it is judged the same, and so are they."""
    decoder = RecordDecoder(sample.context)
    alone, _ = _check_decoded(decoder, [data], [])
    others: list[bytes | None] = [sample.data] * _COPIES
    values = [*others, data, None, *others]
    good = [number for number in range(len(values)) if number not in (_COPIES, _COPIES + 1)]
    events, rows = _check_decoded(decoder, values, good)
    found = [event for event, row in zip(events, rows, strict=True) if row == _COPIES]
    if found != alone:
        raise FaultError("others", f"{len(alone)} events alone, {len(found)} among others")
    return alone


@functools.cache
def _json_records() -> list[Sample]:
    beside = {"b": {"c": [{}, [], "QZX"]}, "d": "\u2028"}
    rows = [
        (log_samples.json_line("user-QZX", "item-QZX", log_samples.TIMES[0]), log_samples.TEXT_TIMES),
        (log_samples.json_line("Ünï QZX", 4711000123, 4711000000.25, **beside), log_samples.SECONDS),
        (
            json.dumps({"user": 4711000000, "item": "QZX", "timestamp": 4711000000}, indent=2).encode(),
            log_samples.MILLIS,
        ),
    ]
    return [
        Sample(f"json {index}", data, "", format_mutators.JSON, fields) for index, (data, fields) in enumerate(rows)
    ]


def _read_schema(sample: Sample, data: bytes) -> Any:
    """A schema that is accepted decodes any bytes without harm."""
    fields, record = sample.context
    schema = check_schema("log.avro", data, fields)
    found = []
    for value in (b"", bytes(20), b"\x0cQZX-QZX" * 4, b"\xff" * 30, record):
        try:
            (records,) = records_of(value, 1, schema.records)
            found.append([column.to_pylist() for column in to_arrow(records, schema)])
        except Exception:  # as readers take it: the block is damaged
            found.append([])
    return repr(found)


@functools.cache
def _schemas() -> list[Sample]:
    mutators = (*format_mutators.JSON, *avro_mutators.SCHEMA_TEXT)
    return [
        Sample(name, json.dumps(schema).encode(), "", mutators, (fields, log_samples.avro_record(schema, records[1])))
        for name, schema, records, fields in log_samples.AVRO_KINDS
    ]


def record_readers() -> list[Reader]:
    return [
        Reader("json-record", _json_records, (), place_bytes, _read_record, cost=2.4),
        Reader("avro-schema", _schemas, (EventFileError,), place_bytes, _read_schema, cost=0.4),
    ]
