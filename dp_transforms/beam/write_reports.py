"""Write: the reports of a run into one file, when all is done, or into a folder, by and by; and its rejected rows.

Any bundle may run twice, and a worker may die between any two lines. So all that one file holds is grouped first, which
settles what was drawn before. Then it is written to a draft, and the finished file gets its name at once; a URL takes
it in one request (`dp_transforms.stores`). A step that runs twice writes the same file twice, or finds it there. A
folder of a stream keeps the first answer for each window: a report that is written twice is there once, and a second
answer is never written (`dp_transforms.reports`).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BooleanCoder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from dp_transforms.beam.assign_windows import in_global_window
from dp_transforms.beam.workers import operator_counter
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.operator_counts import REPORTS_WITHHELD
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.errors import UserError
from dp_transforms.logs.rejected_events import MOST_REJECTED, RejectedEvents, pack_rejected, write_rejected_lines
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportFileError, ReportHeader, read_report_file, report_format
from dp_transforms.reports.files import write_report_file
from dp_transforms.reports.report_folder import ReportFolder, ReportWriter, key_of
from dp_transforms.reports.report_records import RunEnded, checked_report
from dp_transforms.stores.files import output_errors, write_file, write_output

_ROWS = struct.Struct("<qq")  # events, rejected: shorter than any report
Gathered = tuple[str, Iterable[bytes]]


# ---------------------------------------------------------------------------------------------------------------------
# Files of bounded input
# ---------------------------------------------------------------------------------------------------------------------


def _gather(encoded: beam.PCollection, transform: str) -> beam.PCollection:
    """All elements, opaque bytes, as one group, which also exists when there are none. It then holds an empty element.

    transform: the name of the one that needs it, for errors. Raises ValueError for unbounded input.
    """
    if not encoded.is_bounded:
        raise ValueError(
            f"{transform} needs bounded input, because its file appears when the input ends."
            " Use WriteReportStream or WriteRejectedFolder for a stream."
        )
    # An empty element, as an impulse is, stands for "the input has ended": what is gathered is never empty.
    elements = in_global_window(encoded), encoded.pipeline | "Impulse" >> beam.Impulse() | "EvenIfEmpty" >> _same()
    return elements | "AddSentinel" >> beam.Flatten() | "OneKey" >> _with_key("all") | "Gather" >> beam.GroupByKey()


def _same() -> beam.PTransform:
    """A step between an impulse and what is flattened with it, which the job server of Flink needs."""
    return beam.Map(lambda blob: blob).with_output_types(bytes)


def _with_key(key: str) -> beam.PTransform:
    return beam.WithKeys(key).with_output_types(tuple[str, bytes])


def gather_reports(reports: beam.PCollection, transform: str) -> beam.PCollection:
    """All `WindowReport`, as one group for `gathered_reports`."""
    return _gather(reports | "EncodeReports" >> beam.Map(_pack).with_output_types(bytes), transform)


def gathered_reports(group: Gathered) -> Iterator[WindowReport]:
    """Distinct and sorted first: which report of a window comes first must not depend on the order of arrival."""
    return map(_unpack, sorted(set(group[1]) - {b""}))  # type: ignore[arg-type]


def _pack(record: WindowReport | RunEnded) -> bytes:
    """A report checked. As JSON: lists take a third of the time of a line of a file. Equal records are equal bytes."""
    is_ended = len(record) == len(RunEnded._fields)  # Beam may have made another type of it
    return json.dumps(record if is_ended else checked_report(record)).encode()


def _unpack(packed: bytes) -> WindowReport | RunEnded:
    stream, start, end, *report = json.loads(packed)
    if not report:
        return RunEnded(stream, start, end)
    found, *budget = report
    return WindowReport(stream, start, end, [*map(HeavyHitter._make, found)], *budget)


class WriteReports(beam.PTransform):
    """``(reports, batches, rejected)``, or reports alone -> one report file, which is also valid without any report.

    Input is bounded: `WindowReport`, and all rows that were read, `EventBatch` and `RejectedEvents`. Nothing is drawn
    anew: the file is written by the last step, when all is there, whole or not at all, over no other file. A file of
    another run makes the job fail; one of this run is what this step wrote before it was repeated. Of several
    reports of one window the first in the order of their JSON is kept. If more than half of the rows was rejected,
    nothing is written, and the counter ``reports_withheld`` says so to the operator; allow_empty: it is written
    whatever was read.

    output_path: a local path that every worker has, or a URL; its ending gives the format.
    header: what the file says about the run.

    Returns a PCollection of the path.
    """

    def __init__(self, output_path: str | os.PathLike[str], header: ReportHeader, *, allow_empty: bool = False) -> None:
        super().__init__()
        report_format(output_path)
        header.to_json()
        self._file = os.fspath(output_path), header, allow_empty

    def expand(self, inputs: Any) -> beam.PCollection:
        reports, *rows = inputs if isinstance(inputs, tuple) else (inputs,)
        packed = [reports | "EncodeReports" >> beam.Map(_pack).with_output_types(bytes)]
        for name, of_kind in zip(("Events", "Rejected"), rows, strict=False):
            packed.append(of_kind | f"Count{name}" >> beam.Map(_count_rows).with_output_types(bytes))
        gathered = _gather(packed | "WithRows" >> beam.Flatten(), "WriteReports")
        return gathered | "WriteReportFile" >> beam.FlatMap(_write_reports, *self._file).with_output_types(str)


def _count_rows(rows: EventBatch | RejectedEvents) -> bytes:
    return _ROWS.pack(len(rows), 0) if isinstance(rows, EventBatch) else _ROWS.pack(0, len(rows.positions))


def _write_reports(group: Gathered, path: str, header: ReportHeader, allow_empty: bool) -> Iterator[str]:
    """Runs once, or again after a worker that died."""
    key, blobs = group[0], list(group[1])
    counts = [_ROWS.unpack(blob) for blob in blobs if len(blob) == _ROWS.size]
    events, rejected = (sum(numbers) for numbers in zip((0, 0), *counts, strict=True))
    if rejected > MOST_REJECTED * (events + rejected) and not allow_empty:
        operator_counter(REPORTS_WITHHELD).inc()
        return
    kept: dict[tuple[str, int], WindowReport] = {}
    for report in gathered_reports((key, (blob for blob in blobs if len(blob) != _ROWS.size))):
        kept.setdefault((report.stream, report.window_start), report)
    try:
        write_report_file(path, header, kept.values())
    except UserError:
        if not _is_of_run(path, header.run_id):
            raise
    yield path


def _is_of_run(output: str, run_id: str) -> bool:
    """Whether the step has run before: then the output has the id of this run, which no other run has."""
    try:
        header, _ = read_report_file(output)
    except ReportFileError:
        return False
    return header.run_id == run_id


class WriteRejected(beam.PTransform):
    """Writes a bounded PCollection of `RejectedEvents` as JSON lines, one per row: file, position, reason.

    path: a local path or a URL. Only the owner can read a local file, from its creation on: where a row was broken may
        be as private as the row. In a store its rules say who can.

    Lines are sorted by file and position. Returns a PCollection of the path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = os.fspath(path)

    def expand(self, rejected: beam.PCollection) -> beam.PCollection:
        encoded = rejected | "PackRejected" >> beam.Map(pack_rejected).with_output_types(bytes)
        gathered = _gather(encoded, "WriteRejected")
        return gathered | "WriteRejectedFile" >> beam.Map(_write_rejected, self._path).with_output_types(str)


