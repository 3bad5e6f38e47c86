"""A part of a run with a state: its files, from the first look at the state to the new one in its place.

The ledger says what a part is to its run (`runs.judge` has the table); it is that of the population, or one of the
run's own beside the state, ``STATE.ledger``. At most one answer exists for each window, and the same command repairs a
run that was killed:

1. `open_part`: the ledger reserves the part, with its input and its nonce. From here on these windows may be published
   from this input alone.
2. `Ledger.start`: from here on it counts as drawn. Then all of it is drawn, in memory.
3. `StatePart.seal`: a folder with the report and the sealed new state gets the name ``.STATE.drawn``, and the ledger
   knows the fingerprint of that state: from here on the report may be read, and the windows are drawn no more.
4. `StatePart.publish`: the report gets its name, then the new state. The ledger finishes the part.

Killed between 2 and 3, the same command draws again: noise is a function of the key, the run id, the nonce, the window,
the item and who held it, so the same input gives the same bytes. Killed later, it only publishes, also by another
version of shh. A part that failed before 3 by its log alone is released: nobody has read anything of it. What was
drawn without a word to the ledger is thrown away when its part is opened again.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable
from typing import Any

from dp_transforms.core.planned_run import RunPart, fresh_nonce
from dp_transforms.errors import InputError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc
from dp_transforms.runs.fingerprints import key_fingerprint, sealing_key
from dp_transforms.runs.ledger import Caps, Ledger
from dp_transforms.runs.records import Part, PartRequest, RunRefusedError, StateError, Verdict, VerdictKind
from dp_transforms.runs.state_file import StateFile, StateHeader, StoredPart, write_next_state
from dp_transforms.stores.files import check_output, full_name, output_errors, read_file, write_output
from dp_transforms.stores.local_files import new_on_disk, sync_folder
from dp_transforms.stores.remote_files import is_remote

_VERSION = importlib.metadata.version("shifting-heavy-hitters")


@dataclasses.dataclass(frozen=True)
class StatePart:
    """A part that may be taken from a log: its report and its new state appear together, after all is drawn. Use it
    while the state is held (`hold_state`).

    path: of the state. secret: the noise key. verdict: of the ledger; its `part` is what is taken.
    """

    path: str
    plan: Plan
    secret: bytes
    ledger: Ledger
    population: str
    verdict: Verdict

    @property
    def part(self) -> Part:
        return self.verdict.part

    @property
    def folder(self) -> pathlib.Path:
        """What was drawn, from the moment when its report may be read until the new state is in its place."""
        return pathlib.Path(self.path).with_name(f".{pathlib.Path(self.path).name}.drawn")

    @property
    def is_done(self) -> bool:
        return self.verdict.kind == VerdictKind.DONE

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
    def is_drawn(self) -> bool:
        """Whether a process of before has drawn all that is to be published."""
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

    def clean(self) -> None:
        """Nothing of the folder is needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def seal(self, report: bytes, handed_over: Iterable[bytes]) -> None:
        """All of it is drawn: the file of its report, and what it hands over, as `write_next_state` wants it. Raises
        UserError also if the ledger cannot be told."""
        key, header = sealing_key(self.secret), StateHeader(self.verdict.run_id, self.part.end_window, self.population)
        with output_errors(self.path):
            draft = self.folder.with_suffix(".drawing")
            shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
            draft.mkdir(0o700)
            try:
                with new_on_disk(draft / "report") as file:
                    file.write(report)
                write_next_state(draft / "state", header, self.run_part, handed_over, self.plan.followed_for, key)
                sync_folder(draft / "state")
                os.rename(draft, self.folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            sync_folder(self.folder)
        self.ledger.publishing(self.verdict, StateFile(self.folder / "state").fingerprint)

    def publish(self) -> None:
        """Gives the report its name, then the new state. Raises UserError."""
        StateFile(self.folder / "state").check_seal(sealing_key(self.secret))
        report = (self.folder / "report").read_bytes()
        if not (self.resumes and _is_there(self.part.output, report)):
            write_output(self.part.output, report)
        with output_errors(self.path):
            os.replace(self.folder / "state", self.path)
            sync_folder(self.path)
        self.clean()

    @property
    def left(self) -> str:
        """The fingerprint of the state in its place."""
        return StateFile(self.path).fingerprint

    @property
    def words(self) -> str:
        """A sentence for the operator: what this part covers, or that it was done before."""
        schedule, part = self.plan.schedule, self.part
        until = f"This part of the run, until {format_utc(schedule.window_end_micros(part.end_window - 1))},"
        if self.is_done:
            return f"{until} is done: it was published from the same log as {part.output}, and nothing was spent."
        return (
            f"{until} is published: {part.end_window:,} of {schedule.horizon:,} windows are closed. The next part needs"
            f" {self.path}, its ledger and the noise key."
        )


def _is_there(output: str, report: bytes) -> bool:
    """Whether a process of before has published this report. A store finds that out by itself."""
    try:
        return not is_remote(output) and read_file(output, len(report)) == report
    except OSError:
        return False


def open_part(
    plan: Plan,
    state: str,
    *,
    until: int | None,
    log: str,
    output: str,
    secret: bytes,
    ledger: Ledger | None = None,
    caps: Caps | None = None,
    check: Callable[[VerdictKind], None] = lambda kind: None,
    run_id: str = "",
    **fields: Any,
) -> StatePart:
    """Decides what this command is to its run, and reserves it.

    state: the absolute path. until: where the part ends, in seconds; None for the end of the plan. log: the fingerprint
    of the input. ledger: of the population; None: one beside the state. check: raises UserError if a part of this kind
    cannot be published. fields: further ones of `Run`.

    Raises UserError, with the remedy, for a state that does not fit, and for a part that must not be taken.
    """
    before = StateFile(state) if os.path.lexists(state) else None
    if before is not None:
        before.check_seal(sealing_key(secret))
    ledger = ledger or Ledger(f"{state}.ledger")
    asked = Part(
        first_window=before.header.closed_through if before else 0,
        end_window=end_of_part(plan.schedule, until),
        input_fingerprint=log,
        nonce=fresh_nonce(),
        output=full_name(output),
        version=_VERSION,
        state_before=before.fingerprint if before else "",
    )
    request = PartRequest.of_plan(
        plan,
        asked,
        run_id=run_id or (before.header.run_id if before else ledger.begun_at(state)),
        key_fingerprint=key_fingerprint(secret),
        state_path=state,
        **fields,
    )
    tried = ledger.reserve(request, caps, is_trial=True)
    part = StatePart(state, plan, secret, ledger, request.run.population, tried)
    part.check_begun()
    check(tried.kind)
    part = dataclasses.replace(part, verdict=ledger.reserve(request, caps))
    if not part.is_drawn:
        part.clean()  # what nobody was told of, or is published
    return part


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
