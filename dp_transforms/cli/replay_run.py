"""The runs of ``shh replay``: the whole range of a plan, or one part of it, on this machine or by a runner of Beam; and
what is checked before anything is published."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dp_transforms.cli.operator_log import note_done, shown_progress, tell
from dp_transforms.cli.options import LogError, NothingFoundError, user_errors
from dp_transforms.cli.output_file import check_output, is_taken, output_draft_file, publish_output
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.state_part import StateOptions, StatePart, file_in, open_part
from dp_transforms.core import operator_counts as names
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.errors import UserError
from dp_transforms.local import replay as local
from dp_transforms.local.machine import Spread, bytes_in_windows, shards_of_log
from dp_transforms.local.pool import faults_of_steps
from dp_transforms.logs import (
    EventFields,
    LogChunk,
    check_unchanged,
    count_unless_inside,
    ending_of_log,
    find_log_chunks,
    unit_hint,
)
from dp_transforms.logs.rejected_events import pack_rejected, write_rejected_lines
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.files import replace_whole, report_file_bytes, report_format, write_error
from dp_transforms.runs.fingerprints import input_fingerprint, input_key, read_key_file, sealing_key
from dp_transforms.runs.records import VerdictKind
from dp_transforms.runs.state_file import hold_state, write_next_state

if TYPE_CHECKING:
    from dp_transforms.beam.jobs import ReplayJob

_NO_CHOICE = "False"  # line ends in cells of CSV: it stays in what an input is known by


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """All that a replay needs. Fields that `ReplayJob` has mean what they mean there.

    logs: as they were named; chunks are of them. noise_key: the path of its file; None for one that is drawn and
        forgotten. is_named: whether the operator chose the run id.
    memory, processes: None for what is free, and one a core.
    shards: into how many parts users and items are cut; None for the number that suits this machine. Results do not
        depend on it.
    state: of the part that is taken; None for all of a run at once.
    """

    logs: Sequence[str]
    chunks: Sequence[LogChunk]
    fields: EventFields
    plan: Plan
    noise_key: str | None
    run_id: str
    output: str
    is_named: bool = False
    stream: str = "events"
    public_items: str | None = None
    block_output: str | None = None
    dead_letter: str | None = None
    max_bad_fraction: float = 0.5
    allow_empty: bool = False
    memory: int | None = None
    processes: int | None = None
    is_verbose: bool = False
    shards: int | None = None
    state: StateOptions | None = None

    @property
    def spread(self) -> Spread:
        """By how many processes this machine does it."""
        return Spread.of(bytes_in_windows(self.chunks, self.plan.schedule), self.processes, self.memory)

    def header(self, *, of_blocks: bool = False) -> ReportHeader:
        return ReportHeader.of_plan(self.plan, self.run_id, self.stream, of_blocks=of_blocks)


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
    if account.ledger or runner:
        _check_range(request)
    if account.ledger is None:
        return _run(request, runner)
    path = request.noise_key
    log = fingerprint_of_log(request, None if path is None else input_key(_key_of(path)))
    reserved = account.request(request.plan, request.stream, request.run_id if request.is_named else None, log)
    with account.whole(reserved, is_private=not runner) as run_id:
        return _run(dataclasses.replace(request, run_id=run_id), runner)


def _key_of(path: str) -> bytes:
    with user_errors(ValueError):
        return read_key_file(path)


def run_part(request: ReplayRequest, account: RunAccount) -> ReplaySummary | None:
    """One part of a run with a state; None if it was done before."""
    state = request.state
    assert state is not None

    def check(kind: VerdictKind) -> None:
        """Raises UserError if the files of a new part exist, or cannot be written."""
        if kind in (VerdictKind.NEW, VerdictKind.CONTINUES):
            check_output(request.output)
            check_output(request.dead_letter or None, "--dead-letter")
            check_output(request.block_output, "--block-output")
        if account.ledger and kind == VerdictKind.NEW:
            _check_range(request, is_part=True)

    summary = None
    with hold_state(state.path):
        part = open_part(
            request.plan,
            state,
            stream=request.stream,
            input_fingerprint=fingerprint_of_log(request, input_key(_key_of(state.noise_key_file))),
            account=account,
            block_output=request.block_output,
            check=check,
        )
        if part.kind == VerdictKind.DONE:
            part.find_done()
        else:
            with part.taken():
                if part.is_drawn:
                    part.publish()
                else:
                    summary = _run(dataclasses.replace(request, run_id=part.verdict.run_id), part=part)
    tell(part.words)
    return summary


def _check_range(request: ReplayRequest, *, is_part: bool = False) -> None:
    """Before anything is reserved. Raises NothingFoundError, or LogError if too many rows cannot be read.

    is_part: a log without any event is one of a quiet night, and only one with events of other years is not.
    """
    if request.allow_empty:
        return
    outside = count_unless_inside(request.chunks, request.fields, request.plan.schedule)
    if outside is not None:
        check_bad_fraction(request, *outside, has_run=False)
        if outside[0] or not is_part:
            raise nothing_found(request, *outside, has_run=False)


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


def _run(request: ReplayRequest, runner: Sequence[str] = (), part: StatePart | None = None) -> ReplaySummary:
    return run_on_runner(request, runner) if runner else run_replay(request, part)


def job_of(request: ReplayRequest) -> ReplayJob:
    """As pipelines/replay_log.py has it."""
    from dp_transforms.beam.jobs import ReplayJob

    return ReplayJob(**{each.name: getattr(request, each.name) for each in dataclasses.fields(ReplayJob)})


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
        build_replay(pipeline, job_of(request))
        with Unwinding():  # Ctrl-C cancels the job
            result = run_to_end(pipeline)
    counts = operator_counts(result)
    # Numbers of rows say nothing here: Beam counts a bundle that ran twice two times, and the last step does not.
    if counts.get(names.REPORTS_WITHHELD):
        listed = request.dead_letter
        where = f"{listed} says where and why" if listed else "shh doctor LOG shows how it is read"
        raise LogError(
            "more rows than --max-bad-fraction could not be read, so the job has withheld its report. For the rows,"
            f" {where}."
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
        report, of_blocks = (
            str(file_in(drawn, name, output)) if drawn and output else draft(output)
            for name, output in (("report", request.output), ("blocks", request.block_output))
        )
        rejected = draft(request.dead_letter)
        with errors_in_one_line("nothing was published"):
            key = _noise_key(request, part)
            made = _replay(request, part, key)
            with faults_of_steps():  # a library that writes may say what it writes
                for path, name, reports in (
                    (report, request.output, made.reports),
                    (of_blocks, request.block_output, made.blocks),
                ):
                    if path:
                        header = request.header(of_blocks=path == of_blocks)
                        content = report_file_bytes(header, reports, report_format(path))
                        replace_whole(path, operator.methodcaller("write", content), shown_name=name)
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
                        raise write_error(part.options.path, error) from None
            check_unchanged(request.chunks)
        summary = ReplaySummary.of_counts(made.counts, started)
        is_empty = not part and not request.allow_empty and summary.events == summary.outside_range
        has_list = part and request.dead_letter and part.has_published(request.dead_letter)
        if rejected and request.dead_letter and not has_list and (summary.rejected or not is_empty):
            publish_output(rejected, request.dead_letter)
        check_bad_fraction(request, summary.events, summary.rejected)
        if is_empty:
            raise nothing_found(request, summary.events, summary.rejected)
        with_blocks = {request.block_output: of_blocks} if request.block_output else {}
        if part:
            part.publish(drawn)
        else:
            _publish(request.output, report, with_blocks)
        return summary


def _noise_key(request: ReplayRequest, part: StatePart | None) -> bytes:
    """Raises ValueError for a file that cannot be used, and StateError if it holds another key than that of the run."""
    if request.noise_key is None:
        return secrets.token_bytes(32)
    return read_key_file(request.noise_key, part.key_fingerprint if part else None)


def _replay(request: ReplayRequest, part: StatePart | None, key: bytes) -> local.Replayed:
    plan, chunks, fields = request.plan, request.chunks, request.fields
    run_part = part.run_part if part else None
    run = PlannedRun(
        plan=plan, stream=request.stream, run_id=request.run_id, part=run_part.draws_as if run_part else ""
    )
    domain = PublicItemsSource.of_plan(request.public_items, plan)
    shards = request.shards or shards_of_log(chunks, plan.schedule, fields, pays_looks=plan.contributions is not None)
    with_blocks = request.block_output is not None
    replay = local.LocalReplay(run=run, public_items=domain, part=run_part, shards=shards, with_blocks=with_blocks)
    with (
        request.spread.workers(key, shows_faults=request.is_verbose) as workers,
        shown_progress(local.ReplayProgress(), sum(chunk.bytes for chunk in chunks)) as progress,
    ):
        return replay.of_log(chunks, fields, workers, progress)


def _publish(output: str, report: str, with_blocks: Mapping[str, str]) -> None:
    """with_blocks: the draft of the report of blocks, by its output."""
    for other, finished in with_blocks.items():
        publish_output(finished, other)
    try:
        publish_output(report, output)
    except UserError as error:
        if not with_blocks:
            raise
        raise UserError(
            f"{error} The report of blocks, {', '.join(with_blocks)}, is published, and valid: the run has spent its"
            " budget. To run it again is a new run, which pays again."
        ) from None


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
    if rejected and request.dead_letter:
        listed = f" {request.dead_letter} lists those rows." if has_run else " No list of those rows was written."
    return NothingFoundError(
        f"{what}. No report was written, and nothing is spent.{listed} Check the log, --start, --end and --time-unit"
        f" (shh doctor LOG shows its times), or give --allow-empty, which spends the whole budget.{hint}"
    )


def check_bad_fraction(request: ReplayRequest, events: int, rejected: int, *, has_run: bool = True) -> None:
    """has_run: whether a list of the rows is written where one is asked for. Raises LogError."""
    rows, allowed = events + rejected, request.max_bad_fraction
    if rejected > allowed * rows:
        if not has_run:
            where = "no list was written: shh doctor LOG shows what is wrong"
        elif request.dead_letter:
            where = f"{request.dead_letter} says where and why"
        else:
            where = "see where and why with --dead-letter FILE; shh doctor LOG shows how it is read"
        unit = unit_hint(request.chunks, request.fields) if 2 * rejected > rows else None
        hint = f" {unit[0].upper()}{unit[1:]}." if unit else ""
        raise LogError(
            f"{rejected:,} of {rows:,} rows ({rejected / rows:.1%}) could not be read, more than the"
            f" {allowed:.1%} of --max-bad-fraction; nothing was published. For the rows, {where}.{hint}"
        )
