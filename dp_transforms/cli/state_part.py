"""A command with ``--state`` takes one part of a run, from the first look at the state to the new one in its place.

What a part is to its run, the ledger says (`runs.judge` has the table): that of its population, or one of the run's own
beside the state, ``STATE.ledger``. At most one answer exists for each window, and the same command repairs a run that
was killed:

1. `open_part`: the ledger reserves the part, with its input and its nonce. From here on these windows may be published
   from this input alone.
2. `StatePart.taken`: the ledger has a start record. Then the pipeline draws, into a private folder beside the state.
3. `StatePart.publish`: the folder, with the report and the sealed new state, gets the name ``.STATE.drawn``, and the
   ledger knows the fingerprint of that state: from here on the report may be read, and the windows are drawn no more.
4. The report gets its name, then the new state. The ledger finishes the part.

Killed between 2 and 3, the same command draws again: noise is a function of the key, the run id, the nonce, the window,
the item and who held it, so the same input gives the same bytes. Killed later, it only publishes, also by another
version of shh. A part that failed before 3 by its log alone is released: nobody has read anything of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import BinaryIO

from dp_transforms.checks import is_utf8
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import LogError
from dp_transforms.cli.output_file import check_output, is_taken, output_draft, write_errors, write_output
from dp_transforms.cli.replay_run import (
    ReplayRequest,
    ReplaySummary,
    check_range,
    fingerprint_of_log,
    key_of,
    report_in,
    run_replay,
)
from dp_transforms.cli.run_account import RunAccount, finish, tell_failure, tell_verdict
from dp_transforms.core.planned_run import RunPart, fresh_nonce
from dp_transforms.errors import InputError, UserError
from dp_transforms.logs.event_ids import joined_label
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc
from dp_transforms.reports import read_report_file
from dp_transforms.runs.fingerprints import input_key, key_fingerprint, sealing_key
from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.records import Part, PartRequest, RunRefusedError, StateError, Verdict, VerdictKind
from dp_transforms.runs.state_file import StateFile, StateHeader, StoredPart, hold_state
from dp_transforms.stores.local_files import open_regular, remove_dead_drafts, sync_folder
from dp_transforms.stores.remote_files import full_name, is_remote

_VERSION = importlib.metadata.version("shifting-heavy-hitters")


class StatePart:
    """A part that may be taken from a log: its report and its new state appear together, after all is drawn. Use it
    while the state is held (`hold_state`).

    verdict: of the ledger; its `part` is what is taken. key: the fingerprint of the noise key.
    """

    def __init__(self, request: ReplayRequest, ledger: Ledger, verdict: Verdict, population: str, key: str) -> None:
        assert request.state is not None
        assert verdict.part is not None
        self.path, self.verdict, self.part, self.key_fingerprint = request.state, verdict, verdict.part, key
        self._request, self._ledger, self._population = request, ledger, population
        self._drawn = pathlib.Path(self.path).with_name(f".{pathlib.Path(self.path).name}.drawn")
        self._publishes = False

    @property
    def kind(self) -> VerdictKind:
        return self.verdict.kind

    @property
    def resumes(self) -> bool:
        """Whether a process of before may have drawn it."""
        return self.kind == VerdictKind.RESUMES and self.part.may_be_published

    @property
    def run_part(self) -> RunPart:
        """What workers need."""
        windows = self.part.first_window, self.part.end_window, self.part.nonce
        if not self.part.state_before:
            return RunPart(*windows)
        return StoredPart(*windows, state_path=self.path, state_fingerprint=self.part.state_before)

    @property
    def header_after(self) -> StateHeader:
        """Of the state that the part leaves."""
        return StateHeader(self.verdict.run_id, self.part.end_window, self._population)

    @property
    def is_drawn(self) -> bool:
        """Whether a process of before has drawn all that this command is to publish."""
        try:
            state = StateFile(self._drawn / "state")
        except StateError:
            return False
        report = report_in(self._drawn, self._request.output)
        return state.fingerprint == self.part.state_after and report.exists()

    def check_begun(self) -> None:
        """Raises RunRefusedError for what another version of shh has begun and not drawn, and where the ledger does not
        know of what was drawn."""
        if self.resumes and self.part.version != _VERSION and not self.is_drawn:
            raise RunRefusedError(
                f"{self.part.windows} were begun by shh {self.part.version} and are not drawn, and this is shh"
                f" {_VERSION}, which may draw otherwise. Finish them with the version that began them, and update then."
            )
        if not self.resumes and os.path.lexists(self._drawn / "state"):
            raise RunRefusedError(
                f"{self._drawn} was drawn by a part that the ledger does not know, and may be published: the ledger is"
                " an older copy. Bring back the newest copy. Without it remove this folder and the state, and begin a"
                " new run, which pays in full."
            )

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Runs the block, in which the pipeline draws and the part is published."""
        try:
            self._ledger.start(self.verdict)
            yield
        except BaseException as error:
            if not self._publishes:
                # Where the failure may depend on the noise, another log must not be drawn for with the same noise.
                is_forgotten = isinstance(error, LogError) and not self.part.state_after
                if is_forgotten:
                    shutil.rmtree(self._drawn, ignore_errors=True)
                tell_failure(self._ledger, self.verdict, forget=is_forgotten)
            raise
        finish(
            self._ledger,
            self.verdict,
            f"the report {self._request.output}",
            "Give the same command again: it draws nothing, and tells the ledger.",
            StateFile(self.path).fingerprint,
        )

    @contextlib.contextmanager
    def draft(self) -> Iterator[pathlib.Path]:
        """While the block runs, a private folder for what `publish` is given: `state` and the report (`report_in`)."""
        with output_draft(self.path) as folder:
            yield folder.absolute()

    def publish(self, drawn: pathlib.Path | None = None) -> None:
        """Gives the report its name, then the new state. drawn: the folder of `draft` with all of it; None for what
        a process of before has drawn. Raises UserError also if the noise key was exchanged, or the ledger cannot be
        told."""
        assert self._request.noise_key is not None
        key = key_of(self._request.noise_key, self.key_fingerprint)
        StateFile((drawn or self._drawn) / "state").check_seal(sealing_key(key))
        if drawn is not None:
            with write_errors(self.path):
                sync_folder(drawn / "state")
                shutil.rmtree(self._drawn, ignore_errors=True)
                os.rename(drawn, self._drawn)
                sync_folder(self._drawn)
            self._ledger.publishing(self.verdict, StateFile(self._drawn / "state").fingerprint)
        self._publishes = True
        output = self._request.output
        finished = report_in(self._drawn, output)
        if not self.has_published(output):
            write_output(output, _copied_from(finished))
        elif not _are_same_reports(finished, output):
            raise UserError(
                f"{output} exists, and is not the report of this part. Move it away, and run the same command again."
            )
        with write_errors(self.path):
            os.replace(self._drawn / "state", self.path)
            sync_folder(self.path)
        shutil.rmtree(self._drawn, ignore_errors=True)

    def has_published(self, output: str) -> bool:
        """Whether the process that was killed has: a report, or the list of bad rows, of which the same input has the
        same."""
        return self.resumes and is_taken(output)

    def find_done(self) -> None:
        """Removes what a process left that was killed after it had published."""
        for path in (self.path, self._request.output):
            if not is_remote(path):
                remove_dead_drafts(pathlib.Path(path))
        shutil.rmtree(self._drawn, ignore_errors=True)

    @property
    def words(self) -> str:
        """A sentence for the operator: what this part covers, or that it was done before."""
        plan, part = self._request.plan, self.part
        schedule, rounds = plan.schedule, plan.rounds
        start, end = schedule.window_start_micros(part.first_window), schedule.window_end_micros(part.end_window - 1)
        if self.kind == VerdictKind.DONE:
            return (
                f"This part of the run, {format_utc(start)} .. {format_utc(end)}, is done: it was published from the"
                f" same log as {part.output}. Nothing was done, and nothing was spent."
            )
        covered = f"This part of the run covers {format_utc(start)} .. {format_utc(end)}."
        if rounds is not None and end - start < rounds.block_seconds * MICROS_PER_SECOND:
            covered += " It is shorter than a block of its plan's rounds, which find little then: take longer parts."
        if part.end_window == schedule.horizon:
            return f"{covered} The run is at its end: all of its {schedule.horizon:,} windows are closed."
        return (
            f"{covered} {part.end_window:,} of the {schedule.horizon:,} windows of the run are closed; the others cost"
            f" nothing more. Keep {self.path}, its ledger and the noise key: the next part needs them."
        )


