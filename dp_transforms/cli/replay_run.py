"""A replay as a pipeline: read, find heavy hitters, write; and what is checked before anything is published."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.runners.runner import PipelineResult

from dp_transforms.beam.jobs import ReplayJob, replay_pipeline, run_to_end
from dp_transforms.beam.keys import FreshKey
from dp_transforms.beam.metrics import operator_counts
from dp_transforms.beam.read_events import ReadEvents
from dp_transforms.beam.release_heavy_hitters import ReleaseLog, ReleaseOutput, ShiftingHeavyHitters
from dp_transforms.beam.run_stages import ReleasePart
from dp_transforms.beam.runner_options import is_on_dataflow, is_sent, job_name, local_options, runner_options
from dp_transforms.beam.write_files import WriteRejected, WriteReports
from dp_transforms.beam.write_state import WriteState
from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.operator_log import note_done
from dp_transforms.cli.options import LogError, NothingFoundError
from dp_transforms.cli.output_file import is_taken, output_draft_file, publish_output
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.replay_request import ReplayRequest, ReplaySummary
from dp_transforms.cli.state_part import StatePart
from dp_transforms.core.operator_counts import (
    CONTRIBUTIONS_UNPAID,
    EVENTS_OUTSIDE_DOMAIN,
    EVENTS_OUTSIDE_RANGE,
    EVENTS_READ,
    EVENTS_REJECTED,
)
from dp_transforms.errors import UserError
from dp_transforms.local import ProcessPool
from dp_transforms.logs import check_unchanged, spread_chunks, unit_hint
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc


def run_replay(request: ReplayRequest, part: StatePart | None = None, pool: ProcessPool | None = None) -> ReplaySummary:
    """Runs the pipeline and publishes its files, the report last; none of them if anything fails before.

    part: of a run with a state; the new state comes after the report. None: the whole range of the plan is the run.
    pool: worker processes of this machine that do the heavy steps, for the whole range alone.
    Raises UserError: one line, without any cell.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as drafts:

        def draft(output: str) -> str:
            return drafts.enter_context(output_draft_file(output))

        report = draft(request.output)
        rejected = draft(request.options.dead_letter) if request.options.dead_letter else None
        state = draft(part.facts.state_path) if part else None
        block_output = request.options.block_output
        of_blocks = draft(block_output) if block_output else None
        with quiet_workers(), errors_in_one_line("nothing was published"):
            pipeline = beam.Pipeline(options=local_options())
            if pool is not None:
                reports, bad_rows, blocks = _release_by(pool, pipeline, request)
            else:
                batches, bad_rows = pipeline | "ReadEvents" >> ReadEvents(request.chunks, request.fields, workers=1)
                if part and state:
                    reports, blocks = _release_part(batches, request, part, state)
                else:
                    reports, _, blocks = _release_whole(batches, request)
            _ = reports | "WriteReports" >> WriteReports(report, request.header, shown_name=request.output)
            if of_blocks:
                _ = blocks | "WriteBlocks" >> WriteReports(of_blocks, request.block_header, shown_name=block_output)
            if rejected:
                _ = bad_rows | "WriteRejected" >> WriteRejected(rejected, shown_name=request.options.dead_letter)
            result = run_to_end(pipeline)
        summary = _summary(result, started)
        with errors_in_one_line("nothing was published"):
            check_unchanged(request.chunks)
        is_empty = not part and not request.options.allow_empty and summary.events == summary.outside_range
        has_list = part and request.options.dead_letter and part.has_published(request.options.dead_letter)
        if rejected and request.options.dead_letter and not has_list and (summary.rejected or not is_empty):
            publish_output(rejected, request.options.dead_letter)
        check_bad_fraction(request, summary.events, summary.rejected)
        if is_empty:
            raise nothing_found(request, summary.events, summary.rejected)
        with_blocks = {block_output: of_blocks} if of_blocks and block_output else {}
        if part and state:
            part.publish({**with_blocks, part.facts.record.output: report}, state)
            return summary
        for output, finished in with_blocks.items():
            publish_output(finished, output)
        try:
            publish_output(report, request.output)
        except UserError as error:
            if not with_blocks:
                raise
            raise UserError(
                f"{error} The report of blocks, {block_output}, is published, and valid: the run has spent its budget."
                " To run it again is a new run, which pays again."
            ) from None
        return summary


def _summary(result: PipelineResult, started: float) -> ReplaySummary:
    """started: by the clock that never goes back."""
    counts = operator_counts(result)
    return ReplaySummary(
        events=counts.get(EVENTS_READ, 0),
        outside_range=counts.get(EVENTS_OUTSIDE_RANGE, 0),
        outside_domain=counts.get(EVENTS_OUTSIDE_DOMAIN, 0),
        rejected=counts.get(EVENTS_REJECTED, 0),
        unpaid=counts.get(CONTRIBUTIONS_UNPAID, 0),
        seconds=time.monotonic() - started,
    )


def job_of(request: ReplayRequest) -> ReplayJob:
    """As pipelines/replay_log.py has it."""
    return ReplayJob(
        chunks=request.chunks,
        fields=request.fields,
        plan=request.plan,
        noise_key=request.options.noise_key_file,
        run_id=request.run_id,
        stream=request.stream,
        public_items=request.public_items,
        output=request.output,
        block_output=request.options.block_output,
        dead_letter=request.options.dead_letter,
        max_bad_fraction=request.options.max_bad_fraction,
    )


