"""Write: the reports of a stream -> a folder or a topic.

Any bundle may run twice, and a worker may die between any two lines. A sink keeps the first answer for each window. So
a report that is written twice is there once, and a second answer is never written (`dp_transforms.reports`).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BooleanCoder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.utils.shared import Shared

from dp_transforms.beam import coders  # noqa: F401  (registers that of reports)
from dp_transforms.core.window_report import RunEnded, WindowReport
from dp_transforms.reports import ReportHeader, decode_report, encode_report
from dp_transforms.reports.report_writer import ReportSink, ReportWriter, key_of

_REPORT, _ENDED = b"R", b"E"


class WriteReportStream(beam.PTransform):
    """Writes the reports of one stream, and then its end. Takes ``(reports, ended)``, bounded or not. The pipeline
    begins with opening the sink: a worker that cannot use it says so then, and not with the first report.

    sink: a `ReportFolder` or a `ReportTopic`.
    header: what the sink says about the run, such as its run id and its stream.

    Returns a PCollection of the keys that were written; a report that is written twice has its key there twice. If the
    sink refuses a worker, the bundle of that worker fails with StreamError.
    """

    def __init__(self, sink: ReportSink, header: ReportHeader) -> None:
        super().__init__()
        header.to_json()
        self._sink = sink
        self._header = header

    def expand(self, inputs: tuple[beam.PCollection, beam.PCollection]) -> beam.PCollection:
        reports, ended = inputs
        everywhere = beam.WindowInto(beam.window.GlobalWindows())  # before Flatten: one coder for all
        # The job server of Flink cannot flatten what an Impulse gives without a step between.
        encoded = (
            reports.pipeline | "Begin" >> beam.Impulse() | "Open" >> beam.Map(_same).with_output_types(bytes),
            reports
            | "EncodeReports" >> beam.Map(_encode_report).with_output_types(bytes)
            | "ReportsGlobally" >> everywhere,
            ended | "EncodeEnded" >> beam.Map(_encode_ended).with_output_types(bytes) | "EndGlobally" >> everywhere,
        )
        return (
            encoded
            | "Together" >> beam.Flatten()
            | "OneKey" >> beam.WithKeys(self._header.stream).with_output_types(tuple[str, bytes])
            | "WriteReports" >> beam.ParDo(_WriteStreamDoFn(self._sink, self._header)).with_output_types(str)
        )


def _same(begin: bytes) -> bytes:
    return begin


def _encode_report(report: WindowReport) -> bytes:
    return _REPORT + encode_report(report).encode()


def _encode_ended(ended: RunEnded) -> bytes:
    return _ENDED + json.dumps(list(ended)).encode()


def _decoded(encoded: bytes) -> WindowReport | RunEnded:
    return RunEnded(*json.loads(encoded[1:])) if encoded.startswith(_ENDED) else decode_report(encoded[1:])


class _SharedWriter:
    """The one writer of a step of a pipeline in this process.

    An engine may keep several copies of a DoFn, and use them in turns or at once. If each copy opened the sink, it
    would shut out the others.
    """

    def __init__(self, sink: ReportSink, header: ReportHeader) -> None:
        self._sink = sink
        self._header = header
        self._lock = threading.Lock()
        self._writer: ReportWriter | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[ReportWriter]:
        """The open writer, for one thread at a time. After an error it is closed."""
        with self._lock:
            try:
                if self._writer is None:
                    self._writer = self._sink.open(self._header)
                yield self._writer
            except BaseException:
                self._give_up()
                raise

    def close(self) -> None:
        with self._lock:
            self._give_up()

    def _give_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class _WriteStreamDoFn(beam.DoFn):
    """Writes at the end of each bundle: the reports in the order of arrival, then the end of the run; and commits. An
    empty element only opens the sink.

    Stateful, since a DoFn with state gets all elements of one key, which is all of them, on one worker at a time.
    """

    ONE_WORKER = ReadModifyWriteStateSpec("one_worker_v1", BooleanCoder())  # never set

    def __init__(self, sink: ReportSink, header: ReportHeader) -> None:
        self._sink, self._header = sink, header
        self._in_process = Shared()  # the same in all copies, which come from one job graph
        self._bundle: list[WindowReport | RunEnded | None] = []

    def setup(self) -> None:
        self._shared = self._in_process.acquire(lambda: _SharedWriter(self._sink, self._header))

    def start_bundle(self) -> None:
        self._bundle = []

    def process(
        self,
        element: tuple[str, bytes],
        one_worker: Any = beam.DoFn.StateParam(ONE_WORKER),
    ) -> Iterator[str]:
        encoded = element[1]
        found = _decoded(encoded) if encoded else None
        self._bundle.append(found)
        if found is not None:
            yield key_of(found)

    def finish_bundle(self) -> None:
        if not self._bundle:
            return
        with self._shared.opened() as writer:
            for report in self._bundle:
                if isinstance(report, WindowReport):
                    writer.write(report)
            for ended in self._bundle:
                if isinstance(ended, RunEnded):
                    writer.end(ended)
            writer.commit()

    def teardown(self) -> None:
        self._shared.close()
