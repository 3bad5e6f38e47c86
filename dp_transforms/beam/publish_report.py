"""Publish: a finished draft of a report -> its name, by the job itself, where no command waits for its end.

A command that waits publishes when the whole job has succeeded. A job that was left running publishes in its last step:
the draft is written by then, since its path is an input of the step, and so are the numbers of rows.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import struct
from collections.abc import Iterable, Iterator

import apache_beam as beam

from dp_transforms.beam import encode_elements
from dp_transforms.beam.count_for_operator import operator_counter
from dp_transforms.beam.gather_all import gather_all
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.operator_counts import REPORTS_WITHHELD
from dp_transforms.reports import ReportFileError, ReportHeader, read_report_file
from dp_transforms.reports.files import write_error
from dp_transforms.stores.local_files import publish
from dp_transforms.stores.remote_files import copy_new, draft_url, is_remote, remove

encode_elements.register_coders()

_ROWS = struct.Struct("<qq")  # events, rejected
_WRITTEN = b"w"


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
        self._do_fn = _PublishReportDoFn(draft, output, header.run_id, max_bad_fraction)

    def expand(self, inputs: tuple[beam.PCollection, beam.PCollection, beam.PCollection]) -> beam.PCollection:
        paths, batches, rejected = inputs
        written = paths | "SayWritten" >> beam.Map(_say_written).with_output_types(bytes)
        events = batches | "CountEvents" >> beam.Map(_count_events).with_output_types(bytes)
        bad = rejected | "CountRejected" >> beam.Map(_count_rejected).with_output_types(bytes)
        said = (written, events, bad) | "WithRows" >> beam.Flatten()
        return gather_all(said, "PublishReport") | "PublishDraft" >> beam.ParDo(self._do_fn).with_output_types(str)


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
    return _WRITTEN


def _count_events(batch: EventBatch) -> bytes:
    return _ROWS.pack(len(batch), 0)


def _count_rejected(rejected: RejectedEvents) -> bytes:
    return _ROWS.pack(0, len(rejected.positions))


class _PublishReportDoFn(beam.DoFn):
    """Runs once, or again after a worker that died."""

    def __init__(self, draft: str, output: str, run_id: str, max_bad_fraction: float) -> None:
        self._draft = draft
        self._output = output
        self._run_id = run_id
        self._max_bad_fraction = max_bad_fraction
        self._withheld = operator_counter(REPORTS_WITHHELD)

    def process(self, said: Iterable[bytes]) -> Iterator[str]:
        counts = [_ROWS.unpack(blob) for blob in said if len(blob) == _ROWS.size]
        events, rejected = (sum(numbers) for numbers in zip((0, 0), *counts, strict=True))
        if rejected > self._max_bad_fraction * (events + rejected):
            self._withheld.inc()
        else:
            self._publish()
            yield self._output
        if is_remote(self._draft):
            remove(self._draft)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._draft)

    def _publish(self) -> None:
        try:
            if is_remote(self._output):
                copy_new(self._draft, self._output)
            else:
                publish(self._draft, self._output)
        except OSError as error:
            if not self._is_published():
                raise write_error(self._output, error) from None

    def _is_published(self) -> bool:
        """Whether this step has run before: the output has the id of this run, which no other run has."""
        try:
            header, _ = read_report_file(self._output)
        except ReportFileError:
            return False
        return header.run_id == self._run_id
