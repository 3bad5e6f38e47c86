"""Verbs at the end of a stream: `WriteReportStream`, into a folder or a topic, and `WriteRejectedFolder`.

Any bundle may run twice and a worker may die between two lines. A sink keeps the first answer for every window, so what
is written twice is there once, and a second answer is never written (`dp_transforms.report_streams`).
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Iterator
from typing import IO, Any

import apache_beam as beam
from apache_beam.coders import BooleanCoder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from dp_transforms import report_coder
from dp_transforms.monitoring.window_report import RunEnded, WindowReport
from dp_transforms.rejected_events import RejectedEvents
from dp_transforms.report_files import ReportHeader, decode_report, encode_report
from dp_transforms.report_files.files import write_error
from dp_transforms.report_streams.report_writer import ReportSink, ReportWriter, end_key
from dp_transforms.write_reports import encode_rejected, replace_private, write_rejected_lines

report_coder.register()

_REPORT, _ENDED = b"R", b"E"


class WriteReportStream(beam.PTransform):
    """Writes the reports of one stream, and at last its end. Takes ``(reports, ended)``, bounded or not.

    sink: a `ReportFolder` or a `ReportTopic`.
    header: what the sink says about the run; it names the run and the stream.

    Returns a PCollection of the keys that were written, again for what is written again. A worker that is refused by
    the sink fails its bundle with StreamError.
    """

    def __init__(self, sink: ReportSink, header: ReportHeader) -> None:
        super().__init__()
        header.to_json()
        self._sink = sink
        self._header = header

    def expand(self, inputs: tuple[beam.PCollection, beam.PCollection]) -> beam.PCollection:
        reports, ended = inputs
        everywhere = beam.WindowInto(beam.window.GlobalWindows())  # before they flow together: one coder for both
        encoded = (
            reports
            | "EncodeReports" >> beam.Map(_encode_report).with_output_types(bytes)
            | "ReportsGlobally" >> everywhere,
            ended | "EncodeEnded" >> beam.Map(_encode_ended).with_output_types(bytes) | "EndGlobally" >> everywhere,
        )
        return (
            encoded
            | "Together" >> beam.Flatten()
            | "OneKey" >> beam.Map(_with_key, self._header.stream).with_output_types(tuple[str, bytes])
            | "WriteReports" >> beam.ParDo(_WriteStreamDoFn(self._sink, self._header)).with_output_types(str)
        )


class WriteRejectedFolder(beam.PTransform):
    """Writes `RejectedEvents` of a stream as JSON lines, a file per element: source, position, reason.

    path: a folder, made with mode 0700 where it is missing. The files have mode 0600: where a record was broken may be
        as private as the record. They are named by a digest of their content, so that one that is written again is
        there once. Returns a PCollection of the paths.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = os.fspath(path)

    def expand(self, rejected: beam.PCollection) -> beam.PCollection:
        return rejected | "WriteRejected" >> beam.ParDo(_WriteRejectedFolderDoFn(self._path)).with_output_types(str)


def _encode_report(report: WindowReport) -> bytes:
    return _REPORT + encode_report(report).encode()


def _encode_ended(ended: RunEnded) -> bytes:
    return _ENDED + json.dumps(list(ended)).encode()


def _with_key(encoded: bytes, stream: str) -> tuple[str, bytes]:
    return stream, encoded


def _write_all(content: bytes, handle: IO[bytes]) -> None:
    handle.write(content)


class _WriteStreamDoFn(beam.DoFn):
    """Writes in the order of arrival, the end of the run behind the reports of its bundle; commits with each bundle."""

    # Never set. To have it brings all elements, which have one key, to one worker at a time.
    ONE_WORKER = ReadModifyWriteStateSpec("one_worker_v1", BooleanCoder())

    def __init__(self, sink: ReportSink, header: ReportHeader) -> None:
        self._sink = sink
        self._header = header
        self._writer: ReportWriter | None = None
        self._is_clean = True
        self._ended: list[RunEnded] = []

    def start_bundle(self) -> None:
        if not self._is_clean:  # what a bundle wrote that failed elsewhere
            self._give_up()
        self._is_clean = False
        self._ended = []

    def process(
        self,
        element: tuple[str, bytes],
        one_worker: Any = beam.DoFn.StateParam(ONE_WORKER),
    ) -> Iterator[str]:
        encoded = element[1]
        if encoded.startswith(_ENDED):
            ended = RunEnded(*json.loads(encoded[1:]))
            self._ended.append(ended)
            yield end_key(ended.stream)
        else:
            yield self._open().write(decode_report(encoded[1:]))

    def finish_bundle(self) -> None:
        for ended in self._ended:
            self._open().end(ended)
        if self._writer is not None:
            self._writer.commit()
        self._is_clean = True

    def teardown(self) -> None:
        self._give_up()

    def _open(self) -> ReportWriter:
        if self._writer is None:
            self._writer = self._sink.open(self._header)
        return self._writer

    def _give_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class _WriteRejectedFolderDoFn(beam.DoFn):
    """Writes each element to a file of its own."""

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, rejected: RejectedEvents) -> Iterator[str]:
        lines = io.BytesIO()
        write_rejected_lines(lines, [encode_rejected(rejected)])
        name = f"rejected-{hashlib.sha256(lines.getvalue()).hexdigest()[:32]}.jsonl"
        path = pathlib.Path(self._path) / name
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(self._path, error) from None
        if not path.exists():
            replace_private(str(path), functools.partial(_write_all, lines.getvalue()))
        yield str(path)
