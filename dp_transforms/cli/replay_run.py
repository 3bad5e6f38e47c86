"""The runs of ``shh replay``: the whole range of a plan, or one part of it, on this machine or by a runner of Beam; and
what is checked before anything is published."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dp_transforms.cli.operator_log import operator_console, operator_progress, tell
from dp_transforms.cli.options import LogError, NothingFoundError, user_errors
from dp_transforms.cli.output_file import check_output, output_draft_file, publish_output
from dp_transforms.cli.pipeline_errors import errors_in_one_line
from dp_transforms.cli.replay_request import ReplayRequest, ReplaySummary
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.state_part import PartFacts, StatePart, open_part, part_is_done, part_is_taken
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.errors import UserError
from dp_transforms.local import replay as local
from dp_transforms.local.machine import shards_of_log
from dp_transforms.local.pool import faults_of_steps
from dp_transforms.logs import (
    EventFileError,
    check_unchanged,
    count_unless_inside,
    ending_of_log,
    find_log_chunks,
    unit_hint,
)
from dp_transforms.logs.rejected_events import pack_rejected, write_rejected_lines
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.reports.files import replace_whole, report_file_bytes, report_format, write_error
from dp_transforms.runs.fingerprints import InputFingerprint, input_key, read_key_file, sealing_key
from dp_transforms.runs.records import VerdictKind
from dp_transforms.runs.state_file import hold_state
from dp_transforms.runs.stored_part import write_next_state

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SECONDS_BETWEEN_UPDATES = 0.2
_NO_CHOICE = "False"  # line ends in cells of CSV: it stays in what an input is known by


def run_whole(request: ReplayRequest, runner: Sequence[str], account: RunAccount) -> ReplaySummary:
    """All of a run at once, without a state. runner: options of Beam; empty for a replay on this machine."""
    if account.is_kept or runner:
        _check_range(request)
    if not account.is_kept:
        return _run(request, runner)
    path = request.options.noise_key_file
    log = fingerprint_of_log(request, None if path is None else input_key(_key_of(path)))
    verdict = account.reserve_whole(request.plan, request.stream, request.options.run_id, log.text)
    with account.whole(is_private=not runner):
        return _run(dataclasses.replace(request, run_id=verdict.run_id), runner)


def _key_of(path: str) -> bytes:
    with user_errors(ValueError):
        return read_key_file(path)


def run_part(request: ReplayRequest, account: RunAccount) -> ReplaySummary | None:
    """One part of a run with a state; None if it was done before."""
    assert request.state is not None

    def check(facts: PartFacts) -> None:
        """Raises UserError if the files of a new part exist, or cannot be written."""
        if facts.how in (VerdictKind.NEW, VerdictKind.CONTINUES):
            check_output(request.output)
            check_output(request.options.dead_letter or None, "--dead-letter")
            check_output(request.options.block_output, "--block-output")
        if account.is_kept and facts.how == VerdictKind.NEW:
            _check_range(request, is_part=True)

    with hold_state(request.state.path):
        log = fingerprint_of_log(request, input_key(_key_of(request.state.noise_key_file)))
        facts = open_part(
            request.plan,
            request.state,
            stream=request.stream,
            input_fingerprint=log.text,
            account=account,
            check=check,
        )
        part = StatePart(facts)
        if facts.how == VerdictKind.DONE:
            part.find_done(request.options.block_output)
            account.finish(facts, facts.state_fingerprint)
            tell(part_is_done(facts))
            return None
        with part.account_of(account):
            summary = _run(dataclasses.replace(request, run_id=facts.header.run_id), part=part)
    tell(part_is_taken(facts))
    return summary


def _check_range(request: ReplayRequest, *, is_part: bool = False) -> None:
    """Before anything is reserved. Raises NothingFoundError, or LogError if too many rows cannot be read.

    is_part: a log without any event is one of a quiet night, and only one with events of other years is not.
    """
    if request.options.allow_empty:
        return
    with user_errors(EventFileError):
        outside = count_unless_inside(request.chunks, request.fields, request.plan.schedule)
    if outside is not None:
        check_bad_fraction(request, *outside, has_run=False)
        if outside[0] or not is_part:
            raise nothing_found(request, *outside, has_run=False)


def fingerprint_of_log(request: ReplayRequest, key: bytes | None = None) -> InputFingerprint:
    """key: `input_key` of the run. Raises UserError if the files were exchanged since they were listed: then the row
    groups that are read would not be those of the file that was fingerprinted."""
    fields = request.fields
    declared = (*fields.time_reading, fields.csv_separator)
    reading = (*fields.names, *(value or "" for value in declared), _NO_CHOICE)
    files = [(chunk.path, ending_of_log(chunk.path)) for chunk in request.chunks]
    stored = {chunk.path: chunk.stored for chunk in request.chunks if chunk.stored is not None}
    log = InputFingerprint(files, reading, key, stored)
    with user_errors(EventFileError):
        is_same = bool(log.text) and find_log_chunks(request.options.logs, fields) == request.chunks
    if not is_same:
        raise UserError("the log was changed while it was looked at. Replay files that nobody writes to any more.")
    return log


def _run(request: ReplayRequest, runner: Sequence[str] = (), part: StatePart | None = None) -> ReplaySummary:
    if runner:
        from dp_transforms.cli.replay_on_runner import run_on_runner  # loads Beam

        return run_on_runner(request, runner)
    return run_replay(request, part)


def run_replay(request: ReplayRequest, part: StatePart | None = None) -> ReplaySummary:
    """Replays on this machine and publishes its files, the report last; none of them if anything fails before.

    part: of a run with a state; the new state comes after the report. None: the whole range of the plan is the run.
    Raises UserError: one line, without any cell.
    """
    started, options = time.monotonic(), request.options
    with contextlib.ExitStack() as drafts:

        def draft(output: str | None) -> str:
            return drafts.enter_context(output_draft_file(output)) if output else ""

        report, of_blocks = draft(request.output), draft(options.block_output)
        rejected, state = draft(options.dead_letter), draft(part.facts.state_path if part else None)
        with errors_in_one_line("nothing was published"):
            key = _noise_key(request, part)
            made = _replay(request, part, key)
            with faults_of_steps():  # a library that writes may say what it writes
                for path, name, header, reports in (
                    (report, request.output, request.header, made.reports),
                    (of_blocks, options.block_output, request.block_header if of_blocks else None, made.blocks),
                ):
                    if header is not None:
                        content = report_file_bytes(header, reports, report_format(path))
                        replace_whole(path, operator.methodcaller("write", content), shown_name=name)
                if rejected:
                    packed = map(pack_rejected, made.rejected)
                    write = functools.partial(write_rejected_lines, packed=packed)
                    replace_whole(rejected, write, mode=0o600, shown_name=options.dead_letter)
                if part:
                    try:
                        forget_after = request.plan.followed_for
                        write_next_state(
                            state, part.begun, part.run_part, made.handed_over, forget_after, sealing_key(key)
                        )
                    except OSError as error:
                        raise write_error(part.facts.state_path, error) from None
            check_unchanged(request.chunks)
        summary = ReplaySummary.of_counts(made.counts, time.monotonic() - started)
        is_empty = not part and not options.allow_empty and summary.events == summary.outside_range
        has_list = part and options.dead_letter and part.has_published(options.dead_letter)
        if rejected and options.dead_letter and not has_list and (summary.rejected or not is_empty):
            publish_output(rejected, options.dead_letter)
        check_bad_fraction(request, summary.events, summary.rejected)
        if is_empty:
            raise nothing_found(request, summary.events, summary.rejected)
        with_blocks = {options.block_output: of_blocks} if options.block_output else {}
        if part:
            part.publish({**with_blocks, part.facts.record.output: report}, state)
        else:
            _publish(request.output, report, with_blocks)
        return summary


def _noise_key(request: ReplayRequest, part: StatePart | None) -> bytes:
    """Raises ValueError for a file that cannot be used, and StateError if it holds another key than that of the run."""
    path = request.options.noise_key_file
    if path is None:
        return secrets.token_bytes(32)
    return read_key_file(path, part.facts.header.key_fingerprint if part else None)


def _replay(request: ReplayRequest, part: StatePart | None, key: bytes) -> local.Replayed:
    plan, chunks, fields = request.plan, request.chunks, request.fields
    run_part = part.run_part if part else None
    run = PlannedRun(
        plan=plan, stream=request.stream, run_id=request.run_id, part=run_part.draws_as if run_part else ""
    )
    domain = PublicItemsSource.of_plan(request.public_items, plan)
    shards = request.shards or shards_of_log(chunks, plan.schedule, fields, pays_looks=plan.contributions is not None)
    with_blocks = request.options.block_output is not None
    replay = local.LocalReplay(run=run, public_items=domain, part=run_part, shards=shards, with_blocks=with_blocks)
    with (
        request.spread.workers(key, shows_faults=request.options.work.verbose) as workers,
        _shown_progress(sum(chunk.bytes for chunk in chunks)) as progress,
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


@contextlib.contextmanager
def _shown_progress(total_bytes: int) -> Iterator[local.ReplayProgress]:
    """While the block runs in this thread, another one shows on a terminal how far it is, and how long it may take
    yet."""
    progress = local.ReplayProgress()
    if not operator_console().is_terminal:
        yield progress
        return
    with operator_progress() as bars, contextlib.ExitStack() as stack:
        reading = bars.add_task("reading", total=max(1, total_bytes))
        update = functools.partial(_update, bars, reading, progress)
        stack.callback(update)
        stack.enter_context(_repeated(update, _SECONDS_BETWEEN_UPDATES))
        yield progress


@contextlib.contextmanager
def _repeated(show: Callable[[], None], seconds: float) -> Iterator[None]:
    """While the block runs, every so many seconds."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(seconds):
            show()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _update(bars: Progress, reading: TaskID, progress: local.ReplayProgress) -> None:
    """A bar for what is read, and below it one for the rest."""
    bars.update(reading, completed=progress.bytes, description=f"reading, {progress.rows:,} rows")
    if progress.groups and len(bars.tasks) == 1:
        bars.add_task("finding heavy items", total=progress.of_groups)
    for finding in bars.task_ids[1:]:
        bars.update(finding, completed=progress.groups)


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
        hint = f" {unit[0].upper()}{unit[1:]}." if unit else ""
        raise LogError(
            f"{rejected:,} of {rows:,} rows ({rejected / rows:.1%}) could not be read, more than the"
            f" {allowed:.1%} of --max-bad-fraction; nothing was published. For the rows, {where}.{hint}"
        )
