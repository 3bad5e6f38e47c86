"""The runs of ``shh replay``: the whole range of a plan, or one part of it, on this machine or by a runner of Beam; and
what is checked before anything is published."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import pathlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dp_transforms.beam.replay_job import ReplayJob
from dp_transforms.cli.operator_log import note_done, shown_progress
from dp_transforms.cli.options import LogError, NothingFoundError, user_errors
from dp_transforms.cli.output_file import is_taken, output_draft_file, publish_output
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.core import operator_counts as names
from dp_transforms.core.planned_run import PlannedRun, fresh_run_id
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.errors import UserError
from dp_transforms.local import replay as local
from dp_transforms.local.machine import bytes_in_windows, shards_of_log, start_workers
from dp_transforms.local.pool import faults_of_steps
from dp_transforms.logs import (
    check_unchanged,
    count_unless_inside,
    ending_of_log,
    find_log_chunks,
    spread_chunks,
)
from dp_transforms.logs.rejected_events import MOST_REJECTED, pack_rejected, write_rejected_lines
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.files import replace_whole, report_file_bytes, report_format, write_error
from dp_transforms.runs.fingerprints import input_fingerprint, input_key, read_key_file, sealing_key
from dp_transforms.runs.state_file import write_next_state

if TYPE_CHECKING:
    from dp_transforms.cli.state_part import StatePart

_NO_CHOICE = "False"  # line ends in cells of CSV: it stays in what an input is known by


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayRequest(ReplayJob):
    """All that a replay needs, here or by a runner.

    logs: as they were named; chunks are of them. noise_key: the path of its file; None for one that is drawn and
        forgotten. run_id: "" for one that is drawn.
    processes: None for one a core.
    state: the absolute path of the state of a run in parts; None for all of a run at once. until: where the part ends,
        in seconds; None for the end of the plan.
    """

    logs: Sequence[str]
    noise_key: str | None
    run_id: str = ""
    processes: int | None = None
    state: str | None = None
    until: int | None = None


@dataclasses.dataclass(frozen=True)
class ReplaySummary:
    """For the operator alone. unpaid: contributions of users with more than a user budget pays for. seconds: of the
    pipeline."""

    events: int
    outside_range: int
    outside_domain: int
    rejected: int
    unpaid: int
    seconds: float

    @classmethod
    def of_counts(cls, counts: Mapping[str, int], started: float) -> ReplaySummary:
        """counts: by the names of `operator_counts`."""
        return cls(
            events=counts.get(names.EVENTS_READ, 0),
            outside_range=counts.get(names.EVENTS_OUTSIDE_RANGE, 0),
            outside_domain=counts.get(names.EVENTS_OUTSIDE_DOMAIN, 0),
            rejected=counts.get(names.EVENTS_REJECTED, 0),
            unpaid=counts.get(names.CONTRIBUTIONS_UNPAID, 0),
            seconds=time.monotonic() - started,
        )


def run_whole(request: ReplayRequest, runner: Sequence[str], account: RunAccount) -> ReplaySummary:
    """All of a run at once, without a state. runner: options of Beam; empty for a replay on this machine."""

    def run(run_id: str) -> ReplaySummary:
        named = dataclasses.replace(request, run_id=run_id)
        return run_on_runner(named, runner) if runner else run_replay(named)

    if account.ledger or runner:
        check_range(request)
    if account.ledger is None:
        return run(request.run_id or fresh_run_id())
    log = fingerprint_of_log(request, None if request.noise_key is None else input_key(key_of(request.noise_key)))
    reserved = account.request(request.plan, request.stream, request.run_id, log)
    with account.whole(reserved, is_private=not runner) as run_id:
        return run(run_id)


def key_of(path: str, fingerprint: str | None = None) -> bytes:
    """Raises UserError for a file that cannot be used, and if it holds another key than that of the run, which has this
    fingerprint."""
    with user_errors(ValueError):
        return read_key_file(path, fingerprint)


def check_range(request: ReplayRequest, *, is_part: bool = False) -> None:
    """Before anything is reserved. Raises NothingFoundError, or LogError if too many rows cannot be read.

    is_part: a log without any event is one of a quiet night, and only one with events of other years is not.
    """
    if request.allow_empty:
        return
    outside = count_unless_inside(request.chunks, request.fields, request.plan.schedule)
    if outside is not None:
        check_rejected(request, *outside)
        if outside[0] or not is_part:
            raise nothing_found(request, *outside)


def fingerprint_of_log(request: ReplayRequest, key: bytes | None = None) -> str:
    """key: `input_key` of the run. Raises UserError if the files were exchanged since they were listed: then the row
    groups that are read would not be those of the file that was fingerprinted."""
    fields = request.fields
    declared = (*fields.time_reading, fields.csv_separator)
    reading = (*fields.names, *(value or "" for value in declared), _NO_CHOICE)
    files = [(chunk.path, ending_of_log(chunk.path)) for chunk in request.chunks]
    stored = {chunk.path: chunk.stored for chunk in request.chunks if chunk.stored is not None}
    log = input_fingerprint(files, reading, key, stored)
    if find_log_chunks(request.logs, fields) != request.chunks:
        raise UserError("the log was changed while it was looked at. Replay files that nobody writes to any more.")
    return log


def run_on_runner(request: ReplayRequest, words: Sequence[str]) -> ReplaySummary:
    """Submits the job that pipelines/replay_log.py builds, which publishes by itself, in its last step; returns when it
    is over. words: options of Beam. Raises UserError like `run_replay`."""
    import apache_beam as beam

    from dp_transforms.beam.jobs import build_replay, run_to_end
    from dp_transforms.beam.runner_options import is_on_dataflow, is_sent, job_name, runner_options
    from dp_transforms.beam.workers import operator_counts
    from dp_transforms.cli.exit_signals import Unwinding

    started = time.monotonic()
    options = runner_options(words, job_name=job_name(request.stream, request.run_id), streaming=False)
    if is_on_dataflow(options) or not is_sent(options):
        raise UserError("a job on Dataflow, or one that is not run, is built by pipelines/replay_log.py.")
    with quiet_workers(), errors_in_one_line("see whether there is a report: a job may publish before it fails"):
        check_unchanged(request.chunks)
        pipeline = beam.Pipeline(options=options)
        build_replay(pipeline, request)
        with Unwinding():  # Ctrl-C cancels the job
            result = run_to_end(pipeline)
    counts = operator_counts(result)
    # Numbers of rows say nothing here: Beam counts a bundle that ran twice two times, and the last step does not.
    if counts.get(names.REPORTS_WITHHELD):
        raise LogError(
            "more than half of the rows could not be read, so the job has withheld its report. --dead-letter lists"
            " them; shh doctor LOG shows how they are read."
        )
    if not is_taken(request.output):  # others may have read what is not there any more
        raise UserError(
            f"no report is seen at {request.output}, though the job has ended; the run stays charged. It may have been"
            " moved away meanwhile, or lie on the disk of a worker: look for it there. To run it again is a new run,"
            " which pays again."
        )
    note_done()
    return ReplaySummary.of_counts(counts, started)


def run_replay(request: ReplayRequest, part: StatePart | None = None) -> ReplaySummary:
    """Replays on this machine and publishes its files, the report last; none of them if anything fails before.

    part: of a run with a state; the new state comes after the report. None: the whole range of the plan is the run.
    Raises UserError: one line, without any cell.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as drafts:

        def draft(output: str | None) -> str:
            return drafts.enter_context(output_draft_file(output)) if output else ""

        drawn = drafts.enter_context(part.draft()) if part else None
        report = str(report_in(drawn, request.output)) if drawn else draft(request.output)
        rejected = draft(request.dead_letter)
        with errors_in_one_line("nothing was published"):
            key = _noise_key(request, part)
            made = _replay(request, part, key)
            with faults_of_steps():  # a library that writes may say what it writes
                header = ReportHeader.of_plan(request.plan, request.run_id, request.stream)
                content = report_file_bytes(header, made.reports, report_format(report))
                replace_whole(report, operator.methodcaller("write", content), shown_name=request.output)
                if rejected:
                    packed = map(pack_rejected, made.rejected)
                    write = functools.partial(write_rejected_lines, packed=packed)
                    replace_whole(rejected, write, mode=0o600, shown_name=request.dead_letter)
                if part and drawn:
                    after, forget_after = drawn / "state", request.plan.followed_for
                    try:
                        write_next_state(
                            after, part.header_after, part.run_part, made.handed_over, forget_after, sealing_key(key)
                        )
                    except OSError as error:
                        raise write_error(part.path, error) from None
            check_unchanged(request.chunks)
        summary = ReplaySummary.of_counts(made.counts, started)
        is_empty = not part and not request.allow_empty and summary.events == summary.outside_range
        has_list = part and request.dead_letter and part.has_published(request.dead_letter)
        if rejected and request.dead_letter and not has_list and (summary.rejected or not is_empty):
            publish_output(rejected, request.dead_letter)
        check_rejected(request, summary.events, summary.rejected)
        if is_empty:
            raise nothing_found(request, summary.events, summary.rejected)
        if part:
            part.publish(drawn)
        else:
            publish_output(report, request.output)
        return summary


