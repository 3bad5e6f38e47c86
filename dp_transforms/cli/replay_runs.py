"""The runs of ``shh replay``: the whole range of a plan, or one part of it; here or on a runner of Beam. Loads Beam."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import Progress, TaskID

from dp_transforms.beam.read_events import ReplayProgress
from dp_transforms.cli.home_workers import read_ahead
from dp_transforms.cli.operator_log import operator_progress, tell
from dp_transforms.cli.options import user_errors
from dp_transforms.cli.output_file import check_output
from dp_transforms.cli.replay_request import ReplayRequest, ReplaySummary
from dp_transforms.cli.replay_run import check_bad_fraction, nothing_found, run_on_runner, run_replay
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.state_part import PartFacts, StatePart, open_part, part_is_done, part_is_taken, secret_of_run
from dp_transforms.errors import UserError
from dp_transforms.local import ProcessPool
from dp_transforms.logs import EventFileError, count_unless_inside, ending_of_log, find_log_chunks
from dp_transforms.runs.fingerprints import InputFingerprint, input_key
from dp_transforms.runs.records import VerdictKind
from dp_transforms.runs.state_file import hold_state
from dp_transforms.stores.remote_files import is_remote

_SECONDS_BETWEEN_UPDATES = 0.2
_NO_CHOICE = "False"  # line ends in cells of CSV: it stays in what an input is known by


def run_whole(
    request: ReplayRequest, runner: Sequence[str], account: RunAccount, pool: ProcessPool | None
) -> ReplaySummary:
    """All of a run at once, without a state.

    runner: options of Beam; empty for a replay on this machine. pool: has begun to read the log, unless there is an
    account.
    """
    if account.is_kept or runner:
        _check_range(request)
    if not account.is_kept:
        return _run(request, runner, pool=pool)
    path = request.options.noise_key_file
    log = fingerprint_of_log(request, None if path is None else input_key(secret_of_run(path)))
    run_id = request.options.run_id
    verdict = account.reserve_whole(request.plan, request.stream, run_id, log.text)
    with account.whole(is_private=drafts_are_private(request, runner)):
        request = dataclasses.replace(request, run_id=verdict.run_id)
        if pool is not None:
            read_ahead(pool, request)
        return _run(request, runner, pool=pool)


def drafts_are_private(request: ReplayRequest, runner: Sequence[str]) -> bool:
    """Whether nobody else can read what was drawn before it is published: the workers of a runner write the draft of a
    URL beside it."""
    outputs = filter(None, (request.output, request.options.block_output))
    return not runner or not any(map(is_remote, outputs))


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
        log = fingerprint_of_log(request, input_key(secret_of_run(request.state.noise_key_file)))
        facts = open_part(
            request.plan,
            request.state,
            stream=request.stream,
            input_fingerprint=log.text,
            account=account,
            check=check,
        )
        part = StatePart(facts)
        if part.facts.how == VerdictKind.DONE:
            part.find_done(request.options.block_output)
            account.finish(part.facts, part.facts.state_fingerprint)
            tell(part_is_done(part.facts))
            return None
        request = dataclasses.replace(request, run_id=part.facts.header.run_id)
        with part.account_of(account):
            summary = _run(request, part=part)
    tell(part_is_taken(part.facts))
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


def _run(
    request: ReplayRequest,
    runner: Sequence[str] = (),
    part: StatePart | None = None,
    pool: ProcessPool | None = None,
) -> ReplaySummary:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if request.hint and console.is_terminal:  # else the error has the hint, if there is one
        console.print(request.hint, style="bold", markup=False)
    if runner:
        return run_on_runner(request, runner)
    with show_progress(sum(chunk.bytes for chunk in request.chunks)):
        return run_replay(request, part, pool)


@contextlib.contextmanager
def show_progress(total_bytes: int) -> Iterator[None]:
    """While the block runs in this thread, another one shows on a terminal how far it is, and how long it may take
    yet."""
    with contextlib.ExitStack() as stack:
        progress, bars = stack.enter_context(ReplayProgress()), stack.enter_context(operator_progress())
        if not bars.disable:
            reading = bars.add_task("reading", total=max(1, total_bytes))
            update = functools.partial(_update, bars, reading, progress)
            stack.callback(update)
            stack.enter_context(_repeated(update, _SECONDS_BETWEEN_UPDATES))
        yield


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


def _update(bars: Progress, reading: TaskID, progress: ReplayProgress) -> None:
    """A bar for what is read, and below it one for the rest."""
    bars.update(reading, completed=progress.bytes, description=f"reading, {progress.rows:,} rows")
    if progress.groups and len(bars.tasks) == 1:
        bars.add_task("finding heavy items", total=progress.of_groups)
    for finding in bars.task_ids[1:]:
        bars.update(finding, completed=progress.groups)
