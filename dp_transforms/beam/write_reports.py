"""Verbs at the end of a pipeline: `WriteReports` and `WriteRejected`, each one local file, written as a whole.

Any bundle may run twice and a worker may die between two lines, so everything is grouped first (what was drawn before
is settled then), written to a new file beside the path given, and put there by one `os.replace`: a step that runs twice
writes the same file twice. Give a path in a draft, and publish it when the whole pipeline has succeeded: the output
then appears at once or not at all (`dp_transforms.local_files`).
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt

from dp_transforms.beam import encode_elements
from dp_transforms.local_files import create_new, sync_folder
from dp_transforms.monitoring.window_report import WindowReport
from dp_transforms.rejected_events import RejectedEvents
from dp_transforms.report_files import (
    ReportFileError,
    ReportHeader,
    decode_report,
    encode_report,
    report_format,
    write_report_file,
)
from dp_transforms.report_files.files import write_error

encode_elements.register_coders()

_PRIVATE_MODE = 0o600


class WriteReports(beam.PTransform):
    """Writes a bounded PCollection of `WindowReport` as one report file. Without any report the file is valid too.

    output_path: a local path whose ending says the format.
    header: what the file says about the run.
    stands_for: the output that the file will become, as the user named it, for errors. None: output_path.

    If a window arrives twice, one report of it is kept: the first in the order of their JSON. Reports that contradict
    each other are counted as ``conflicting_reports`` for the operator. Returns a PCollection of the path.
    """

    def __init__(
        self, output_path: str | os.PathLike[str], header: ReportHeader, *, stands_for: str | None = None
    ) -> None:
        super().__init__()
        report_format(output_path)
        header.to_json()
        self._output_path = os.fspath(output_path)
        self._header = header
        self._stands_for = stands_for

    def expand(self, reports: beam.PCollection) -> beam.PCollection:
        encoded = reports | "EncodeReports" >> beam.Map(_encode_report).with_output_types(bytes)
        return _gathered(encoded, "WriteReports") | "WriteReportFile" >> beam.ParDo(
            _WriteReportsDoFn(self._output_path, self._header, self._stands_for)
        ).with_output_types(str)


class WriteRejected(beam.PTransform):
    """Writes a bounded PCollection of `RejectedEvents` as JSON lines, one per row: file, position, reason.

    path: a local path. The file is readable for its owner alone from its creation on: where a row was broken may be as
        private as the row. Lines are sorted by file and position. stands_for: as in `WriteReports`. Returns a
        PCollection of the path.
    """

    def __init__(self, path: str | os.PathLike[str], *, stands_for: str | None = None) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self._stands_for = stands_for

    def expand(self, rejected: beam.PCollection) -> beam.PCollection:
        encoded = rejected | "PackRejected" >> beam.Map(encode_rejected).with_output_types(bytes)
        return _gathered(encoded, "WriteRejected") | "WriteRejectedFile" >> beam.ParDo(
            _WriteRejectedDoFn(self._path, self._stands_for)
        ).with_output_types(str)


def _gathered(encoded: beam.PCollection, verb: str) -> beam.PCollection:
    """All elements, opaque bytes, as one group, which exists even when there are none."""
    if not encoded.is_bounded:
        raise ValueError(f"{verb} needs bounded input: its file appears when the input ends. Write a stream elsewhere.")
    globally = encoded | "WindowGlobally" >> beam.WindowInto(beam.window.GlobalWindows())
    # An empty element stands for "the input has ended": bytes of a report or of rejected events are never empty.
    sentinel = encoded.pipeline | "EvenIfEmpty" >> beam.Create([b""]).with_output_types(bytes)
    return (
        (globally, sentinel)
        | "AddSentinel" >> beam.Flatten()
        | "OneKey" >> beam.Map(_with_one_key).with_output_types(tuple[int, bytes])
        | "Gather" >> beam.GroupByKey()
        | "DropKey" >> beam.Values()
    )


def _with_one_key(encoded: bytes) -> tuple[int, bytes]:
    return 0, encoded


def _encode_report(report: WindowReport) -> bytes:
    return encode_report(report).encode()


def encode_rejected(rejected: RejectedEvents) -> bytes:
    """A line of JSON, then the positions as little-endian int64: packed, and opaque to Beam."""
    place = json.dumps([rejected.source, rejected.reason]).encode()
    return place + b"\n" + np.asarray(rejected.positions, dtype="<i8").tobytes()


class _WriteReportsDoFn(beam.DoFn):
    """Writes one group of encoded reports to one file."""

    def __init__(self, path: str, header: ReportHeader, stands_for: str | None = None) -> None:
        self._path = path
        self._header = header
        self._stands_for = stands_for
        self._conflicting = beam.metrics.Metrics.counter("write_reports", "conflicting_reports")

    def process(self, encoded: Iterable[bytes]) -> Iterator[str]:
        reports: dict[tuple[str, int], WindowReport] = {}
        # Sorted and distinct first: which report of a window is kept must not depend on the order of arrival.
        for line in sorted(set(encoded) - {b""}):
            report = decode_report(line)
            if reports.setdefault((report.stream, report.window_start), report) is not report:
                self._conflicting.inc()

        def write(temporary: str) -> None:
            write_report_file(temporary, self._header, reports.values(), file_format=report_format(self._path))

        _replace_whole(self._path, write, self._stands_for)
        yield self._path


class _WriteRejectedDoFn(beam.DoFn):
    """Writes one group of packed rejected events to one file."""

    def __init__(self, path: str, stands_for: str | None = None) -> None:
        self._path = path
        self._stands_for = stands_for

    def process(self, encoded: Iterable[bytes]) -> Iterator[str]:
        packed = [data for data in encoded if data]

        replace_private(self._path, lambda handle: write_rejected_lines(handle, packed), stands_for=self._stands_for)
        yield self._path


def write_rejected_lines(handle: IO[bytes], packed: Iterable[bytes]) -> None:
    """One line per position, by source and position. Rows stay int64 until they are written."""
    by_source: dict[str, list[tuple[str, npt.NDArray[np.int64]]]] = {}
    for data in packed:
        place, _, positions = data.partition(b"\n")
        source, reason = json.loads(place)
        by_source.setdefault(source, []).append((reason, np.frombuffer(positions, dtype="<i8")))
    for source in sorted(by_source):
        reasons = sorted({reason for reason, _ in by_source[source]})
        position = np.concatenate([positions for _, positions in by_source[source]])
        reason_index = np.concatenate(
            [np.full(len(positions), reasons.index(reason), np.int32) for reason, positions in by_source[source]]
        )
        for row in np.lexsort((reason_index, position)):
            fields: dict[str, Any] = {
                "file": source,
                "position": int(position[row]),
                "reason": reasons[reason_index[row]],
            }
            handle.write(json.dumps(fields).encode() + b"\n")


def replace_private(path: str, write: Callable[[IO[bytes]], None], *, stands_for: str | None = None) -> None:
    """Puts a file there that its owner alone can read, as a whole. stands_for: what errors call it; None: path."""

    def write_private(temporary: str) -> None:
        with create_new(temporary, _PRIVATE_MODE) as handle:
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())

    _replace_whole(path, write_private, stands_for)


def _replace_whole(path: str, write: Callable[[str], None], stands_for: str | None) -> None:
    """Lets ``write`` make a new file beside ``path`` and puts it there in one step."""
    temporary = str(pathlib.Path(path).with_name(f".{uuid.uuid4().hex}.tmp"))
    try:
        write(temporary)
        os.replace(temporary, path)
    except (OSError, ReportFileError) as error:
        cause = error.__cause__ if isinstance(error, ReportFileError) else error
        if isinstance(cause, OSError):  # in the words of the user: the temporary name tells them nothing
            raise write_error(stands_for or path, cause) from None
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    sync_folder(path)
