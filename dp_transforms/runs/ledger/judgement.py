"""May this part run? Decided from what the ledger knows of its run, and of nothing else: no database, no clock.

For each run id the windows go forward: a part begins where the last one ended, the first one at 0. A part that has
started belongs to its input for ever: the same windows are never drawn from another one. So there is at most one answer
for a window of a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from dp_transforms.runs.ledger.errors import LedgerBusyError, RunRefusedError
from dp_transforms.runs.ledger.records import Part, PartRequest, Run, Status, VerdictKind

IsGone = Callable[[str, str], bool]


@dataclasses.dataclass(frozen=True)
class Decision:
    """part: the one that is resumed or done; None for a new one. settled: a part that is finished by what the state
    says. dropped: parts that drew nothing and that this one takes the place of."""

    kind: VerdictKind
    part: Part | None = None
    settled: Part | None = None
    dropped: tuple[Part, ...] = ()


def judge(run: Run, parts: Sequence[Part], request: PartRequest, process: str, is_gone: IsGone) -> Decision:
    """What the part of this request is to a run that has paid. Raises RunRefusedError or LedgerBusyError.

    process: of who asks. is_gone: whether the process (place, process) of a part has ended.
    """
    check_same_run(run, request)
    kept = [part for part in parts if part.status != Status.RELEASED]
    for part in kept:
        if part.status in (Status.RESERVED, Status.RUNNING) and part.process not in ("", process):
            _check_gone(part, is_gone)
    drawn = sorted((part for part in kept if part.may_be_published), key=lambda part: part.range)
    waiting = tuple(part for part in kept if not part.may_be_published)
    last = drawn[-1] if drawn else None
    settled = None
    if last and not last.has_ended and request.state_fingerprint and last.ended_at(request.first_window):
        # The state was written, and then the process died before it told the ledger. It had said which state it is.
        if last.state_after != request.state_fingerprint:
            known = f"the one that its part from window {last.first_window} on was to leave"
            raise RunRefusedError(_other_state(run.run_id, known))
        settled = last = dataclasses.replace(last, status=Status.FINISHED, end_window=request.first_window)
    if request.first_window == request.end_window:
        if last and last.end_window == request.end_window:
            _check_state(last, request)
            return Decision(VerdictKind.DONE, last, settled)
        raise RunRefusedError(f"the part of run {run.run_id} has no windows. Name a later --until.")
    if settled is None and last and last.range == (request.first_window, request.end_window):
        return _again(last, request, waiting)
    if last:
        _check_after(run, last, request)
        _check_state(last, request)
    same = next((part for part in waiting if part.range == (request.first_window, request.end_window)), None)
    dropped = tuple(part for part in waiting if part is not same)
    if not last and (request.state_fingerprint or request.first_window):
        raise RunRefusedError(
            f"the ledger does not know the parts of run {run.run_id} that its state has: they ran without it, or it was"
            " restored from a backup. Begin a new run, with a new run id and state, which pays in full."
        )
    if same:
        return Decision(VerdictKind.RESUMES, same, settled, dropped)
    return Decision(VerdictKind.CONTINUES, None, settled, dropped)


def check_same_run(run: Run, request: PartRequest) -> None:
    """Raises RunRefusedError unless the request is about the run as it was reserved, and the run is open."""
    if run.status == Status.RELEASED:
        raise RunRefusedError(f"run {run.run_id} was released. Use another run id; it pays again.")
    if run.status == Status.ABANDONED:
        raise RunRefusedError(f"run {run.run_id} was abandoned. Use another run id; it pays again.")
    for name, stored, asked in (
        ("population", run.population, request.population),
        ("stream", run.stream, request.stream),
        ("plan", run.plan_fingerprint, request.plan_fingerprint),
        ("noise key", run.key_fingerprint, request.key_fingerprint),
    ):
        if stored and stored != asked:
            short = "" if name == "noise key" else f" ({stored[:16]} and not {asked[:16]})"
            raise RunRefusedError(
                f"run id {run.run_id} was used before with another {name}{short}. Use the same one, or another run id,"
                " which pays in full."
            )


def _check_gone(part: Part, is_gone: IsGone) -> None:
    if not is_gone(part.place, part.process):
        raise LedgerBusyError(
            f"process {part.process.partition(':')[0]} of {part.who} on {part.place.partition('/')[0]} has windows"
            f" {part.first_window} .. {part.end_window - 1} of run {part.run_id}. Wait until it has ended. If it is"
            f" certainly dead: shh ledger fail {part.run_id}"
        )


def _again(last: Part, request: PartRequest, waiting: tuple[Part, ...]) -> Decision:
    """The windows of the last part that was drawn, once more."""
    if request.draws_once:
        raise RunRefusedError(
            f"the ledger knows run {last.run_id}, and that these windows of it may have been drawn. On other records it"
            " would draw the same noise, and both together would show what changed. Resume it with --resume-from"
            " SAVEPOINT, or leave --run-id out: a new run pays in full."
        )
    if last.input_fingerprint != request.input_fingerprint:
        raise RunRefusedError(
            f"windows {last.first_window} .. {last.end_window - 1} of run {last.run_id} were drawn from another input."
            " Use the input as it was then. A corrected log is a new run: it needs another run id and a new state file,"
            " and pays in full."
        )
    if last.has_ended:
        return Decision(VerdictKind.DONE, last)
    if last.state_before != request.state_fingerprint:
        raise RunRefusedError(_other_state(last.run_id, "the one that this part began with"))
    return Decision(VerdictKind.RESUMES, last, None, waiting)


def _check_after(run: Run, last: Part, request: PartRequest) -> None:
    """The part begins where the last one that was drawn ended."""
    if request.first_window > last.end_window:
        raise RunRefusedError(
            f"this part of run {run.run_id} begins at window {request.first_window}, and the ledger knows its windows"
            f" up to {last.end_window - 1} alone: parts ran without it, or it was restored from a backup. See: shh"
            " ledger doctor --state FILE"
        )
    if request.first_window < last.end_window:
        if request.state_fingerprint and last.state_after not in ("", request.state_fingerprint):
            raise RunRefusedError(_other_state(run.run_id, f"the one after window {last.end_window - 1}"))
        raise RunRefusedError(
            f"windows up to {last.end_window - 1} of run {run.run_id} were drawn before, and this part begins at"
            f" {request.first_window}. Go on with the state of the last part, or use another run id, which pays in"
            " full."
        )
    if not last.has_ended:
        raise RunRefusedError(
            f"windows {last.first_window} .. {last.end_window - 1} of run {run.run_id} were begun and not finished."
            " Finish them first, by the same command and input as then."
        )


def _check_state(last: Part, request: PartRequest) -> None:
    if last.state_after != request.state_fingerprint:
        raise RunRefusedError(_other_state(last.run_id, f"the one after window {last.end_window - 1}"))


def _other_state(run_id: str, known: str) -> str:
    return (
        f"the state of run {run_id} is not {known}, which the ledger knows: it is an older copy, or of another time"
        " line."
        " Bring back the newest copy. Without it the run cannot go on; a new one needs another run id and pays in full."
    )
