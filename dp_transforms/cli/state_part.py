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
from collections import Counter
from collections.abc import Callable, Iterator

from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import LogError
from dp_transforms.cli.output_file import check_output, is_taken, output_draft, write_errors, write_output
from dp_transforms.cli.replay_run import (
    ReplayRequest,
    check_range,
    draw,
    fingerprint_of_log,
    key_of,
    why_refused,
    write_rejected,
)
from dp_transforms.cli.run_account import RunAccount, drawn, said_to_be_published, tell_verdict
from dp_transforms.core import operator_counts as names
from dp_transforms.core.planned_run import RunPart, fresh_nonce
from dp_transforms.errors import InputError
from dp_transforms.logs.event_ids import joined_label
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc
from dp_transforms.runs.fingerprints import input_key, key_fingerprint, sealing_key
from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.records import Part, PartRequest, RunRefusedError, StateError, Verdict, VerdictKind
from dp_transforms.runs.state_file import StateFile, StateHeader, StoredPart, hold_state, write_next_state
from dp_transforms.stores.local_files import new_on_disk, read_regular, sync_folder
from dp_transforms.stores.remote_files import full_name, is_remote

_VERSION = importlib.metadata.version("shifting-heavy-hitters")


@dataclasses.dataclass(frozen=True)
class StatePart:
    """A part that may be taken from a log: its report and its new state appear together, after all is drawn. Use it
    while the state is held (`hold_state`).

    verdict: of the ledger; its `part` is what is taken. key_fingerprint: of the noise key.
    """

    request: ReplayRequest
    ledger: Ledger
    verdict: Verdict
    population: str
    key_fingerprint: str

    @property
    def path(self) -> str:
        assert self.request.state is not None
        return self.request.state

    @property
    def part(self) -> Part:
        return self.verdict.part

    @property
    def folder(self) -> pathlib.Path:
        """What was drawn, from the moment when its report may be read until the new state is in its place."""
        return pathlib.Path(self.path).with_name(f".{pathlib.Path(self.path).name}.drawn")

    @property
    def resumes(self) -> bool:
        """Whether a process of before may have drawn it."""
        return self.verdict.kind == VerdictKind.RESUMES and self.part.may_be_published

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
        return StateHeader(self.verdict.run_id, self.part.end_window, self.population)

    @property
    def is_drawn(self) -> bool:
        """Whether a process of before has drawn all that this command is to publish."""
        try:
            state = StateFile(self.folder / "state")
        except StateError:
            return False
        return state.fingerprint == self.part.state_after and (self.folder / "report").exists()

    def check_begun(self) -> None:
        """Raises RunRefusedError for what another version of shh has begun and not drawn, and where the ledger does not
        know of what was drawn."""
        if self.resumes and self.part.version != _VERSION and not self.is_drawn:
            raise RunRefusedError(
                f"{self.part.windows} were begun by shh {self.part.version} and are not drawn, and this is shh"
                f" {_VERSION}, which may draw otherwise. Finish them with the version that began them, and update then."
            )
        if not self.resumes and os.path.lexists(self.folder / "state"):
            raise RunRefusedError(
                f"{self.folder} was drawn by a part that the ledger does not know, and may be published: the ledger is"
                " an older copy. Bring back the newest copy. Without it remove this folder and the state, and begin a"
                " new run, which pays in full."
            )

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Runs the block, in which the pipeline draws and the part is published."""

        def is_forgotten(error: BaseException) -> bool:
            """Where the failure may depend on the noise, another log must not be drawn for with the same noise."""
            if not isinstance(error, LogError) or self.part.state_after:
                return False
            shutil.rmtree(self.folder, ignore_errors=True)
            return True

        with drawn(self.ledger, self.verdict, is_forgotten):
            yield
        report = f"the report {self.request.output}"
        with said_to_be_published(report, "Give the same command again: it draws nothing, and tells the ledger."):
            self.ledger.finish(self.verdict, StateFile(self.path).fingerprint)

    def draw(self) -> Counter[str]:
        """Draws all of it into a private folder, and publishes that."""
        request = dataclasses.replace(self.request, run_id=self.verdict.run_id)
        made, report = draw(request, self.run_part, self.key_fingerprint)
        counts = made.counts
        refusal = why_refused(request, counts[names.EVENTS_READ], counts[names.EVENTS_REJECTED], is_empty=False)
        if request.dead_letter is not None and self.resumes and is_taken(request.dead_letter):
            request = dataclasses.replace(request, dead_letter=None)  # it is of the same input, so it is the same
        if refusal:
            write_rejected(request, made)
            raise refusal
        with output_draft(self.path) as folder, write_errors(self.path):
            with new_on_disk(folder / "report") as file:
                file.write(report)
            after, handed_over, kept = self.header_after, made.handed_over, request.plan.followed_for
            write_next_state(folder / "state", after, self.run_part, handed_over, kept, self._sealing_key())
            write_rejected(request, made)
            self.publish(folder)
        return counts

    def _sealing_key(self) -> bytes:
        """Raises UserError if the noise key was exchanged."""
        assert self.request.noise_key is not None
        return sealing_key(key_of(self.request.noise_key, self.key_fingerprint))

    def publish(self, folder: pathlib.Path | None = None) -> None:
        """Gives the report its name, then the new state. folder: with `report` and `state`, all that was drawn; None
        for what a process of before has drawn.

        Raises UserError also if the noise key was exchanged, or the ledger cannot be told."""
        state = StateFile((folder or self.folder) / "state")
        state.check_seal(self._sealing_key())
        if folder is not None:
            with write_errors(self.path):
                sync_folder(folder / "state")
                shutil.rmtree(self.folder, ignore_errors=True)
                os.rename(folder, self.folder)
                sync_folder(self.folder)
            self.ledger.publishing(self.verdict, state.fingerprint)
        report = (self.folder / "report").read_bytes()
        if not (self.resumes and _is_there(self.request.output, report)):
            write_output(self.request.output, report)
        with write_errors(self.path):
            os.replace(self.folder / "state", self.path)
            sync_folder(self.path)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def words(self) -> str:
        """A sentence for the operator: what this part covers, or that it was done before."""
        schedule, part = self.request.plan.schedule, self.part
        until = f"This part of the run, until {format_utc(schedule.window_end_micros(part.end_window - 1))},"
        if self.verdict.kind == VerdictKind.DONE:
            return f"{until} is done: it was published from the same log as {part.output}, and nothing was spent."
        return (
            f"{until} is published: {part.end_window:,} of {schedule.horizon:,} windows are closed. The next part needs"
            f" {self.path}, its ledger and the noise key."
        )


def _is_there(output: str, report: bytes) -> bool:
    """Whether a process of before has published this report. A store finds that out by itself."""
    try:
        return not is_remote(output) and read_regular(output, len(report)) == report
    except OSError:
        return False


def run_part(request: ReplayRequest, account: RunAccount) -> Counter[str] | None:
    """One part of a run with a state. Returns `operator_counts`; None if nothing was drawn for it now."""
    assert request.state is not None
    assert request.noise_key is not None

    def check(kind: VerdictKind) -> None:
        """Raises UserError if the files of a new part exist, or cannot be written."""
        if kind in (VerdictKind.NEW, VerdictKind.CONTINUES):
            check_output(request.output)
            check_output(request.dead_letter, "--dead-letter")
        if account.ledger and kind == VerdictKind.NEW:
            check_range(request, is_part=True)

    counts = None
    with hold_state(request.state):
        log = fingerprint_of_log(request, input_key(key_of(request.noise_key)))
        part = open_part(request, log, account, check)
        if part.verdict.kind == VerdictKind.DONE:
            shutil.rmtree(part.folder, ignore_errors=True)  # of a process that was killed when it had published
        else:
            with part.taken():
                if part.is_drawn:
                    part.publish()
                else:
                    counts = part.draw()
    tell(part.words)
    return counts


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
        run_id=request.run_id or (state.header.run_id if state else ledger.begun_at(request.state)),
        population=account.population,
        stream=request.stream,
        key_fingerprint=key,
        user_field=request.fields.user,
        item_field=joined_label(request.fields.items),
        state_path=request.state,
    )
    tried = StatePart(request, ledger, ledger.reserve(reserved, account.caps, is_trial=True), account.population, key)
    tried.check_begun()
    check(tried.verdict.kind)
    verdict = ledger.reserve(reserved, account.caps)
    tell_verdict(verdict)
    return dataclasses.replace(tried, verdict=verdict)


def end_of_part(schedule: WindowSchedule, until_seconds: int | None) -> int:
    """The first window after the part. Raises InputError unless a window ends at ``until_seconds``."""
    start, end, slide = schedule.start_seconds, schedule.end_seconds, schedule.slide_seconds
    if until_seconds is None or until_seconds == end:
        return schedule.horizon
    ended, rest = divmod(until_seconds - start, slide)
    if rest or not start < until_seconds < end:
        until, first, last = (format_utc(at * MICROS_PER_SECOND) for at in (until_seconds, start, end))
        raise InputError(
            "until", f"must be the end of a window, got {until}.", f"{first} .. {last}, every {slide:,} s."
        )
    return ended


def check_state_file(state: str) -> None:
    """Raises UserError for a ``--state`` that cannot be one."""
    if "://" in state:
        raise InputError(
            "state",
            "must be a path on a disk, got a URL. One process at a time may work on a state, and stores have no lock"
            " that ends with its process.",
            "Logs, plan, report and dead letters may be URLs.",
        )
    if os.path.lexists(state):
        StateFile(state)  # raises StateError
    check_output(state, "--state", replaces=True)  # no link: a state has one name, and one lock
