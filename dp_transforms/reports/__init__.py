"""Reports in files, folders and topics: what a run writes and ``shh show`` reads.

    `report_records`      header and records, the check of all that is written or read, and both as JSON lines
    `avro`                the same as an object container file
    `files`               writing and reading by path; the files of one run as one report
    `trends`              ranks, and what is new, rising, falling or gone: from a report as it is read
    `report`              a report as one value, and as one flat table
    `report_writer`       what a sink of a stream is, and its rule: the first answer for a window is kept for ever
    `report_folder`       one file per window, which appears whole and is never replaced
    `report_topic`        a Kafka topic, in transactions, so that a worker that was replaced can write no more
    `topic_records`       the records of a topic, what they tell of a run, and following it

A report may come from anywhere, so it is read as hostile input: any fault raises a `ReportFileError` of one line. The
library of a format or a sink is loaded when it is used. Knows no Beam.
"""

from __future__ import annotations

from dp_transforms.checks import shown
from dp_transforms.reports.files import read_report_file, report_format
from dp_transforms.reports.report import TABLE_FORMATS, Report, flat_table, read_report, write_flat
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import ReportFileError, ReportHeader, decode_report, encode_report
from dp_transforms.reports.report_topic import ReportTopic
from dp_transforms.reports.report_writer import ReportSink
from dp_transforms.reports.trends import encode_trend
from dp_transforms.stores.kafka_client import TOPIC, is_topic, topic_of

__all__ = [
    "TABLE_FORMATS",
    "Report",
    "ReportFileError",
    "ReportFolder",
    "ReportHeader",
    "ReportSink",
    "decode_report",
    "encode_report",
    "encode_trend",
    "flat_table",
    "read_report",
    "read_report_file",
    "report_format",
    "sink_of",
    "write_flat",
]


def sink_of(place: str, *, client_config_file: str | None = None) -> ReportSink:
    """place: ``kafka://HOST:PORT/TOPIC``, else the path of a folder. client_config_file: of a topic. Raises
    ValueError."""
    if is_topic(place):
        return ReportTopic(*topic_of(place), client_config_file=client_config_file)
    if "://" in place:
        raise ValueError(f"must be {TOPIC} or the path of a folder, got {shown(place)}.")
    return ReportFolder(place)