def _write_rejected(group: Gathered, path: str) -> str:
    packed = [data for data in group[1] if data]
    write_output(path, lambda handle: write_rejected_lines(handle, packed), replaces=True, mode=0o600)
    return path


# ---------------------------------------------------------------------------------------------------------------------
# Streams
# ---------------------------------------------------------------------------------------------------------------------


class WriteRejectedFolder(beam.PTransform):
    """Writes `RejectedEvents` of a stream as JSON lines, a file per element: source, position, reason.

    path: a folder, made with mode 0700 where it is missing. The files have mode 0600.

    The name of a file is a digest of its content, so a file that is written twice is there once. Returns a PCollection
    of the paths.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = os.fspath(path)

    def expand(self, rejected: beam.PCollection) -> beam.PCollection:
        return rejected | "WriteRejected" >> beam.Map(_write_into_folder, self._path).with_output_types(str)


def _write_into_folder(rejected: RejectedEvents, folder: str) -> str:
    lines = io.BytesIO()
    write_rejected_lines(lines, [pack_rejected(rejected)])
    path = pathlib.Path(folder) / f"rejected-{hashlib.sha256(lines.getvalue()).hexdigest()[:32]}.jsonl"
    with output_errors(folder):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            write_file(path, lambda handle: handle.write(lines.getvalue()), replaces=True, mode=0o600)
    return str(path)


class WriteReportStream(beam.PTransform):
    """Writes the reports of one stream, and then its end. Takes ``(reports, ended)``, bounded or not. The pipeline
    begins with opening the folder: a worker that cannot use it says so then, and not with the first report.

    path: a folder, where the first answer for each window is kept. `read_report` reads it.
    plan, run_id, stream: as `MonitorStream` has them.

    Returns a PCollection of the keys that were written; a report that is written twice has its key there twice. If the
    folder refuses a report, the bundle fails with StreamError.
    """

    def __init__(self, path: str | os.PathLike[str], plan: Plan, *, run_id: str, stream: str = "events") -> None:
        super().__init__()
        self._sink, self._header = ReportFolder(os.fspath(path)), ReportHeader.of_plan(plan, run_id, stream)

    def expand(self, inputs: tuple[beam.PCollection, beam.PCollection]) -> beam.PCollection:
        encoded = [inputs[0].pipeline | "Begin" >> beam.Impulse() | "Open" >> _same()]
        for name, records in zip(("Reports", "Ended"), inputs, strict=True):
            packed = records | f"Encode{name}" >> beam.Map(_pack).with_output_types(bytes)
            # Before Flatten: one coder for all.
            encoded.append(packed | f"{name}Globally" >> beam.WindowInto(beam.window.GlobalWindows()))
        keyed = encoded | "Together" >> beam.Flatten() | "OneKey" >> _with_key(self._header.stream)
        return keyed | "WriteReports" >> beam.ParDo(_WriteStreamDoFn(self._sink, self._header)).with_output_types(str)


class _WriteStreamDoFn(beam.DoFn):
    """Writes reports in the order of arrival, and the end of the run behind those of its bundle. An empty element only
    opens the folder.

    Stateful, since a DoFn with state gets all elements of one key, which is all of them, on one worker at a time.
    """

    ONE_WORKER = ReadModifyWriteStateSpec("one_worker_v1", BooleanCoder())  # never set

    def __init__(self, sink: ReportFolder, header: ReportHeader) -> None:
        self._sink, self._header = sink, header
        self._writer: ReportWriter | None = None

    def start_bundle(self) -> None:
        self._ended: RunEnded | None = None

    def process(
        self,
        element: tuple[str, bytes],
        one_worker: Any = beam.DoFn.StateParam(ONE_WORKER),
    ) -> Iterator[str]:
        if self._writer is None:
            self._writer = self._sink.open(self._header)
        if not element[1]:
            return
        found = _unpack(element[1])
        if isinstance(found, RunEnded):
            self._ended = found
        else:
            self._writer.write(found)
        yield key_of(found)

    def finish_bundle(self) -> None:
        if self._writer is not None and self._ended is not None:
            self._writer.end(self._ended)
