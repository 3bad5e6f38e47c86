"""Write: the reports of a pipeline that ends -> one file, which appears as a whole.

Any bundle may run twice, and a worker may die between any two lines. So all reports are grouped first, which settles
what was drawn before. Then they are written to a new file beside the path, and `os.replace` puts it there; a URL takes
them in one request (`dp_transforms.stores.remote_files`). A step that runs twice writes the same file twice. Give a
path in a draft, and publish the draft when the whole pipeline has succeeded: then the output appears at once or not at
all (`dp_transforms.stores.local_files`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import apache_beam as beam

from dp_transforms.beam import encode_elements
from dp_transforms.beam.gather_all import gather_all
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.reports import (
    ReportHeader,
    decode_report,
    encode_report,
    report_file_bytes,
    report_format,
    write_report_file,
)
from dp_transforms.reports.files import replace_stored, replace_whole
from dp_transforms.stores.remote_files import is_remote

encode_elements.register_coders()


class WriteReports(beam.PTransform):
    """Writes a bounded PCollection of `WindowReport` as one report file, which is also valid without any report.

    output_path: a local path or a URL; its ending gives the format.
    header: what the file says about the run.
    shown_name: the name of the output for errors, where the file is a draft. None: output_path.

    If several reports of one window arrive, the first in the order of their JSON is kept; others that differ are
    counted as ``conflicting_reports`` for the operator. Returns a PCollection of the path.
    """

    def __init__(
        self, output_path: str | os.PathLike[str], header: ReportHeader, *, shown_name: str | None = None
    ) -> None:
        super().__init__()
        report_format(output_path)
        header.to_json()
        self._output_path = os.fspath(output_path)
        self._header = header
        self._shown_name = shown_name

    def expand(self, reports: beam.PCollection) -> beam.PCollection:
        encoded = reports | "EncodeReports" >> beam.Map(_encode_report).with_output_types(bytes)
        return gather_all(encoded, "WriteReports") | "WriteReportFile" >> beam.ParDo(
            _WriteReportsDoFn(self._output_path, self._header, self._shown_name)
        ).with_output_types(str)


def _encode_report(report: WindowReport) -> bytes:
    return encode_report(report).encode()


class _WriteReportsDoFn(beam.DoFn):
    """Writes one group of encoded reports to one file."""

    def __init__(self, path: str, header: ReportHeader, shown_name: str | None = None) -> None:
        self._path = path
        self._header = header
        self._shown_name = shown_name
        self._conflicting = beam.metrics.Metrics.counter("write_reports", "conflicting_reports")

    def process(self, encoded: Iterable[bytes]) -> Iterator[str]:
        reports: dict[tuple[str, int], WindowReport] = {}
        # Sorted and distinct first: which report of a window is kept must not depend on the order of arrival.
        for line in sorted(set(encoded) - {b""}):
            report = decode_report(line)
            if reports.setdefault((report.stream, report.window_start), report) is not report:
                self._conflicting.inc()

        file_format = report_format(self._path)

        def write(temporary: str) -> None:
            write_report_file(temporary, self._header, reports.values(), file_format=file_format)

        if is_remote(self._path):
            content = report_file_bytes(self._header, reports.values(), file_format=file_format)
            replace_stored(self._path, content, shown_name=self._shown_name)
        else:
            replace_whole(self._path, write, shown_name=self._shown_name)
        yield self._path