def _copied_from(path: pathlib.Path) -> Callable[[BinaryIO], None]:
    def write(file: BinaryIO) -> None:
        with open_regular(path) as finished:
            shutil.copyfileobj(finished, file)

    return write


def _are_same_reports(draft: pathlib.Path, published: str) -> bool:
    (header, reports), (other_header, other_reports) = read_report_file(draft), read_report_file(published)
    return header == other_header and list(reports) == list(other_reports)


def run_part(request: ReplayRequest, account: RunAccount) -> ReplaySummary | None:
    """One part of a run with a state; None if it was done before."""
    assert request.state is not None
    assert request.noise_key is not None

    def check(kind: VerdictKind) -> None:
        """Raises UserError if the files of a new part exist, or cannot be written."""
        if kind in (VerdictKind.NEW, VerdictKind.CONTINUES):
            check_output(request.output)
            check_output(request.dead_letter, "--dead-letter")
        if account.ledger and kind == VerdictKind.NEW:
            check_range(request, is_part=True)

    summary = None
    with hold_state(request.state):
        log = fingerprint_of_log(request, input_key(key_of(request.noise_key)))
        part = open_part(request, log, account, check)
        if part.kind == VerdictKind.DONE:
            part.find_done()
        else:
            with part.taken():
                if part.is_drawn:
                    part.publish()
                else:
                    summary = run_replay(dataclasses.replace(request, run_id=part.verdict.run_id), part)
    tell(part.words)
    return summary


