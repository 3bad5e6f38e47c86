"""A part says to the ledger which state it will leave, before anything of it can be read."""

from __future__ import annotations

import pathlib

import pytest

from dp_transforms.runs.ledger import Ledger, RunRefusedError, VerdictKind
from dp_transforms.runs.ledger.records import Actor
from tests.helpers.ledger_runs import CAPS, part

GONE = Actor("somebody", Actor.here().place, "4194303:1:another boot")


@pytest.fixture
def ledger(folder: pathlib.Path) -> Ledger:
    return Ledger.open(folder / "ledger.db")


def died(ledger: Ledger, *, publishing: str | None) -> None:
    """A process that has started windows 0 .. 1, and has said that this state is to follow."""
    first = Ledger(ledger._database, GONE)
    verdict = first.reserve(part(0, 2, run_id="run"), CAPS)
    first.start(verdict)
    if publishing is not None:
        first.publishing(verdict, publishing)
        first.publishing(verdict, publishing)


@pytest.mark.parametrize("end", [2, 1])
def test_a_part_is_finished_by_the_state_that_it_was_to_leave(ledger: Ledger, end: int) -> None:
    """The process died after it had put the state in its place and before it told the ledger. A stream may have ended
    before its last window."""
    died(ledger, publishing="state 1")
    following = part(end, 3, run_id="run", state_fingerprint="state 1")
    assert ledger.reserve(following).kind == VerdictKind.CONTINUES
    ((_, parts),) = ledger.runs()
    assert [(each.has_ended, each.end_window, each.state_after) for each in parts] == [
        *((True, end, "state 1"), (False, 3, ""))
    ]


@pytest.mark.parametrize("publishing", ["state 1", None])
def test_no_other_state_finishes_a_part(ledger: Ledger, publishing: str | None) -> None:
    """One without purses, for example."""
    died(ledger, publishing=publishing)
    before = ledger.journal()
    for request in (
        part(2, 3, run_id="run", state_fingerprint="forged"),
        part(2, 2, run_id="run", state_fingerprint="x"),
    ):
        with pytest.raises(RunRefusedError, match="is not the one that its part from window 0 on was to leave"):
            ledger.reserve(request)
    assert ledger.journal() == before


@pytest.mark.parametrize("publishing", ["state 1", None])
def test_only_a_part_that_nobody_can_have_read_is_forgotten(ledger: Ledger, publishing: str | None) -> None:
    died(ledger, publishing=publishing)
    verdict = ledger.reserve(part(0, 2, run_id="run"))
    assert (verdict.kind, verdict.was_publishing) == (VerdictKind.RESUMES, publishing is not None)
    ledger.start(verdict)
    ledger.fail(verdict, forget=True)
    other = part(0, 2, run_id="run", input_fingerprint="input 2")
    if publishing is None:
        assert ledger.reserve(other).kind == VerdictKind.CONTINUES
    else:
        with pytest.raises(RunRefusedError, match="another input"):
            ledger.reserve(other)


def test_only_a_part_that_runs_can_be_published(ledger: Ledger) -> None:
    verdict = ledger.reserve(part(0, 2, run_id="run"), CAPS)
    with pytest.raises(RunRefusedError, match="is reserved, and cannot be published"):
        ledger.publishing(verdict, "state 1")
    ledger.start(verdict)
    ledger.publishing(verdict, "state 1")
    ledger.publishing(verdict, "state 2")  # a stream that was resumed may end at another window
    ledger.finish(verdict, "state 2")
    with pytest.raises(RunRefusedError, match="is finished, and cannot be published"):
        ledger.publishing(verdict, "state 3")
