"""A replay as a pipeline: read, find heavy hitters, write; and what is checked before anything is published."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult

from dp_transforms.accounting.release_plan import ReleasePlan
from dp_transforms.beam.count_for_operator import (
    EVENTS_OUTSIDE_DOMAIN,
    EVENTS_OUTSIDE_RANGE,
    EVENTS_READ,
    EVENTS_REJECTED,
    PAIRS_UNPAID,
    operator_counts,
)
from dp_transforms.beam.read_events import ReadEvents, ReadProgress
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.release_part import ReleasePart
from dp_transforms.beam.write_rejected import WriteRejected
from dp_transforms.beam.write_reports import WriteReports
from dp_transforms.beam.write_state import WriteState
from dp_transforms.event_files import EventFields, LogChunk, estimate_log
from dp_transforms.pipelines.noise_key_secret import noise_key_secret
from dp_transforms.pipelines.options import LogError, UserError
from dp_transforms.pipelines.output_file import output_draft_file, publish_output
from dp_transforms.pipelines.pipeline_errors import errors_in_one_line
from dp_transforms.pipelines.quiet_workers import quiet_workers
from dp_transforms.pipelines.replay_state import ReplayPart
from dp_transforms.remote_files import is_remote, look_at
from dp_transforms.report_files import ReportHeader
from dp_transforms.runners.local import free_memory_bytes, is_local

# Peak memory of a replay on the local runner, measured by benchmarks/speed.py and rounded up.
_BASE_BYTES = 400_000_000
_BYTES_PER_EVENT = 120
_BYTES_PER_LONG_LABEL_BYTE = 6
_BYTES_PER_DOMAIN_BYTE = 7


@dataclasses.dataclass(frozen=True)
class ReplayRequest:
    """All that a replay needs.

    hint: for the operator, why most rows may be unreadable (`hint_of_log`). shards: into how many parts users and items
        are cut; None for the number that suits this machine. Results do not depend on it. noise_key_secret: of
        ``--noise-key-secret``, in the place of a file.
    """

    chunks: Sequence[LogChunk]
    fields: EventFields
    plan: ReleasePlan
    domain_file: str | None
    output: str
    dead_letter: str | None
    max_bad_fraction: float
    noise_key_file: str | None
    run_id: str
    stream: str
    hint: str | None = None
    shards: int | None = None
    noise_key_secret: str | None = None

    @property
    def noise_key(self) -> str | beam.Secret | None:
        """The key file, or the secret that workers fetch. Raises UserError."""
        return self.noise_key_file if self.noise_key_secret is None else noise_key_secret(self.noise_key_secret)

    @property
    def header(self) -> ReportHeader:
        return ReportHeader.of_plan(self.plan, self.run_id, self.stream)


@dataclasses.dataclass(frozen=True)
class ReplaySummary:
    """For the operator alone. unpaid: pairs of users with more than a purse pays for. seconds: of the pipeline."""

    events: int
    outside_range: int
    outside_domain: int
    rejected: int
    unpaid: int
    seconds: float


def check_memory(
    chunks: Sequence[LogChunk], fields: EventFields, plan: ReleasePlan, domain_file: str | None = None
) -> None:
    """Raises UserError for a log that would not fit into memory on the local runner."""
    log = estimate_log(chunks, fields)
    per_window = log.events * _BYTES_PER_EVENT + log.long_label_bytes * _BYTES_PER_LONG_LABEL_BYTE
    needed = _BASE_BYTES + plan.schedule.windows_per_event * per_window
    if domain_file is not None:
        needed += _file_size(domain_file) * _BYTES_PER_DOMAIN_BYTE
    free = free_memory_bytes()
    if needed > free:
        raise UserError(
            f"about {log.events:,} events{_in_windows(plan)} may need {needed / 1e9:.1f} GB on the local runner and"
            f" {free / 1e9:.1f} GB are free. Replay a part of the range, replay on a cluster (--engine flink), or try"
            " it anyway with --allow-large-log."
        )


def _file_size(path: str) -> int:
    if is_remote(path):
        return look_at(path).size
    return os.path.getsize(path) if os.path.isfile(path) else 0


def _in_windows(plan: ReleasePlan) -> str:
    repeats = plan.schedule.windows_per_event
    return f", each in {repeats} sliding windows," if repeats > 1 else ""


def run_to_end(pipeline: beam.Pipeline) -> PipelineResult:
    """Runs a pipeline in this thread."""
    result = pipeline.run()
    result.wait_until_finish()
    return result


def run_replay(
    request: ReplayRequest,
    options: PipelineOptions,
    progress: ReadProgress | None,
    part: ReplayPart | None = None,
    run: Callable[[beam.Pipeline], PipelineResult] = run_to_end,
) -> ReplaySummary:
    """Runs the pipeline and publishes its files, the report last; none of them if anything fails.

    part: of a run with a state; the new state comes after the report. None: the whole range of the plan is the run.
    run: runs a pipeline to its end, and raises what it fails with.
    Raises UserError: one line, without any cell.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as drafts:
        workers_are_here = is_local(options)

        def draft(output: str) -> str:
            return drafts.enter_context(output_draft_file(output, workers_are_here=workers_are_here))

        report = draft(request.output)
        rejected = draft(request.dead_letter) if request.dead_letter else None
        state = draft(part.facts.state_path) if part else None
        with quiet_workers(), errors_in_one_line("nothing was published"):
            pipeline = beam.Pipeline(options=options)
            batches, bad_rows = pipeline | "ReadEvents" >> ReadEvents(request.chunks, request.fields, progress)
            if part and state:
                reports = _release_part(batches, request, part, state)
            else:
                reports = release_whole(batches, request)
            _ = reports | "WriteReports" >> WriteReports(report, request.header, shown_name=request.output)
            if rejected:
                _ = bad_rows | "WriteRejected" >> WriteRejected(rejected, shown_name=request.dead_letter)
            result = run(pipeline)
        counts = operator_counts(result)
        summary = ReplaySummary(
            events=counts.get(EVENTS_READ, 0),
            outside_range=counts.get(EVENTS_OUTSIDE_RANGE, 0),
            outside_domain=counts.get(EVENTS_OUTSIDE_DOMAIN, 0),
            rejected=counts.get(EVENTS_REJECTED, 0),
            unpaid=counts.get(PAIRS_UNPAID, 0),
            seconds=time.monotonic() - started,
        )
        if part:
            part.check_log()
        if rejected and request.dead_letter and not (part and part.has_dead_letter(request.dead_letter)):
            publish_output(rejected, request.dead_letter)
        _check_bad_fraction(summary, request)
        if part and state:
            part.publish(report, state)
        else:
            publish_output(report, request.output)
        return summary