def open_part(request: ReplayRequest, log: str, account: RunAccount, check: Callable[[VerdictKind], None]) -> StatePart:
    """Decides what this command is to its run, and reserves it.

    log: its fingerprint. check: raises UserError if a part of this kind cannot be published. Raises UserError, with the
    remedy, for a state that does not fit, and for a part that must not be taken.
    """
    assert request.state is not None
    assert request.noise_key is not None
    secret = key_of(request.noise_key)
    key = key_fingerprint(secret)
    state = StateFile(request.state) if os.path.lexists(request.state) else None
    if state is not None:
        state.check_seal(sealing_key(secret))
        _check_named(state, request.run_id, account.population)
    ledger = account.ledger or Ledger(f"{request.state}.ledger")
    asked = Part(
        first_window=state.header.closed_through if state else 0,
        end_window=end_of_part(request.plan.schedule, request.until),
        input_fingerprint=log,
        nonce=fresh_nonce(),
        output=full_name(request.output),
        version=_VERSION,
        state_before=state.fingerprint if state else "",
    )
    reserved = PartRequest.of_plan(
        request.plan,
        asked,
        run_id=state.header.run_id if state else request.run_id or ledger.begun_at(request.state),
        population=account.population,
        stream=request.stream,
        key_fingerprint=key,
        user_field=request.fields.user,
        item_field=joined_label(request.fields.items),
        state_path=request.state,
    )
    tried = ledger.reserve(reserved, account.caps, is_trial=True)
    part = StatePart(request, ledger, tried, account.population, key)
    part.check_begun()
    check(part.kind)
    verdict = ledger.reserve(reserved, account.caps)
    tell_verdict(verdict)
    return StatePart(request, ledger, verdict, account.population, key)


def _check_named(state: StateFile, run_id: str, population: str) -> None:
    """Raises RunRefusedError unless the state is of the population and the run that the command names."""
    header = state.header
    if population != header.population:
        raise RunRefusedError(
            f"the state {state.path} is of a run that was begun with the --population"
            f" {header.population or '(none)'!r}. All parts of a run are in one ledger: give the same options."
        )
    if run_id not in ("", header.run_id):
        raise RunRefusedError(f"the state {state.path} is of run {header.run_id!r}. Leave --run-id out.")


def end_of_part(schedule: WindowSchedule, until_seconds: int | None) -> int:
    """The first window after the part. Raises UserError unless a window ends at ``until_seconds``."""
    if until_seconds is None or until_seconds == schedule.end_seconds:
        return schedule.horizon
    if not schedule.start_seconds < until_seconds < schedule.end_seconds:
        raise UserError(
            f"--until {_utc(until_seconds)} lies outside of the plan, {_utc(schedule.start_seconds)} .."
            f" {_utc(schedule.end_seconds)}. Use a time in it."
        )
    ended, rest = divmod(until_seconds - schedule.start_seconds, schedule.slide_seconds)
    if rest:
        before, after = (schedule.start_seconds + n * schedule.slide_seconds for n in (ended, ended + 1))
        near = [_utc(time) for time in (before, after) if schedule.start_seconds < time <= schedule.end_seconds]
        raise UserError(f"--until {_utc(until_seconds)} is not the end of a window. Use {' or '.join(near)}.")
    return ended


def _utc(seconds: int) -> str:
    return format_utc(seconds * MICROS_PER_SECOND)


def check_state_file(state: str) -> None:
    """Raises UserError for a ``--state`` that cannot be one."""
    if "://" in state:
        raise InputError(
            "state",
            "must be a path on a disk, got a URL. One process at a time may work on a state, and stores have no lock"
            " that ends with its process.",
            "Logs, plan, report and dead letters may be URLs.",
        )
    if not is_utf8(state):
        raise UserError(f"--state {state}: a name that is not UTF-8 cannot be written. Choose another one.")
    if os.path.islink(state):
        raise UserError(f"--state {state} is a link, not a regular file. Give the path of the file itself.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(state))):
        raise UserError(
            f"--state {state} cannot be written: its folder does not exist. Create it, or name another one."
        )
    remove_dead_drafts(pathlib.Path(state))
    if os.path.lexists(state):
        StateFile(state)  # raises StateError
