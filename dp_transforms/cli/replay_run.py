"""A replay as a pipeline: read, find heavy hitters, write; and what is checked before anything is published."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Mapping, Sequence

import apache_beam as beam
from apache_beam.runners.runner import PipelineResult

from dp_transforms.beam.jobs import ReplayJob, replay_pipeline, run_to_end
from dp_transforms.beam.read_events import ReadEvents
from dp_transforms.beam.release_heavy_hitters import ReleaseLog, ReleaseOutput, ShiftingHeavyHitters
from dp_transforms.beam.release_part import ReleasePart
from dp_transforms.beam.runner_options import is_on_dataflow, is_sent, job_name, local_options, runner_options
from dp_transforms.beam.set_up_workers import FreshKey, operator_counts
from dp_transforms.beam.write_files import WriteRejected, WriteReports
from dp_transforms.beam.write_state import WriteState
from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.operator_log import note_done
from dp_transforms.cli.options import LogError, NothingFoundError
from dp_transforms.cli.output_file import is_taken, output_draft_file, publish_output
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.replay_request import ReplayRequest, ReplaySummary
from dp_transforms.cli.state_part import StatePart
from dp_transforms.errors import UserError
from dp_transforms.logs import check_unchanged, spread_chunks, unit_hint
from dp_transforms.monitor.operator_counts import (
    EVENTS_OUTSIDE_DOMAIN,
    EVENTS_OUTSIDE_RANGE,
    EVENTS_READ,
    EVENTS_REJECTED,
    PAIRS_UNPAID,
)
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.reports import read_report_file
from dp_transforms.runs.records import VerdictKind
from dp_transforms.stores.local_files import remove_dead_drafts
from dp_transforms.stores.remote_files import is_remote
from dp_transforms.workers import ProcessPool


class ReplayPart(StatePart):
    """A part that is taken from a log: its report and its new state appear together, after all is drawn.

    A part that was killed between its intent and the new state *resumes*: noise is a function of the key, the run id,
    the window, the item and who held it, so the same input gives the same bytes. A part that failed before it began to
    publish takes its intent back where the log alone was the reason, also if it resumed: nobody has read anything of
    it. Afterwards the same command finds that the part is done.
    """

    def _is_of_the_log(self, error: BaseException) -> bool:
        return isinstance(error, LogError)

    def find_done(self, block_output: str | None) -> None:
        """Removes the drafts that a process left which was killed after it had published. Raises UserError for blocks
        that are not there: they cannot be drawn again."""
        for path in filter(None, (self.facts.record.output, self.facts.state_path, block_output)):
            if not is_remote(path):
                remove_dead_drafts(pathlib.Path(path))
        if block_output is not None and not is_taken(block_output):
            raise UserError(
                f"{block_output} is not there, and cannot be had any more: this part is done. It was published without"
                " it, or the file was moved since. Leave --block-output out."
            )

    def has_dead_letter(self, path: str) -> bool:
        """Whether the process that was killed has written it already: the same input has the same bad rows."""
        return self.facts.how == VerdictKind.RESUMES and is_taken(path)

    def publish(self, reports: Mapping[str, str], state: str) -> None:
        """Gives the reports their names, then the new state. reports: finished drafts, by their outputs. state: one."""
        self._announce(state)
        for output, report in reports.items():
            if self.facts.how == VerdictKind.RESUMES and is_taken(output):
                if not _are_same_reports(report, output):
                    raise UserError(
                        f"{output} exists, and is not the report of this part. Move it away, and run the same command"
                        " again."
                    )
            else:
                publish_output(report, output)
        self._replace_state(state)


def _are_same_reports(draft: str, published: str) -> bool:
    (header, reports), (other_header, other_reports) = read_report_file(draft), read_report_file(published)
    return header == other_header and list(reports) == list(other_reports)


def run_replay(
    request: ReplayRequest, part: ReplayPart | None = None, pool: ProcessPool | None = None
) -> ReplaySummary:
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
        has_list = part and request.options.dead_letter and part.has_dead_letter(request.options.dead_letter)
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
        unpaid=counts.get(PAIRS_UNPAID, 0),
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


def _release_whole(batches: beam.PCollection, request: ReplayRequest) -> ReleaseOutput:
    """All windows of the plan -> their reports."""
    transform = ShiftingHeavyHitters(
        request.plan,
        noise_key=request.options.noise_key_file,
        run_id=request.run_id,
        stream=request.stream,
        public_items=request.public_items,
        shards=request.shards,
        with_blocks=request.options.block_output is not None,
    )
    released: ReleaseOutput = batches | "ShiftingHeavyHitters" >> transform
    return released


def _release_by(pool: ProcessPool, pipeline: beam.Pipeline, request: ReplayRequest) -> ReleaseOutput:
    """The same by worker processes, and the rows that cannot be read."""
    spread = spread_chunks(request.chunks, request.fields, pool.processes)
    chunks = pipeline | "Chunks" >> beam.Create(spread, reshuffle=False)  # the pool has begun with the first
    release = ReleaseLog(
        request.plan,
        request.fields,
        pool,
        noise_key=FreshKey(pool.secret),
        run_id=request.run_id,
        stream=request.stream,
        shards=request.shards,
        public_items=request.public_items,
        with_blocks=request.options.block_output is not None,
    )
    released: ReleaseOutput = chunks | "ShiftingHeavyHitters" >> release
    return released


def _release_part(
    batches: beam.PCollection, request: ReplayRequest, part: ReplayPart, state: str
) -> tuple[beam.PCollection, beam.PCollection | None]:
    """The reports of windows and of blocks. state: the path where workers write the new state."""
    noise_key, shown_name = part.facts.noise_key, part.facts.state_path
    transform = ReleasePart(
        request.plan,
        part.run_part,
        noise_key=noise_key,
        run_id=request.run_id,
        stream=request.stream,
        public_items=request.public_items,
        with_blocks=request.options.block_output is not None,
    )
    released = batches | "ReleasePart" >> transform
    _ = released.state | "WriteState" >> WriteState(
        state, part.begun, part.run_part, request.plan.known_for, shown_name, noise_key
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
