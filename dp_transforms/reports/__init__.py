"""Files of reports: what a run writes and ``shh show`` reads. The ending of a file says its format.

    `records`             header and record as JSON, and the check of every report that is written or read
    `json_lines`          one JSON object per line, the header first
    `avro`                object container file, header in the file metadata
    `parquet`             typed columns, header in the schema metadata
    `files`               writing and reading by path; the files of one run as one report
    `whole_report`        `Report`: a file as one value
    `replaced_file`       outputs of a step that may run twice: each file appears whole, in place of the first

Nothing here imports Beam. A report file may come from anywhere, so it is read as hostile input: any fault of it raises
a `ReportFileError` of one line.

Sinks for the reports of a stream: `ReportFolder`, one file per window, `ReportTopic`, a Kafka topic, or
`ReportTable`, a table of a database.

The first answer for a window of a run is kept forever. The same answer again, as after the death of a worker, changes
nothing. Another answer for the same window would be a second release that is not accounted for: it raises StreamError
and is not written (docs/guarantee.md, section 6).

    `report_writer`       what a sink and its writer are
    `window_follower`     reads each window of a folder or a table once, as they come
    `report_folder`       files that appear whole, and are never replaced
    `topic_records`       a report as one record, JSON or Avro
    `topic_run`           what a topic holds of a run
    `report_topic`        transactions, so that a worker that was replaced can write no more
    `topic_follower`      a topic read as it grows, for who shows a run
    `report_table`        a key for each window, in PostgreSQL or SQLite
    `table_schema`        its tables and their view
    `table_rows`          the statements on them
    `table_store`         how a run is written and read

Knows no Beam.
"""

from __future__ import annotations

from dp_transforms.reports.files import (
    read_report_file,
    read_report_files,
    report_file_bytes,
    report_files_in,
    report_format,
    write_report_file,
)
from dp_transforms.reports.json_lines import decode_report, encode_report, report_of_json
from dp_transforms.reports.records import HEADER_KEY, ReportFileError, ReportHeader
from dp_transforms.reports.report_folder import ReportFolder, read_report_folder
from dp_transforms.reports.report_table import ReportTable, read_report_table
from dp_transforms.reports.report_topic import ReportTopic
from dp_transforms.reports.report_writer import ReportSink, ReportWriter
from dp_transforms.reports.whole_report import Report, read_report

__all__ = [
    "HEADER_KEY",
    "Report",
    "ReportFileError",
    "ReportFolder",
    "ReportHeader",
    "ReportSink",
    "ReportTable",
    "ReportTopic",
    "ReportWriter",
    "decode_report",
    "encode_report",
    "read_report",
    "read_report_file",
    "read_report_files",
    "read_report_folder",
    "read_report_table",
    "report_file_bytes",
    "report_files_in",
    "report_format",
    "report_of_json",
    "write_report_file",
]
