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
"""

from dp_transforms.report_files.files import (
    read_report_file,
    read_report_files,
    report_file_bytes,
    report_files_in,
    report_format,
    write_report_file,
)
from dp_transforms.report_files.json_lines import decode_report, encode_report, report_of_json
from dp_transforms.report_files.records import HEADER_KEY, ReportFileError, ReportHeader
from dp_transforms.report_files.whole_report import Report, read_report

__all__ = [
    "HEADER_KEY",
    "Report",
    "ReportFileError",
    "ReportHeader",
    "decode_report",
    "encode_report",
    "read_report",
    "read_report_file",
    "read_report_files",
    "report_file_bytes",
    "report_files_in",
    "report_format",
    "report_of_json",
    "write_report_file",
]