def release_whole(batches: beam.PCollection, request: ReplayRequest) -> beam.PCollection:
    """All windows of the plan -> their reports."""
    transform = ShiftingHeavyHitters(
        request.plan,
        noise_key=request.noise_key,
        run_id=request.run_id,
        stream=request.stream,
        domain=request.domain_file,
        shards=request.shards,
    )
    return (batches | "ShiftingHeavyHitters" >> transform).reports


def _release_part(batches: beam.PCollection, request: ReplayRequest, part: ReplayPart, state: str) -> beam.PCollection:
    """state: the path where workers write the new state."""
    noise_key, shown_name = part.facts.noise_key, part.facts.state_path
    transform = ReleasePart(
        request.plan,
        part.run_part,
        noise_key=noise_key,
        run_id=request.run_id,
        stream=request.stream,
        domain=request.domain_file,
    )
    released = batches | "ReleasePart" >> transform
    _ = released.state | "WriteState" >> WriteState(
        state, part.begun, part.run_part, part.forget_after, shown_name, noise_key
    )
    return released.reports


def _check_bad_fraction(summary: ReplaySummary, request: ReplayRequest) -> None:
    rows = summary.events + summary.rejected
    if summary.rejected > request.max_bad_fraction * rows:
        where = (
            f"{request.dead_letter} says where and why"
            if request.dead_letter
            else "see where and why with --dead-letter FILE"
        )
        hint = f" Perhaps: {request.hint}" if request.hint else ""
        raise LogError(
            f"{summary.rejected:,} of {rows:,} rows ({summary.rejected / rows:.1%}) could not be read, more than the"
            f" {request.max_bad_fraction:.1%} of --max-bad-fraction; nothing was published. For the rows, {where}."
            f"{hint}"
        )
