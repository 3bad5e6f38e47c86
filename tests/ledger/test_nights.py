"""Nights of one run by the code that real ones run, killed before any line, with copies of all files coming and going.

Whatever happens: no window of a run is answered twice, and no run has an answer that its population was not charged
for. Where nothing but processes was lost, the same command brings the part to its end, and all of it costs one run.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dp_transforms.plan.lifetime_cost import LifetimeCost
from dp_transforms.runs.ledger import LedgerDamagedError
from tests.helpers.killed_nights import CAPS, PLAN, WINDOWS, Lines, NightFolder, in_a_process

COST = LifetimeCost.of_plan(PLAN)
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # what is killed are processes, not the machine
LEDGER = ("ledger.db", "ledger.db.counter")
LOGS = st.sampled_from("aab")
SHARES = st.floats(0, 1)  # of the lines of a night, before which it is killed


def lines_of_a_night() -> int:
    with tempfile.TemporaryDirectory() as folder:
        nights, lines = NightFolder(pathlib.Path(folder)), Lines()
        nights.take(1)
        sys.settrace(lines.trace)
        try:
            nights.take(2)
        finally:
            sys.settrace(None)
        return lines.count


class NightMachine(RuleBasedStateMachine):
    """begun: end and log of the part that was killed. is_whole: no file was taken back, no operator said anything."""

    has_ledger = True
    lines = 0

    def __init__(self) -> None:
        super().__init__()
        if not NightMachine.lines:
            NightMachine.lines = lines_of_a_night()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shh-nights-", dir=MEMORY))
        self.copies = self.folder / "copies"
        self.copies.mkdir()
        self.nights = NightFolder(self.folder, has_ledger=self.has_ledger)
        self.begun: tuple[int, str] | None = None
        self.is_whole = True
        self.answers: dict[tuple[str, int], set[str]] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @property
    def closed(self) -> int:
        try:
            return self.nights.state.header.closed_through
        except ValueError:
            return 0

    @rule(ahead=st.integers(1, 2), log=LOGS, is_bad=st.sampled_from([False, False, True]))
    def take(self, ahead: int, log: str, is_bad: bool) -> None:
        end = min(self.closed + ahead, WINDOWS)
        _, said = in_a_process(lambda: self.nights.take(end, log, is_bad=is_bad))
        if self.is_whole and not is_bad and self.begun in (None, (end, log)):
            assert not said or "published already" in said, said
            self.begun = None

    @rule(ahead=st.integers(1, 2), log=LOGS, share=SHARES, is_bad=st.sampled_from([False, False, True]))
    def take_and_die(self, ahead: int, log: str, share: float, is_bad: bool) -> None:
        end = min(self.closed + ahead, WINDOWS)
        was_killed, _ = in_a_process(lambda: self.nights.take(end, log, is_bad=is_bad), 1 + int(share * self.lines))
        if was_killed:
            self.begun = self.begun or (end, log)

    @precondition(lambda self: self.is_whole and self.begun)
    @rule()
    def take_again_what_was_killed(self) -> None:
        assert self.begun is not None
        _, said = in_a_process(lambda: self.nights.take(*self.begun))
        assert not said or "published already" in said, said
        self.begun = None

    @rule(what=st.sampled_from([("run.state",), LEDGER[:1], LEDGER[1:], LEDGER, ("run.state", *LEDGER)]))
    def keep(self, what: tuple[str, ...]) -> None:
        for name in what:
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, self.copies / name)

    @rule(what=st.sampled_from([("run.state",), LEDGER[:1], LEDGER[1:]]))
    def bring_back(self, what: tuple[str, ...]) -> None:
        """One of the files alone: what no copy of a ledger or a state can tell is in docs/budgets_over_runs.md."""
        for name in what:
            if (self.copies / name).exists() and (self.has_ledger or name not in LEDGER):
                shutil.copy(self.copies / name, self.folder / name)
                self.is_whole = False

    @precondition(lambda self: self.has_ledger and (self.folder / "ledger.db").exists())
    @rule(share=st.none() | SHARES)
    def repair(self, share: float | None) -> None:
        if share is not None or not self.is_whole:
            in_a_process(lambda: self.nights.ledger.repair(), None if share is None else 1 + int(share * 400))
            self.is_whole = False

    @precondition(lambda self: self.has_ledger and (self.folder / "ledger.db").exists())
    @rule(what=st.sampled_from(["abandon", "release", "fail_run"]))
    def operate(self, what: str) -> None:
        def work() -> None:
            ledger = self.nights.ledger
            for run, _ in ledger.runs():
                getattr(ledger, what)(run.run_id)

        _, said = in_a_process(work)
        self.is_whole &= bool(said) or what == "fail_run"

    @invariant()
    def no_window_is_answered_twice_and_no_answer_is_free(self) -> None:
        for window, found in self.nights.published().items():
            self.answers.setdefault(window, set()).update(found)
        assert all(len(found) == 1 for found in self.answers.values()), self.answers
        if self.has_ledger and self.answers:
            self.check_charged({run_id for run_id, _ in self.answers})

    def check_charged(self, drawn: set[str]) -> None:
        try:
            ledger = self.nights.ledger
            runs, (balance,) = ledger.runs(), ledger.balances()
        except LedgerDamagedError:
            assert not self.is_whole
            return
        assert drawn <= {run.run_id for run, _ in runs if run.status != "released"}
        assert balance.total.epsilon >= len(drawn) * COST.epsilon
        if self.is_whole:
            assert len(runs) == balance.runs == len(drawn)
        assert not [finding for finding in ledger.doctor() if finding.is_fault]


class AloneMachine(NightMachine):
    """A run without a ledger: nothing but its state. Who goes back to an older one has left the guarantee."""

    has_ledger = False

    def bring_back(self, what: tuple[str, ...]) -> None:
        """Not here."""


def check(machine: type[NightMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.generate,),  # a smaller example would take minutes
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("machine", [NightMachine, AloneMachine])
def test_a_run_is_answered_once_and_paid_for_whatever_is_killed(machine: type[NightMachine]) -> None:
    check(machine, 12, 20)


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.parametrize("machine", [NightMachine, AloneMachine])
def test_a_run_is_answered_once_and_paid_for_in_thousands_of_kills(machine: type[NightMachine]) -> None:
    check(machine, 300, 40)


def test_the_caps_admit_more_than_one_run() -> None:
    assert float(CAPS.max_epsilon) > 2 * PLAN.epsilon