def report_in(folder: pathlib.Path, output: str) -> pathlib.Path:
    """Where a report lies in a folder of drafts. Its ending says the format."""
    return folder / f"report{pathlib.PurePath(output).suffix}"


def _noise_key(request: ReplayRequest, part: StatePart | None) -> bytes:
    """Raises UserError for a file that cannot be used, or that holds another key than that of the run."""
    if request.noise_key is None:
        return secrets.token_bytes(32)
    return key_of(request.noise_key, part.key_fingerprint if part else None)


def _replay(request: ReplayRequest, part: StatePart | None, key: bytes) -> local.Replayed:
    plan, chunks, fields = request.plan, request.chunks, request.fields
    run_part = part.run_part if part else None
    run = PlannedRun(
        plan=plan, stream=request.stream, run_id=request.run_id, part=run_part.draws_as if run_part else ""
    )
    domain = PublicItemsSource.of_plan(request.public_items, plan)
    size = bytes_in_windows(chunks, plan.schedule)
    with start_workers(size, key, request.processes) as workers, shown_progress() as progress:
        shards = shards_of_log(chunks, plan)
        replay = local.LocalReplay(run, workers, public_items=domain, part=run_part, shards=shards, progress=progress)
        return replay.take(spread_chunks(chunks, workers.number), fields)


