"""Whether a part may run: one set of verdicts, by what the ledger knows and by the state that the part shows.

A run is **reserved** when its population is charged, before its events are read. Its parts go forward: each begins at
the window, and with the state, where the last finished one ended; the first at window 0 with none. At most one of them
is open:

    status of the open part    what it says                          on the disk beside the ledger
    reserved                   intent: windows, input, nonce         the state before it
    running, failed            it may have drawn                     the same
    the same, with state_after its report may be read                what was drawn: reports, the sealed state after
    finished                   its report and its state are there    the state after it, with which the next one begins

    open part     what is asked                                      what is done
    none          another plan, stream, key, population, field       refused
    none          another state than the newest                      refused: the state or the ledger is an older copy
    none          windows that are finished, same input              DONE
    none          windows that are finished, another input           refused, for good (`PublishedError`)
    none          the next windows                                   NEW or CONTINUES: reserved
    reserved      whatever may follow                                RESUMES or CONTINUES, in its place
    running       another input, end or output                       refused until it is finished: it may have been read
    running       the same                                           RESUMES: drawn again, same nonce, same bytes
    running       a key or an input that cannot be given again       refused, for good
    state_after   the state that it was to leave                     finished, the ledger was not told; then as above
    any           its process lives                                  refused for now (`LedgerError`)
    any           the run was ended by an operator                   refused, for good

A part whose log was refused is *released* where nobody can have read anything of it: as if it had not been. So for each
run id there is at most one answer for a window. Nothing here reads a file, a database or a clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dp_transforms.runs.records import Part, PartRequest, PublishedError, Run, RunRefusedError, Status, VerdictKind

_NEW_RUN = "A new run needs another run id and, with parts, another state file, and pays in full."
OF_WHAT_WAS_DRAWN = ("key_fingerprint", "user_field", "item_field")
_OF_A_RUN = {
    **{"population": "population", "stream": "stream", "plan_fingerprint": "plan", "key_fingerprint": "noise key"},
    **{"user_field": "user field", "item_field": "item field"},
}


@dataclasses.dataclass(frozen=True)
class Decision:
    """part: the open one, or the one that is done; None for a new one. settled: the part of before that has left the
    state which is shown, and was not told to be finished."""

    kind: VerdictKind
    part: Part | None = None
    settled: Part | None = None


def judged(run: Run | None, parts: Sequence[Part], request: PartRequest) -> Decision:
    """run: None if the ledger does not know it. parts: all of it, in order. Raises RunRefusedError."""
    asked = request.part
    kept = [part for part in parts if part.status != Status.RELEASED]
    if run is not None:
        _check_run(run, request.run, has_drawn=any(part.may_be_published for part in kept))
    open_part = next((part for part in kept if part.status != Status.FINISHED), None)
    finished = [part for part in kept if part.status == Status.FINISHED]
    settled = None
    if open_part and _has_left(open_part, asked):
        settled, open_part = dataclasses.replace(open_part, status=Status.FINISHED), None
        finished.append(settled)
    last = finished[-1] if finished else None
    if (open_part and open_part.may_be_published and request.draws_once) or (last and not request.run.state_path):
        raise RunRefusedError(
            f"run {request.run.run_id} was used before, and may have been drawn. On another input it would draw the"
            " same noise, and both reports together would show what changed. Leave --run-id out: a new run pays in"
            " full. A stream that its runner stored is resumed with --savepoint_path."
        )
    window, state = (last.end_window, last.state_after) if last else (0, "")
    if (asked.first_window, asked.state_before) != (window, state):
        raise RunRefusedError(
            f"the ledger has run {request.run.run_id} at window {window}, and the state at window {asked.first_window}"
            " is not the one that was left there: one of the two is an older copy, or of another time line. Bring back"
            f" the newest copies. {_NEW_RUN}"
        )
    if done := next((part for part in finished if _is_same(part, asked)), None):
        return Decision(VerdictKind.DONE, done, settled)
    if last and asked.end_window <= last.end_window:
        raise PublishedError(
            f"the windows of run {last.run_id} before window {last.end_window} are published already, from another log"
            f" or in other parts. The next part, if there is one, begins there: give a later --until. {_NEW_RUN}"
        )
    if open_part is None:
        return Decision(VerdictKind.CONTINUES if run else VerdictKind.NEW, None, settled)
    if not open_part.may_be_published:
        same = open_part.end_window == asked.end_window
        return Decision(VerdictKind.RESUMES if same else VerdictKind.CONTINUES, open_part)
    if not _is_same(open_part, asked) or open_part.output != asked.output:
        raise RunRefusedError(
            f"{open_part.windows} were begun and not finished, and this command has another input, end or output. What"
            " was drawn may be published, so it must be finished first: by the same command from the same input, ending"
            f" with window {open_part.end_window - 1}, with the output {open_part.output!r}. {_NEW_RUN}"
        )
    return Decision(VerdictKind.RESUMES, open_part)


def _check_run(run: Run, asked: Run, *, has_drawn: bool) -> None:
    """Raises RunRefusedError unless the run is asked for as it was reserved, and is open. has_drawn: whether its key
    has drawn anything that somebody may have read; else any other one is as good."""
    if run.status != Status.RESERVED:
        raise RunRefusedError(f"run {run.run_id} was {run.status}. {_NEW_RUN}")
    for name, words in _OF_A_RUN.items():
        if getattr(run, name) != getattr(asked, name) and (has_drawn or name not in OF_WHAT_WAS_DRAWN):
            raise RunRefusedError(
                f"run {run.run_id} was used before with another {words}. Give the same one: from another key or field"
                f" no user is recognised. {_NEW_RUN}"
            )


def _has_left(part: Part, asked: Part) -> bool:
    """Whether the state that is shown is what this part was to leave. It said so before anything could be read."""
    return bool(part.state_after) and (asked.first_window, asked.state_before) == (part.end_window, part.state_after)


def _is_same(part: Part, asked: Part) -> bool:
    return (part.end_window, part.input_fingerprint) == (asked.end_window, asked.input_fingerprint)
