"""Files of reports: what a run writes and ``shh show`` reads. Avro, JSON lines and Parquet, told apart by the ending.

    format                what is in it
    `records`             header and record as JSON, and the check that every report passes on its way out and in
    `json_lines`          one JSON object a line, the header first
    `avro`                object container file, header in the file metadata
    `parquet`             typed columns, header in the schema metadata
    `files`               writing and reading by path

Knows no Beam. A report file comes from anywhere, so reading treats it as hostile input: anything wrong with it is a
`ReportFileError` of one line.
"""

from dp_transforms.report_files.files import (
    read_report_file,
    report_file_bytes,
    report_format,
    write_report_file,
)
from dp_transforms.report_files.json_lines import decode_report, encode_report, report_of_json
from dp_transforms.report_files.records import HEADER_KEY, ReportFileError, ReportHeader

__all__ = [
    "HEADER_KEY",
    "ReportFileError",
    "ReportHeader",
    "decode_report",
    "encode_report",
    "read_report_file",
    "report_file_bytes",
    "report_format",
    "report_of_json",
    "write_report_file",
]
