"""Reports in files and folders: what a run writes and ``shh show`` reads.

    `report_records`      header and records, the check of all that is written or read, and both as JSON lines
    `avro`                the same as an object container file
    `files`               writing and reading by path; the files of one run as one report
    `trends`              ranks, and what is new, rising, falling or gone: from a report as it is read
    `report`              a report as one value, and as one flat table
    `report_folder`       of a stream: one file per window, and the first answer for a window is kept for ever

A report may come from anywhere, so it is read as hostile input: any fault raises a `ReportFileError` of one line. The
library of a format is loaded when it is used. Knows no Beam.
"""

from __future__ import annotations

from dp_transforms.reports.files import read_report_file, report_format
from dp_transforms.reports.report import TABLE_FORMATS, Report, flat_table, read_report, write_flat
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import ReportFileError, ReportHeader, decode_report, encode_report
from dp_transforms.reports.trends import encode_trend

__all__ = [
    "TABLE_FORMATS",
    "Report",
    "ReportFileError",
    "ReportFolder",
    "ReportHeader",
    "decode_report",
    "encode_report",
    "encode_trend",
    "flat_table",
    "read_report",
    "read_report_file",
    "report_format",
    "write_flat",
]
