"""The runs of ``shh replay`` over the whole range of a plan, on this machine or by a runner of Beam; and what is
checked before anything is published."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import BinaryIO

from dp_transforms.beam.replay_job import ReplayJob
from dp_transforms.cli.operator_log import shown_progress
from dp_transforms.cli.options import LogError, NothingFoundError, user_errors
from dp_transforms.cli.output_file import is_taken, write_output
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.core import operator_counts as names
from dp_transforms.core.planned_run import PlannedRun, RunPart, fresh_run_id
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.errors import UserError
from dp_transforms.local import replay as local
from dp_transforms.local.machine import bytes_in_windows, shards_of_log, start_workers
from dp_transforms.local.pool import faults_of_steps
from dp_transforms.logs import check_unchanged, count_unless_inside, ending_of_log, find_log_chunks, spread_chunks
from dp_transforms.logs.rejected_events import MOST_REJECTED, pack_rejected, write_rejected_lines
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.files import report_file_bytes, report_format
from dp_transforms.runs.fingerprints import input_fingerprint, input_key, read_key_file
from dp_transforms.runs.records import PartRequest

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


def run_whole(request: ReplayRequest, runner: Sequence[str], account: RunAccount) -> Counter[str]:
    """All of a run at once, without a state. Returns `operator_counts`. runner: options of Beam; empty for a replay on
    this machine."""

    def run(run_id: str) -> Counter[str]:
        named = dataclasses.replace(request, run_id=run_id)
        return run_on_runner(named, runner) if runner else run_replay(named)

    if account.ledger or runner:
        check_range(request)
    if account.ledger is None:
        return run(request.run_id or fresh_run_id())
    log = fingerprint_of_log(request, None if request.noise_key is None else input_key(key_of(request.noise_key)))
    # Its key is forgotten, so that nothing can resume it.
    asked = PartRequest.whole(
        request.plan, log, run_id=request.run_id, stream=request.stream, population=account.population
    )
    with account.whole(asked, is_private=not runner) as run_id:
        return run(run_id)


def key_of(path: str, fingerprint: str | None = None) -> bytes:
    """Raises UserError for a file that cannot be used, and if it holds another key than that of the run, which has this
    fingerprint."""
    with user_errors(ValueError):
        return read_key_file(path, fingerprint)


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


def run_on_runner(request: ReplayRequest, words: Sequence[str]) -> Counter[str]:
    """Submits the job that pipelines/replay_log.py builds, which publishes by itself, in its last step; returns when it
    is over. words: options of Beam. Raises UserError like `run_replay`."""
    import apache_beam as beam

    from dp_transforms.beam.jobs import build_replay, run_to_end
    from dp_transforms.beam.runner_options import is_on_dataflow, is_sent, job_name, runner_options
    from dp_transforms.beam.workers import operator_counts
    from dp_transforms.cli.exit_signals import Unwinding

    options = runner_options(words, job_name=job_name(request.stream, request.run_id), streaming=False)
    if is_on_dataflow(options) or not is_sent(options):
        raise UserError("a job on Dataflow, or one that is not run, is built by pipelines/replay_log.py.")
    quiet_workers()
    with errors_in_one_line("see whether there is a report: a job may publish before it fails"):
        check_unchanged(request.chunks)
        pipeline = beam.Pipeline(options=options)
        build_replay(pipeline, request)
        with Unwinding():  # Ctrl-C cancels the job
            result = run_to_end(pipeline)
    counts = Counter(operator_counts(result))
    # Numbers of rows say nothing here: Beam counts a bundle that ran twice two times, and the last step does not.
    if counts[names.REPORTS_WITHHELD]:
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
    return counts


def run_replay(request: ReplayRequest) -> Counter[str]:
    """Replays the whole range on this machine and publishes its files, the report last; none of them if anything fails
    before, but the list of bad rows. Raises UserError: one line, without any cell."""
    made, report = draw(request)
    events, rejected = made.counts[names.EVENTS_READ], made.counts[names.EVENTS_REJECTED]
    is_empty = events == made.counts[names.EVENTS_OUTSIDE_RANGE]
    if refusal := why_refused(request, events, rejected, is_empty=is_empty):
        if rejected:
            write_rejected(request, made)
        raise refusal

    def write(file: BinaryIO) -> None:
        file.write(report)
        file.flush()  # a full disk is found before anything has its name
        write_rejected(request, made)

    write_output(request.output, write)
    return made.counts


def write_rejected(request: ReplayRequest, made: local.Replayed) -> None:
    """The list of rows that cannot be read, if it was asked for."""
    if request.dead_letter is not None:
        write = functools.partial(write_rejected_lines, packed=map(pack_rejected, made.rejected))
        write_output(request.dead_letter, write, mode=0o600)


def draw(
    request: ReplayRequest, part: RunPart | None = None, key_fingerprint: str | None = None
) -> tuple[local.Replayed, bytes]:
    """What a replay here makes, and the file of its report; nothing is published yet. part: of a run with a state,
    whose key has this fingerprint; None: the whole range."""
    with errors_in_one_line("nothing was published"):
        made = _replay(request, part, _noise_key(request, key_fingerprint))
        header = ReportHeader.of_plan(request.plan, request.run_id, request.stream)
        with faults_of_steps():  # a library that writes may say what it writes
            report = report_file_bytes(header, made.reports, report_format(request.output))
        check_unchanged(request.chunks)
    return made, report


def _noise_key(request: ReplayRequest, fingerprint: str | None) -> bytes:
    return secrets.token_bytes(32) if request.noise_key is None else key_of(request.noise_key, fingerprint)


def _replay(request: ReplayRequest, part: RunPart | None, key: bytes) -> local.Replayed:
    plan, chunks, fields = request.plan, request.chunks, request.fields
    run = PlannedRun(plan=plan, stream=request.stream, run_id=request.run_id, part=part.draws_as if part else "")
    domain = PublicItemsSource.of_plan(request.public_items, plan)
    size = bytes_in_windows(chunks, plan.schedule)
    with start_workers(size, key, request.processes) as workers, shown_progress() as progress:
        shards = shards_of_log(chunks, plan)
        replay = local.LocalReplay(run, workers, public_items=domain, part=part, shards=shards, progress=progress)
        return replay.take(spread_chunks(chunks, workers.number), fields)


def check_range(request: ReplayRequest, *, is_part: bool = False) -> None:
    """Before anything is reserved. Raises NothingFoundError, or LogError if too many rows cannot be read.

    is_part: a log without any event is one of a quiet night, and only one with events of other years is not.
    """
    if request.allow_empty:
        return
    outside = count_unless_inside(request.chunks, request.fields, request.plan.schedule)
    if outside and (refusal := why_refused(request, *outside, is_empty=outside[0] > 0 or not is_part)):
        raise refusal


def why_refused(request: ReplayRequest, events: int, rejected: int, *, is_empty: bool) -> UserError | None:
    """Why nothing is published of a log. For the operator alone: docs/guarantee.md, "What may be published".

    is_empty: whether no event counts that should.
    """
    rows, schedule = events + rejected, request.plan.schedule
    if request.allow_empty:
        return None
    if rejected > MOST_REJECTED * rows:
        return LogError(
            f"{rejected:,} of {rows:,} rows ({rejected / rows:.1%}) could not be read, more than half; nothing was"
            " published. --dead-letter FILE lists them; shh doctor LOG shows how they are read. If they are no events,"
            " leave them out of the log, or give --allow-empty."
        )
    if not is_empty:
        return None
    start, end = (format_utc(MICROS_PER_SECOND * at) for at in (schedule.start_seconds, schedule.end_seconds))
    return NothingFoundError(
        f"no event of the log is inside {start} .. {end}: {events:,} are outside, {rejected:,} rows cannot be read. No"
        " report was written, and nothing is spent. Check the log, --start, --end and --time-format (shh doctor LOG"
        " shows its times), or give --allow-empty, which spends the whole budget."
    )
