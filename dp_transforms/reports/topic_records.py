"""The records of a topic of reports: a header, then one report per window with heavy items, then the end.

As JSON each is an object: ``{"run_id", "header"}``, the fields of a report beside ``run_id``, or
``{"run_id", "ended"}``. As Avro each is a single object: the bytes C3 01, the CRC-64-AVRO fingerprint of its schema,
and the datum. The schemas are in docs/report_topic.avsc; consumers find theirs by the fingerprint.
"""

from __future__ import annotations

import functools
import io
import json
from typing import Any

from dp_transforms.monitor.window_report import WINDOW_REPORT_AVRO_SCHEMA, RunEnded, WindowReport
from dp_transforms.reports.json_lines import encode_report, report_of_json
from dp_transforms.reports.records import (
    ReportFileError,
    ReportHeader,
    is_unicode,
    parse_header,
    parse_json,
    report_fields,
)
from dp_transforms.reports.report_writer import ended_fields, parse_ended

RECORD_FORMATS = ("json", "avro")
TopicRecord = ReportHeader | WindowReport | RunEnded
_SINGLE_OBJECT = b"\xc3\x01"
_FINGERPRINT_BYTES = 8
_RUN_ID: dict[str, Any] = {"name": "run_id", "type": "string", "doc": "Name of the run."}
_STREAM: dict[str, Any] = {"name": "stream", "type": "string", "doc": "Name of the stream."}

HEADER_AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "RunHeader",
    "namespace": "shh.stream",
    "doc": "The first record of a run.",
    "fields": [
        _RUN_ID,
        {"name": "header", "type": "string", "doc": "Run, stream, guarantee and plan, as JSON."},
    ],
}

REPORT_AVRO_SCHEMA: dict[str, Any] = {
    **WINDOW_REPORT_AVRO_SCHEMA,
    "namespace": "shh.stream",
    "fields": [_RUN_ID, *WINDOW_REPORT_AVRO_SCHEMA["fields"]],
}
ENDED_AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "RunEnded",
    "namespace": "shh.stream",
    "doc": "The last record of a run: no window follows.",
    "fields": [
        _RUN_ID,
        _STREAM,
        {"name": "windows", "type": "long", "doc": "Windows that were closed, those without heavy items among them."},
        {"name": "reports", "type": "long", "doc": "Windows with heavy items: how many reports the run has."},
    ],
}
TOPIC_AVRO_SCHEMAS = (HEADER_AVRO_SCHEMA, REPORT_AVRO_SCHEMA, ENDED_AVRO_SCHEMA)
_HEADER, _REPORT, _ENDED = range(3)


def encode_record(record: TopicRecord, run_id: str, record_format: str) -> bytes:
    """The value of a record. The same record always has the same bytes. Raises ReportFileError."""
    if record_format == "avro":
        return _encode_avro(record, run_id)
    if isinstance(record, ReportHeader):
        return json.dumps({"run_id": run_id, "header": json.loads(record.to_json())}, ensure_ascii=False).encode()
    if isinstance(record, RunEnded):
        return json.dumps({"run_id": run_id, "ended": ended_fields(record)}, ensure_ascii=False).encode()
    return json.dumps({"run_id": run_id, **json.loads(encode_report(record))}, ensure_ascii=False).encode()


def decode_record(value: bytes) -> tuple[str, TopicRecord]:
    """The run id and the record, in either format. Raises ReportFileError, which contains nothing of the record."""
    if value.startswith(_SINGLE_OBJECT):
        return _decode_avro(value)
    fields = parse_json(value)
    if not isinstance(fields, dict) or not is_unicode(run_id := fields.pop("run_id", None)):
        raise ReportFileError("a record has no run_id.")
    if set(fields) == {"header"}:
        return run_id, ReportHeader.from_fields(fields["header"])
    if set(fields) == {"ended"}:
        return run_id, parse_ended(fields["ended"])
    return run_id, report_of_json(fields)


def _encode_avro(record: TopicRecord, run_id: str) -> bytes:
    import fastavro  # here and below: who shows reports of another format does not wait for it

    if isinstance(record, ReportHeader):
        index, fields = _HEADER, {"header": record.to_json()}
    elif isinstance(record, RunEnded):
        index, fields = _ENDED, ended_fields(record)
    else:
        index, fields = _REPORT, report_fields(record)
    fingerprint, schema = _schemas()[index]
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, {"run_id": run_id, **fields})
    return _SINGLE_OBJECT + fingerprint + stream.getvalue()


def _decode_avro(value: bytes) -> tuple[str, TopicRecord]:
    import fastavro

    from dp_transforms.reports.avro import read_datum

    stream = io.BytesIO(value)
    stream.seek(len(_SINGLE_OBJECT))
    fingerprint = stream.read(_FINGERPRINT_BYTES)
    index = next((index for index, (known, _) in enumerate(_schemas()) if known == fingerprint), None)
    if index is None:
        raise ReportFileError("the fingerprint of a record belongs to no schema of reports.")
    try:
        if index == _REPORT:
            run_id: Any = fastavro.schemaless_reader(stream, "string", None)
            report = read_datum(stream)
        else:
            fields: Any = fastavro.schemaless_reader(stream, _schemas()[index][1], None)
    except ReportFileError:
        raise
    except (EOFError, IndexError, ValueError, OverflowError, MemoryError) as error:
        raise ReportFileError("a record is not an Avro datum of its schema.") from error
    if stream.tell() != len(value):
        raise ReportFileError("a record holds more than its Avro datum.")
    if index == _REPORT:
        return run_id, report
    rest = {name: field for name, field in fields.items() if name != "run_id"}
    return fields["run_id"], parse_header(rest["header"]) if index == _HEADER else parse_ended(rest)


@functools.cache
def _schemas() -> list[tuple[bytes, Any]]:
    """Fingerprint and parsed schema. Times are plain microseconds: the calendar of datetime ends before a long."""
    import fastavro.schema

    from dp_transforms.reports.avro import without_logical_types

    found = []
    for schema in TOPIC_AVRO_SCHEMAS:
        canonical = fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(schema))
        # fastavro returns the bytes in the order in which they are sent: the lowest first.
        fingerprint = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
        found.append((fingerprint, fastavro.parse_schema(without_logical_types(schema))))
    return found