def run_on_runner(request: ReplayRequest, words: Sequence[str]) -> ReplaySummary:
    """Submits the job that pipelines/replay_log.py builds, which publishes by itself, in its last step; returns when it
    is over. words: options of Beam. Raises UserError like `run_replay`."""
    started = time.monotonic()
    options = runner_options(words, job_name=job_name(request.stream, request.run_id), streaming=False)
    if is_on_dataflow(options) or not is_sent(options):
        raise UserError("a job on Dataflow, or one that is not run, is built by pipelines/replay_log.py.")
    with quiet_workers(), errors_in_one_line("see whether there is a report: a job may publish before it fails"):
        check_unchanged(request.chunks)
        with Unwinding(), replay_pipeline(options, job_of(request)) as pipeline:  # Ctrl-C cancels the job
            result = run_to_end(pipeline)
    summary = _summary(result, started)
    check_bad_fraction(request, summary.events, summary.rejected)
    if not is_taken(request.output):
        raise LogError("more rows than --max-bad-fraction could not be read; nothing was published.")
    note_done()
    return summary


def _of_run(request: ReplayRequest) -> dict[str, Any]:
    """What each transform is told of the run, beside its plan and key."""
    with_blocks = request.options.block_output is not None
    of_run = {"run_id": request.run_id, "stream": request.stream, "public_items": request.public_items}
    return {**of_run, "shards": request.shards, "with_blocks": with_blocks}


def _release_whole(batches: beam.PCollection, request: ReplayRequest) -> ReleaseOutput:
    """All windows of the plan -> their reports."""
    key = request.options.noise_key_file
    transform = ShiftingHeavyHitters(request.plan, noise_key=key, **_of_run(request))
    released: ReleaseOutput = batches | "ShiftingHeavyHitters" >> transform
    return released


def _release_by(pool: ProcessPool, pipeline: beam.Pipeline, request: ReplayRequest) -> ReleaseOutput:
    """The same by worker processes, and the rows that cannot be read."""
    spread = spread_chunks(request.chunks, request.fields, pool.processes)
    chunks = pipeline | "Chunks" >> beam.Create(spread, reshuffle=False)  # the pool has begun with the first
    release = ReleaseLog(request.plan, request.fields, pool, noise_key=FreshKey(pool.secret), **_of_run(request))
    released: ReleaseOutput = chunks | "ShiftingHeavyHitters" >> release
    return released


def _release_part(
    batches: beam.PCollection, request: ReplayRequest, part: StatePart, state: str
) -> tuple[beam.PCollection, beam.PCollection | None]:
    """The reports of windows and of blocks. state: the path where workers write the new state."""
    noise_key, shown_name = part.facts.noise_key, part.facts.state_path
    transform = ReleasePart(request.plan, part.run_part, noise_key=noise_key, **_of_run(request))
    released = batches | "ReleasePart" >> transform
    _ = released.state | "WriteState" >> WriteState(
        state, part.begun, part.run_part, request.plan.followed_for, shown_name, noise_key
    )
    return released.reports, released.blocks


def nothing_found(request: ReplayRequest, events: int, rejected: int, *, has_run: bool = True) -> NothingFoundError:
    """For a log without an event in the range. For the operator alone: docs/guarantee.md, "What may be published".

    has_run: whether a list of rows that cannot be read is written where one is asked for.
    """
    schedule = request.plan.schedule
    start, end = (format_utc(MICROS_PER_SECOND * at) for at in (schedule.start_seconds, schedule.end_seconds))
    found = f"{events:,} are outside, {rejected:,} rows cannot be read"
    what = f"no event of the log is inside {start} .. {end}: {found}" if events + rejected else "the log has no rows"
    unit = unit_hint(request.chunks, request.fields)
    hint = f" {unit[0].upper()}{unit[1:]}." if unit else ""
    listed = ""
    if rejected and request.options.dead_letter:
        listed = (
            f" {request.options.dead_letter} lists those rows." if has_run else " No list of those rows was written."
        )
    return NothingFoundError(
        f"{what}. No report was written, and nothing is spent.{listed} Check the log, --start, --end and --time-unit"
        f" (shh doctor LOG shows its times), or give --allow-empty, which spends the whole budget.{hint}"
    )


def check_bad_fraction(request: ReplayRequest, events: int, rejected: int, *, has_run: bool = True) -> None:
    """has_run: whether a list of the rows is written where one is asked for. Raises LogError."""
    rows, allowed = events + rejected, request.options.max_bad_fraction
    if rejected > allowed * rows:
        if not has_run:
            where = "no list was written: shh doctor LOG shows what is wrong"
        elif request.options.dead_letter:
            where = f"{request.options.dead_letter} says where and why"
        else:
            where = "see where and why with --dead-letter FILE; shh doctor LOG shows how it is read"
        unit = unit_hint(request.chunks, request.fields) if 2 * rejected > rows else None
        hint = f" Perhaps: {request.hint}" if request.hint else f" {unit[0].upper()}{unit[1:]}." if unit else ""
        raise LogError(
            f"{rejected:,} of {rows:,} rows ({rejected / rows:.1%}) could not be read, more than the"
            f" {allowed:.1%} of --max-bad-fraction; nothing was published. For the rows, {where}.{hint}"
        )