def nothing_found(request: ReplayRequest, events: int, rejected: int) -> NothingFoundError:
    """For a log without an event in the range. For the operator alone: docs/guarantee.md, "What may be published"."""
    schedule = request.plan.schedule
    start, end = (format_utc(MICROS_PER_SECOND * at) for at in (schedule.start_seconds, schedule.end_seconds))
    found = f"{events:,} are outside, {rejected:,} rows cannot be read"
    what = f"no event of the log is inside {start} .. {end}: {found}" if events + rejected else "the log has no rows"
    return NothingFoundError(
        f"{what}. No report was written, and nothing is spent. Check the log, --start, --end and --time-format"
        f" (shh doctor LOG shows its times), or give --allow-empty, which spends the whole budget."
    )


def check_rejected(request: ReplayRequest, events: int, rejected: int) -> None:
    """Raises LogError if more than half of the rows cannot be read, unless an empty report is allowed too."""
    rows = events + rejected
    if rejected > MOST_REJECTED * rows and not request.allow_empty:
        raise LogError(
            f"{rejected:,} of {rows:,} rows ({rejected / rows:.1%}) could not be read, more than half; nothing was"
            " published. --dead-letter FILE lists them; shh doctor LOG shows how they are read. If they are no events,"
            f" leave them out of the log, or give --allow-empty."
        )
