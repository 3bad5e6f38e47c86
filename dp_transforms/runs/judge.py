"""May this part run? One set of verdicts, and two judges, since each knows what the other one cannot know.

The **state** of a run knows how far it is, and which part was begun: `part_by_state` says which windows a command
takes, and whether it is the same command again. The **ledger** knows what other processes were told: `part_by_ledger`
says whether that state is the newest one, and whether this process may have the part. A run without a state is asked
about there alone. Both know nothing else: no file, no database, no clock.

For each run id the windows go forward: a part begins where the last one ended, the first one at 0. A part that has
started belongs to its input for ever: the same windows are never drawn from another one. So there is at most one answer
for a window of a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from dp_transforms.checks import shown
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc
from dp_transforms.runs.records import (
    LedgerBusyError,
    Part,
    PartRequest,
    PublishedError,
    Run,
    RunRefusedError,
    Status,
    VerdictKind,
)
from dp_transforms.runs.state_header import PartRecord, StateHeader

_NEW_STATE = "To begin a new run, which costs its full price, name a new state file."
_NEW_RUN = "Another run id is another run, which pays in full."
_OTHERS = {
    "plan_fingerprint": "another plan. Give the plan with which it began: all parts of a run have one, for the whole"
    " range.",
    "stream": "the stream {}. Give the same --stream.",
    "key_fingerprint": "another noise key. Give the file with its key: with another one no user is recognised.",
    "user_field": "--user-field {}. Give the same one: from another field no user is recognised.",
    "item_field": "--item-field {}. Give the same one: what is known of an item is known by its name.",
    "population": "the --population {}. All parts of a run are in one ledger, or none is: give the same options.",
    "run_id": "the run id {}. Leave --run-id out.",
}


def check_same_run(known: Run | StateHeader, asked: Mapping[str, str], where: str, remedy: str) -> None:
    """Raises RunRefusedError unless what is known of the run is what is asked for. asked: by the names of fields.
    where: that knows it, for the error; remedy: for its end."""
    for name, value in asked.items():
        if (found := getattr(known, name)) != value:
            raise RunRefusedError(f"{where} {_OTHERS[name].format(shown(found) if found else '(none)')} {remedy}")


def check_same_part(where: str, has_other_input: bool, has_other_end: bool, how_then: str) -> None:
    """Raises RunRefusedError unless a command is about the part that was begun. where: which part that is; how_then: by
    which command it is finished, and what else can be done."""
    if has_other_input or has_other_end:
        other = "input" if has_other_input else "--until or --output"
        raise RunRefusedError(
            f"{where} was begun and not finished, and this command has another {other}. What it drew may be published,"
            f" so it must be finished first: by the same command from the same input{how_then}"
        )


# ---------------------------------------------------------------------------------------------------------------------
# By the state
# ---------------------------------------------------------------------------------------------------------------------


def check_run_of_state(header: StateHeader, path: str, horizon: int, asked: Mapping[str, str]) -> None:
    """Raises RunRefusedError unless the state is of this run. asked: by the names of fields of the header."""
    remedy = _NEW_STATE
    if not header.parts and header.intent is None:
        remedy = "No window of its run is published: remove the file to begin another run there."
    check_same_run(header, asked, f"the state {path} is of a run that was begun with", remedy)
    if header.closed_through > horizon:
        raise RunRefusedError(f"the state {path} is closed beyond the end of its plan: it is damaged. {_NEW_STATE}")


def part_by_state(
    header: StateHeader,
    path: str,
    schedule: WindowSchedule,
    *,
    end: int,
    input_fingerprint: str,
    output: str,
    version: str,
) -> tuple[VerdictKind, PartRecord]:
    """What a part that ends before this window is to its run, and which part it is. version: of this shh. Raises
    RunRefusedError, and PublishedError if there is nothing left to do."""
    done = header.finished(end, input_fingerprint)
    if done is not None:
        return VerdictKind.DONE, done
    if end <= header.closed_through:
        remedy = "All windows of the plan are published."
        if header.closed_through < schedule.horizon:
            remedy = "The next part begins there: give a later --until."
        closed = end_utc(schedule, header.closed_through)
        raise PublishedError(f"the windows up to {closed} are published already (state {path}). {remedy} {_NEW_STATE}")
    begun = header.intent
    if begun is None:
        record = PartRecord(header.closed_through, end, input_fingerprint, output)
        return VerdictKind.CONTINUES if header.parts else VerdictKind.NEW, record
    check_same_part(
        f"a part of the run in {path}",
        begun.input_fingerprint != input_fingerprint,
        (begun.end, begun.output) != (end, output),
        f", with --until {end_utc(schedule, begun.end)} --output {begun.output}. {_NEW_STATE}",
    )
    if header.begun_by != version:
        raise RunRefusedError(
            f"a part of the run in {path} was begun by shh {header.begun_by} and not finished, and this is shh"
            f" {version}, which may draw otherwise. Finish it with the version that began it, and update then."
            f" {_NEW_STATE}"
        )
    return VerdictKind.RESUMES, begun


def end_utc(schedule: WindowSchedule, end: int) -> str:
    """When the windows before this one end. The last one of a plan may end after its range."""
    if end == schedule.horizon:
        return format_utc(schedule.end_seconds * MICROS_PER_SECOND)
    return format_utc(schedule.window_end_micros(end - 1))


# ---------------------------------------------------------------------------------------------------------------------
# By the ledger
# ---------------------------------------------------------------------------------------------------------------------

IsGone = Callable[[str, str], bool]


@dataclasses.dataclass(frozen=True)
class Decision:
    """part: the one that is resumed or done; None for a new one. settled: a part that is finished by what the state
    says. dropped: parts that drew nothing and that this one takes the place of."""

    kind: VerdictKind
    part: Part | None = None
    settled: Part | None = None
    dropped: tuple[Part, ...] = ()


def part_by_ledger(
    run_id: str, run: Run | None, parts: Sequence[Part], request: PartRequest, process: str, is_gone: IsGone
) -> Decision:
    """What the part of this request is to its run. Raises RunRefusedError or LedgerBusyError.

    run: None if the ledger does not know it. process: of who asks. is_gone: whether the process (place, process) of a
    part has ended.
    """
    kept = [part for part in parts if part.status != Status.RELEASED]
    if run:
        check_open_run(run, request, has_drawn=any(part.may_be_published for part in kept))
    for part in kept:
        if part.status in (Status.RESERVED, Status.RUNNING) and part.process not in ("", process):
            _check_gone(part, is_gone)
    last = max((part for part in kept if part.may_be_published), key=lambda part: part.range, default=None)
    waiting = tuple(part for part in kept if not part.may_be_published)
    settled = None
    if last and not last.has_ended and request.state_fingerprint and last.ended_at(request.first_window):
        # The state was written, and then the process died before it told the ledger. It had said which state it is.
        if last.state_after != request.state_fingerprint:
            raise RunRefusedError(_other_state(run_id, f"that its part from window {last.first_window} on leaves"))
        settled = last = dataclasses.replace(last, status=Status.FINISHED, end_window=request.first_window)
    elif last and last.range == (request.first_window, request.end_window):
        _check_again(last, request)
        if last.has_ended:
            return Decision(VerdictKind.DONE, last)
    check_place(run_id, last, request.first_window, request.state_fingerprint)
    if last and not last.has_ended:
        check_same_part(_windows_of(last), False, last.end_window != request.end_window, ".")
        return Decision(VerdictKind.RESUMES, last, None, waiting)
    if request.first_window == request.end_window:
        if last is None:
            raise RunRefusedError(f"the part of run {run_id} has no windows. Name a later --until.")
        return Decision(VerdictKind.DONE, last, settled)
    if not run:
        return Decision(VerdictKind.NEW)
    same = next((part for part in waiting if part.range == (request.first_window, request.end_window)), None)
    dropped = tuple(part for part in waiting if part is not same)
    return Decision(VerdictKind.RESUMES if same else VerdictKind.CONTINUES, same, settled, dropped)


def _check_again(last: Part, request: PartRequest) -> None:
    """The windows of the last part that was drawn, once more."""
    if request.draws_once:
        raise RunRefusedError(
            f"the ledger knows run {last.run_id}, and that these windows of it may have been drawn. On other records it"
            " would draw the same noise, and both together would show what changed. Resume it with --resume-from"
            " SAVEPOINT, or leave --run-id out: a new run pays in full."
        )
    if last.input_fingerprint != request.input_fingerprint:
        if request.state_fingerprint:  # the newest one has the intent, and with it the nonce, or refuses the input
            raise RunRefusedError(_other_state(last.run_id, f"that began its part from window {last.first_window} on"))
        raise RunRefusedError(
            f"{_windows_of(last)} were drawn from another input. Use the input as it was then. A corrected log is a new"
            " run: it needs another run id and a new state file, and pays in full."
        )


def check_place(run_id: str, last: Part | None, window: int, state: str) -> None:
    """Raises RunRefusedError unless the ledger has the run at this window, as this state has it. last: its last part
    that may be published. state: the fingerprint; "" without a state, and of one that no part has left."""
    known = 0, ""
    if last:
        known = (last.end_window, last.state_after) if last.has_ended else (last.first_window, last.state_before)
    if window > known[0] and last and not last.has_ended:
        raise RunRefusedError(
            f"{_windows_of(last)} were begun and not finished. Finish them first, by the same command and input as"
            " then."
        )
    if window > known[0]:
        raise RunRefusedError(
            f"the state of run {run_id} is at window {window}, and the ledger has it at window {known[0]}: parts ran"
            " without it, or it was restored from a backup. Bring back its newest copy, or begin a new run, with a new"
            " run id and state, which pays in full."
        )
    if (window, state) != known:
        if state:
            raise RunRefusedError(_other_state(run_id, f"at window {known[0]}"))
        raise RunRefusedError(
            f"windows up to {known[0] - 1} of run {run_id} were drawn before. Go on with the state of the last part, or"
            " use another run id, which pays in full."
        )


def _windows_of(part: Part) -> str:
    return f"windows {part.first_window} .. {part.end_window - 1} of run {part.run_id}"


def _other_state(run_id: str, known: str) -> str:
    return (
        f"the state of run {run_id} is not the one {known} that the ledger knows: it is an older copy, or of another"
        " time line. Bring back the newest copy. Without it the run cannot go on; a new one needs another run id and"
        " pays in full."
    )


def check_open_run(run: Run, request: PartRequest, *, has_drawn: bool) -> None:
    """Raises RunRefusedError unless the request is about the run as it was reserved, and the run is open. has_drawn:
    whether its key has drawn anything that somebody may have read; else any other one is as good."""
    if run.status in (Status.RELEASED, Status.ABANDONED):
        raise RunRefusedError(f"run {run.run_id} was {run.status}. Use another run id; it pays again.")
    names = ("population", "stream", "plan_fingerprint", *(("key_fingerprint",) if has_drawn else ()))
    asked = {name: getattr(request, name) for name in names}
    check_same_run(run, asked, f"run id {run.run_id} was used before with", _NEW_RUN)


def _check_gone(part: Part, is_gone: IsGone) -> None:
    if not is_gone(part.place, part.process):
        raise LedgerBusyError(
            f"process {part.process.partition(':')[0]} of {part.who} on {part.place.partition('/')[0]} has windows"
            f" {part.first_window} .. {part.end_window - 1} of run {part.run_id}. Wait until it has ended. If it is"
            f" certainly dead: shh ledger fail {part.run_id}"
        )
