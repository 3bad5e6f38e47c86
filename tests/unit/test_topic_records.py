"""Records of a topic of reports: what was encoded comes back, and bytes that are more or less than a record do not."""

from __future__ import annotations

import json
import pathlib

import pytest

from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.reports import ReportFileError
from dp_transforms.reports.avro import TOPIC_AVRO_SCHEMAS
from dp_transforms.reports.report_writer import TopicRecord
from dp_transforms.reports.topic_records import (
    RECORD_FORMATS,
    decode_record,
    encode_record,
)
from tests.helpers.report_samples import COUNTS, HEADER, LABELS, NAMES

RECORDS: tuple[TopicRecord, ...] = (HEADER, LABELS, COUNTS, NAMES, RunEnded("news", 24, reports=2))


@pytest.mark.parametrize("record_format", RECORD_FORMATS)
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_with_the_name_of_its_run(record: TopicRecord, record_format: str) -> None:
    assert decode_record(encode_record(record, "run-1", record_format)) == ("run-1", record)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_bytes_behind_an_avro_datum_are_refused(record: TopicRecord) -> None:
    value = encode_record(record, "run-1", "avro")
    for more in (b"\x00", b"\xc3\x01", value):
        with pytest.raises(ReportFileError, match="more than its Avro datum"):
            decode_record(value + more)
    for length in range(10, len(value)):
        with pytest.raises(ReportFileError):
            decode_record(value[:length])


def test_a_datum_of_another_schema_is_refused() -> None:
    value = encode_record(LABELS, "run-1", "avro")
    with pytest.raises(ReportFileError, match="fingerprint"):
        decode_record(value[:2] + bytes(8) + value[10:])


def test_the_published_schemas_are_those_that_are_written() -> None:
    published = pathlib.Path(__file__).parents[2] / "docs" / "report_topic.avsc"
    assert json.loads(published.read_text()) == list(TOPIC_AVRO_SCHEMAS)
