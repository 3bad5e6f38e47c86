"""Write: what a run leaves in files: its report, in two steps, and the list of its rejected rows.

Any bundle may run twice, and a worker may die between any two lines. So all that one file holds is grouped first, which
settles what was drawn before. Then it is written to a new file beside the path, and `os.replace` puts it there; a URL
takes it in one request (`dp_transforms.stores.remote_files`). A step that runs twice writes the same file twice.

The report goes to a draft, and gets its name when the whole pipeline has succeeded: then the output appears at once or
not at all (`dp_transforms.stores.local_files`). A command that waits publishes the draft. A job that was left running
publishes it in its last step: it is written by then, since its path is an input of the step, and so are the numbers of
rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pathlib
import secrets
import struct
from collections.abc import Iterable, Iterator

import apache_beam as beam

from dp_transforms.beam.assign_windows import in_global_window
from dp_transforms.beam.metrics import operator_counter
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.operator_counts import REPORTS_WITHHELD, Key
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.logs.rejected_events import RejectedEvents, pack_rejected, write_rejected_lines
from dp_transforms.reports import ReportFileError, ReportHeader, read_report_file, report_format
from dp_transforms.reports.files import replace_whole, report_writer, write_error
from dp_transforms.reports.report_records import checked_report
from dp_transforms.stores.local_files import publish
from dp_transforms.stores.remote_files import copy_new, draft_url, is_remote, remove

_ROWS = struct.Struct("<qq")  # events, rejected
Gathered = tuple[Key, Iterable[bytes]]


def gather_all(encoded: beam.PCollection, transform: str) -> beam.PCollection:
    """All elements, opaque bytes, as one group, which also exists when there are none. It then holds an empty element.

    transform: the name of the one that needs it, for errors. Raises ValueError for unbounded input.
    """
    if not encoded.is_bounded:
        raise ValueError(
            f"{transform} needs bounded input, because its file appears when the input ends."
            " Use WriteReportStream or WriteRejectedFolder for a stream."
        )
    keyed = beam.Map(_with_one_key).with_output_types(tuple[Key, bytes])
    # An empty element, as an impulse is, stands for "the input has ended": what is gathered is never empty. It has a
    # step of its own, since Flink cannot flatten an impulse.
    sentinel = encoded.pipeline | "Impulse" >> beam.Impulse() | "EvenIfEmpty" >> keyed
    elements = in_global_window(encoded) | "OneKey" >> keyed
    return (elements, sentinel) | "AddSentinel" >> beam.Flatten() | "Gather" >> beam.GroupByKey()


def _with_one_key(blob: bytes) -> tuple[Key, bytes]:
    return (0, 0), blob


def gather_reports(reports: beam.PCollection, transform: str) -> beam.PCollection:
    """`gather_all` of `WindowReport`, for `gathered_reports`."""
    packed = reports | "EncodeReports" >> beam.Map(_pack_report).with_output_types(bytes)
    return gather_all(packed, transform)


def gathered_reports(group: Gathered) -> Iterator[WindowReport]:
    """Distinct and sorted first: which report of a window comes first must not depend on the order of arrival."""
    return map(_unpack_report, sorted(set(group[1]) - {b""}))


def _pack_report(report: WindowReport) -> bytes:
    """Checked, and as JSON: lists take a third of the time of a line of a file. Equal reports are equal bytes."""
    return json.dumps(checked_report(report)).encode()


def _unpack_report(packed: bytes) -> WindowReport:
    stream, start, end, found, *budget = json.loads(packed)
    return WindowReport(stream, start, end, [*map(HeavyHitter._make, found)], *budget)


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
        self._file = os.fspath(output_path), header, shown_name

    def expand(self, reports: beam.PCollection) -> beam.PCollection:
        gathered = gather_reports(reports, "WriteReports")
        return gathered | "WriteReportFile" >> beam.Map(_write_reports, *self._file).with_output_types(str)


def _write_reports(group: Gathered, path: str, header: ReportHeader, shown_name: str | None) -> str:
    conflicting = beam.metrics.Metrics.counter("write_reports", "conflicting_reports")
    kept: dict[tuple[str, int], WindowReport] = {}
    for report in gathered_reports(group):
        if kept.setdefault((report.stream, report.window_start), report) is not report:
            conflicting.inc()
    replace_whole(path, report_writer(header, kept.values(), report_format(path)), shown_name=shown_name)
    return path


class PublishReport(beam.PTransform):
    """``(paths, batches, rejected)`` -> the path of the published report, or nothing if it is withheld.

    paths: what `WriteReports` returns. batches, rejected: all rows that were read. draft: of `new_draft`, the path that
        `WriteReports` was given. output: the name that it gets, in a folder that every worker has at this path.
        Or both are URLs. Nothing is written over: a file of another run makes the job fail, and one of this run is
        what this step wrote before it was repeated.
    max_bad_fraction: if a larger fraction of the rows was rejected, nothing is published; the counter
        ``reports_withheld`` says so to the operator.
    """

    def __init__(self, draft: str, output: str, header: ReportHeader, max_bad_fraction: float) -> None:
        super().__init__()
        self._draft = draft, output, header.run_id, max_bad_fraction

    def expand(self, inputs: tuple[beam.PCollection, beam.PCollection, beam.PCollection]) -> beam.PCollection:
        paths, batches, rejected = inputs
        written = paths | "SayWritten" >> beam.Map(_say_written).with_output_types(bytes)
        events = batches | "CountEvents" >> beam.Map(_count_events).with_output_types(bytes)
        bad = rejected | "CountRejected" >> beam.Map(_count_rejected).with_output_types(bytes)
        said = (written, events, bad) | "WithRows" >> beam.Flatten()
        gathered = gather_all(said, "PublishReport")
        return gathered | "PublishDraft" >> beam.FlatMap(_publish_or_withhold, *self._draft).with_output_types(str)


def new_draft(output: str) -> str:
    """The path or URL of a draft. That of a path is in a hidden folder of its own beside it, which is made here for all
    workers and which no step removes, since one that is repeated needs it. Raises ReportFileError."""
    if is_remote(output):
        return draft_url(output)
    path = pathlib.Path(output).absolute()
    folder = path.with_name(f".{path.name}.{secrets.token_hex(8)}.detached")
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        raise ReportFileError(f"--output {output} cannot be written: {error.strerror}. Check its folder.") from None
    return str(folder / f"file{path.suffix}")


def _say_written(path: str) -> bytes:
    return _ROWS.pack(0, 0)


def _count_events(batch: EventBatch) -> bytes:
    return _ROWS.pack(len(batch), 0)


def _count_rejected(rejected: RejectedEvents) -> bytes:
    return _ROWS.pack(0, len(rejected.positions))


def _publish_or_withhold(
    said: Gathered, draft: str, output: str, run_id: str, max_bad_fraction: float
) -> Iterator[str]:
    """Runs once, or again after a worker that died."""
    counts = [_ROWS.unpack(blob) for blob in said[1] if blob]
    events, rejected = (sum(numbers) for numbers in zip((0, 0), *counts, strict=True))
    if rejected > max_bad_fraction * (events + rejected):
        operator_counter(REPORTS_WITHHELD).inc()
    else:
        _publish(draft, output, run_id)
        yield output
    if is_remote(draft):
        remove(draft)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _publish(draft: str, output: str, run_id: str) -> None:
    try:
        if is_remote(output):
            copy_new(draft, output)
        else:
            publish(draft, output)
    except OSError as error:
        if not _is_of_run(output, run_id):
            raise write_error(output, error) from None


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
        be as private as the row. In a store its rules say who can. shown_name: as in `WriteReports`.

    Lines are sorted by file and position. Returns a PCollection of the path.
    """

    def __init__(self, path: str | os.PathLike[str], *, shown_name: str | None = None) -> None:
        super().__init__()
        self._file = os.fspath(path), shown_name

    def expand(self, rejected: beam.PCollection) -> beam.PCollection:
        encoded = rejected | "PackRejected" >> beam.Map(pack_rejected).with_output_types(bytes)
        gathered = gather_all(encoded, "WriteRejected")
        return gathered | "WriteRejectedFile" >> beam.Map(_write_rejected, *self._file).with_output_types(str)


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


def _write_rejected(group: Gathered, path: str, shown_name: str | None) -> str:
    _write_lines([data for data in group[1] if data], path, shown_name)
    return path


def _write_lines(packed: list[bytes], path: str, shown_name: str | None) -> None:
    replace_whole(path, lambda handle: write_rejected_lines(handle, packed), mode=0o600, shown_name=shown_name)


def _write_into_folder(rejected: RejectedEvents, folder: str) -> str:
    packed = [pack_rejected(rejected)]
    path = pathlib.Path(folder) / f"rejected-{hashlib.sha256(_lines_of(packed)).hexdigest()[:32]}.jsonl"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from None
    if not path.exists():
        _write_lines(packed, str(path), folder)
    return str(path)


def _lines_of(packed: Iterable[bytes]) -> bytes:
    lines = io.BytesIO()
    write_rejected_lines(lines, packed)
    return lines.getvalue()
