"""The runs of ``shh replay``: on this machine, all of a run or a part of it, or by a runner of Beam; and what is
checked before anything is published."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from dp_transforms.beam.replay_job import ReplayJob
from dp_transforms.cli.operator_log import shown_progress, tell
from dp_transforms.cli.options import NothingFoundError, user_errors
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.run_account import RunAccount, drawn
from dp_transforms.core import operator_counts as names
from dp_transforms.core.planned_run import PlannedRun, RunPart
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.errors import LogError, UserError
from dp_transforms.local.machine import bytes_in_windows, shards_of_log, start_workers
from dp_transforms.local.pool import faults_of_steps
from dp_transforms.local.replay import LocalReplay, Replayed
from dp_transforms.logs import check_unchanged, count_unless_inside, ending_of_log, spread_chunks
from dp_transforms.logs.event_ids import joined_label
from dp_transforms.logs.rejected_events import MOST_REJECTED, pack_rejected, write_rejected_lines
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.files import report_file_bytes, report_format
from dp_transforms.runs.fingerprints import input_fingerprint, input_key, read_key_file
from dp_transforms.runs.records import PartRequest, VerdictKind
from dp_transforms.runs.state_file import hold_state
from dp_transforms.runs.state_part import open_part
from dp_transforms.stores.files import check_output, is_taken, write_output

_NO_CHOICE = "False"  # line ends in cells of CSV: it stays in what an input is known by


def run_whole(
    job: ReplayJob, account: RunAccount, *, runner: Sequence[str] = (), processes: int | None = None
) -> Counter[str]:
    """All of a run at once, without a state. Returns `operator_counts`.

    job: noise_key is the path of its file; None for a key that is drawn and forgotten, so that nothing can resume the
        run. run_id: "" for one that is drawn. runner: options of Beam; empty for a replay on this machine.
    """
    if account.ledger or runner:
        check_range(job)
    log = fingerprint_of_log(job, _key_of_file(job)) if account.ledger else ""
    asked = PartRequest.whole(job.plan, log, run_id=job.run_id, stream=job.stream, population=account.population)
    with account.whole(asked, is_private=not runner) as run_id:
        named = dataclasses.replace(job, run_id=run_id)
        return run_on_runner(named, runner) if runner else run_replay(named, processes)


def run_part(
    job: ReplayJob, account: RunAccount, state: str, *, until: int | None = None, processes: int | None = None
) -> Counter[str] | None:
    """One part of a run with a state, as `open_part` describes it. Returns `operator_counts`; None if nothing was drawn
    for it now."""
    secret = _key_of_file(job)
    assert secret is not None

    def check(kind: VerdictKind) -> None:
        """Raises UserError if the files of a new part exist, or cannot be written."""
        if kind in (VerdictKind.NEW, VerdictKind.CONTINUES):
            check_output(job.output)
            check_output(job.dead_letter, "--dead-letter")
        if account.ledger and kind == VerdictKind.NEW:
            check_range(job, is_part=True)

    counts = None
    with hold_state(state):
        part = open_part(
            job.plan,
            state,
            until=until,
            log=fingerprint_of_log(job, secret),
            output=job.output,
            secret=secret,
            ledger=account.ledger,
            caps=account.caps,
            check=check,
            run_id=job.run_id,
            population=account.population,
            stream=job.stream,
            user_field=job.fields.user,
            item_field=joined_label(job.fields.items),
        )
        if account.ledger:
            tell(part.verdict.line)
        if not part.is_done:
            again = "Give the same command again: it draws nothing, and tells the ledger."
            with drawn(part.ledger, part.verdict, again, left=lambda: part.left):
                if not part.is_drawn:
                    named = dataclasses.replace(job, run_id=part.verdict.run_id)
                    made, report = draw(named, secret, part.run_part, processes)
                    counts = made.counts
                    if not (part.resumes and job.dead_letter and is_taken(job.dead_letter)):  # it is of the same input
                        write_rejected(job, made)
                    if refusal := why_refused(job, counts, is_empty=False):
                        raise refusal
                    part.seal(report, made.handed_over)
                part.publish()
    tell(part.words)
    return counts


def _key_of_file(job: ReplayJob) -> bytes | None:
    """Raises UserError for a file that cannot be used."""
    if job.noise_key is None:
        return None
    assert isinstance(job.noise_key, str)
    with user_errors(ValueError):
        return read_key_file(job.noise_key)


def fingerprint_of_log(job: ReplayJob, secret: bytes | None = None) -> str:
    """secret: the noise key of a run that others may resume. Raises UserError if the files were exchanged since they
    were listed: then the row groups that are read would not be those of the file that was fingerprinted."""
    fields = job.fields
    declared = (*fields.time_reading, fields.csv_separator)
    reading = (*fields.names, *(value or "" for value in declared), _NO_CHOICE)
    files = [(chunk.path, ending_of_log(chunk.path)) for chunk in job.chunks]
    stored = {chunk.path: chunk.stored for chunk in job.chunks if chunk.stored is not None}
    log = input_fingerprint(files, reading, None if secret is None else input_key(secret), stored)
    check_unchanged(job.chunks)
    return log


def run_on_runner(job: ReplayJob, words: Sequence[str]) -> Counter[str]:
    """Submits the job that pipelines/replay_log.py builds, which publishes by itself, in its last step; returns when it
    is over. words: options of Beam. Raises UserError like `run_replay`."""
    import apache_beam as beam

    from dp_transforms.beam.jobs import build_replay, run_to_end
    from dp_transforms.beam.runner_options import is_on_dataflow, is_sent, job_name, runner_options
    from dp_transforms.beam.workers import operator_counts
    from dp_transforms.cli.exit_signals import Unwinding

    options = runner_options(words, job_name=job_name(job.stream, job.run_id), streaming=False)
    if is_on_dataflow(options) or not is_sent(options):
        raise UserError("a job on Dataflow, or one that is not run, is built by pipelines/replay_log.py.")
    quiet_workers()
    with errors_in_one_line("see whether there is a report: a job may publish before it fails"):
        check_unchanged(job.chunks)
        pipeline = beam.Pipeline(options=options)
        build_replay(pipeline, job)
        with Unwinding():  # Ctrl-C cancels the job
            result = run_to_end(pipeline)
    counts = Counter(operator_counts(result))
    # Numbers of rows say nothing here: Beam counts a bundle that ran twice two times, and the last step does not.
    if counts[names.REPORTS_WITHHELD]:
        raise LogError(
            "more than half of the rows could not be read, so the job has withheld its report. --dead-letter lists"
            " them; shh doctor LOG shows how they are read."
        )
    if not is_taken(job.output):  # others may have read what is not there any more
        raise UserError(
            f"no report is seen at {job.output}, though the job has ended; the run stays charged. It may have been"
            " moved away meanwhile, or lie on the disk of a worker: look for it there. To run it again is a new run,"
            " which pays again."
        )
    return counts


def run_replay(job: ReplayJob, processes: int | None = None) -> Counter[str]:
    """Replays the whole range on this machine and publishes its files, the report last; none of them if anything fails
    before, but the list of bad rows. Raises UserError: one line, without any cell."""
    made, report = draw(job, _key_of_file(job) or secrets.token_bytes(32), None, processes)
    counts = made.counts
    if refusal := why_refused(job, counts, is_empty=counts[names.EVENTS_READ] == counts[names.EVENTS_OUTSIDE_RANGE]):
        if counts[names.EVENTS_REJECTED]:
            write_rejected(job, made)
        raise refusal

    def write(file: BinaryIO) -> None:
        file.write(report)
        file.flush()  # a full disk is found before anything has its name
        write_rejected(job, made)

    write_output(job.output, write)
    return counts


def write_rejected(job: ReplayJob, made: Replayed) -> None:
    """The list of rows that cannot be read, if it was asked for."""
    if job.dead_letter is not None:
        write = functools.partial(write_rejected_lines, packed=map(pack_rejected, made.rejected))
        write_output(job.dead_letter, write, mode=0o600)


def draw(job: ReplayJob, secret: bytes, part: RunPart | None, processes: int | None) -> tuple[Replayed, bytes]:
    """What a replay here makes, and the file of its report; nothing is published yet. part: of a run with a state;
    None: the whole range."""
    plan, chunks = job.plan, job.chunks
    with errors_in_one_line("nothing was published"):
        run = PlannedRun(plan=plan, stream=job.stream, run_id=job.run_id, part=part.draws_as if part else "")
        public_items = PublicItemsSource.of_plan(job.public_items, plan)
        size = bytes_in_windows(chunks, plan.schedule)
        with start_workers(size, secret, processes) as workers, shown_progress() as progress:
            shards = shards_of_log(chunks, plan)
            replay = LocalReplay(run, workers, public_items=public_items, part=part, shards=shards, progress=progress)
            made = replay.take(spread_chunks(chunks, workers.number), job.fields)
        header = ReportHeader.of_plan(plan, job.run_id, job.stream)
        with faults_of_steps():  # a library that writes may say what it writes
            report = report_file_bytes(header, made.reports, report_format(job.output))
        check_unchanged(chunks)
    return made, report


def check_range(job: ReplayJob, *, is_part: bool = False) -> None:
    """Before anything is reserved. Raises NothingFoundError, or LogError if too many rows cannot be read.

    is_part: a log without any event is one of a quiet night, and only one with events of other years is not.
    """
    if job.allow_empty:
        return
    if (outside := count_unless_inside(job.chunks, job.fields, job.plan.schedule)) is not None:
        counts = dict(zip((names.EVENTS_READ, names.EVENTS_REJECTED), outside, strict=True))
        if refusal := why_refused(job, counts, is_empty=outside[0] > 0 or not is_part):
            raise refusal


def why_refused(job: ReplayJob, counts: Mapping[str, int], *, is_empty: bool) -> UserError | None:
    """Why nothing is published of a log. For the operator alone: docs/guarantee.md, "What may be published".

    is_empty: whether no event counts that should.
    """
    events, rejected = counts[names.EVENTS_READ], counts[names.EVENTS_REJECTED]
    rows, schedule = events + rejected, job.plan.schedule
    if job.allow_empty:
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
