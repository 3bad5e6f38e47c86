"""Nights of one run by the code that real ones run, killed before any line, with copies of all files coming and going.

Whatever happens: no window of a run is answered twice, and no run has an answer that its population was not charged
for. Where nothing but processes was lost, the same command brings the part to its end, and all of it costs one run.
"""

from __future__ import annotations

import functools
import os
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dp_transforms.runs.lifetime_cost import LifetimeCost
from tests.runs.killed_nights import PLAN, NightFolder, in_a_process, lines_of

COST = LifetimeCost.of_plan(PLAN)
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # what is killed are processes, not the machine
LOGS = st.sampled_from("aab")
RARELY = st.sampled_from([False, False, False, True])
SHARES = st.integers(0, 2**32).map(lambda seed: random.Random(seed).random())  # of a night, after which it is killed


@functools.cache
def lines_of_a_night() -> tuple[int, list[int]]:
    """How many, and those that find something new on the disk: of the second night, as `kill_a_night` runs it."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        nights = NightFolder(pathlib.Path(folder))
        in_a_process(lambda: nights.take(1))
        return lines_of(lambda: nights.take(2), nights.folder)


class NightMachine(RuleBasedStateMachine):
    """is_whole: no file was taken back, and no operator has ended the run."""

    has_ledger = True

    def __init__(self) -> None:
        super().__init__()
        self.lines, _ = lines_of_a_night()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shh-nights-", dir=MEMORY))
        self.copies = self.folder / "copies"
        self.copies.mkdir()
        self.nights = NightFolder(self.folder, has_ledger=self.has_ledger)
        self.is_whole = True
        self.newest: bytes | None = None  # the ledger in whose place an older copy was put
        self.answers: dict[tuple[str, int], set[str]] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @property
    def closed(self) -> int:
        try:
            return self.nights.state.header.closed_through
        except ValueError:
            return 0

    @property
    def begun(self) -> tuple[int, str] | None:
        """Only where no file was taken back."""
        return self.nights.begun() if self.is_whole else None

    @rule(ahead=st.integers(1, 2), log=LOGS, is_bad=RARELY)
    def take(self, ahead: int, log: str, is_bad: bool) -> None:
        end = self.closed + ahead
        may_run = self.is_whole and not is_bad and self.begun in (None, (end, log))
        _, said = in_a_process(lambda: self.nights.take(end, log, is_bad=is_bad))
        assert not (may_run and said), said

    @rule(ahead=st.integers(1, 2), log=LOGS, share=SHARES, is_bad=RARELY)
    def take_and_die(self, ahead: int, log: str, share: float, is_bad: bool) -> None:
        end = self.closed + ahead
        in_a_process(lambda: self.nights.take(end, log, is_bad=is_bad), 1 + int(share * self.lines))

    @precondition(lambda self: self.begun)
    @rule(share=st.none() | SHARES)
    def fail_at_what_was_killed(self, share: float | None) -> None:
        """By its log; it may then be taken from another one, if nothing of it can have been read."""
        assert self.begun
        end, log = self.begun
        die_at = None if share is None else 1 + int(share * self.lines)
        _, said = in_a_process(lambda: self.nights.take(end, log, is_bad=True), die_at)
        if "the log is bad" in said:
            self.take_another(end)

    def take_another(self, end: int) -> None:
        in_a_process(lambda: self.nights.take(end, "b"))

    @precondition(lambda self: self.begun)
    @rule()
    def take_again_what_was_killed(self) -> None:
        assert self.begun
        end, log = self.begun
        _, said = in_a_process(lambda: self.nights.take(end, log))
        assert not said, said

    @rule()
    def move_the_report(self) -> None:
        self.nights.move_report()

    @rule(what=st.sampled_from(["state", "ledger", "both"]))
    def keep(self, what: str) -> None:
        for path in self.files(what):
            if path.exists():
                shutil.copy(path, self.copies / path.name)

    def files(self, what: str) -> list[pathlib.Path]:
        found = {"state": self.folder / "run.state", "ledger": self.nights.ledger_path}
        return list(found.values()) if what == "both" else [found[what]]

    @rule(what=st.sampled_from(["state", "state", "ledger"]))
    def bring_back(self, what: str) -> None:
        """One of the files alone: what no copy of a ledger or a state can tell is in docs/budgets_over_runs.md."""
        (path,) = self.files(what)
        copy = self.copies / path.name
        if not copy.exists() or not self.is_whole or (path.exists() and path.read_bytes() == copy.read_bytes()):
            return
        self.newest = self.nights.ledger_path.read_bytes()
        shutil.copy(copy, path)
        self.is_whole = False

    @precondition(lambda self: not self.is_whole)
    @rule()
    def begin_anew(self) -> None:
        """The operator gives up: the newest ledger is brought back, and another run begins."""
        if self.newest is not None and not self.knows_all_answers():
            self.nights.ledger_path.write_bytes(self.newest)
        for run, _ in self.nights.ledger.runs():
            if run.status == "reserved":
                self.nights.ledger.end(run.run_id)
        self.nights.begin_anew()
        self.is_whole, self.newest = True, None
        for path in self.copies.iterdir():
            path.unlink()

    def knows_all_answers(self) -> bool:
        return {run_id for run_id, _ in self.answers} <= {run.run_id for run, _ in self.nights.ledger.runs()}

    @precondition(lambda self: self.nights.parts)
    @rule(is_rare=RARELY)
    def end_the_runs(self, is_rare: bool) -> None:
        def work() -> None:
            for run, _ in self.nights.ledger.runs():
                self.nights.ledger.end(run.run_id)

        if is_rare:
            in_a_process(work)
            self.is_whole = False

    @invariant()
    def no_window_is_answered_twice_and_no_answer_is_free(self) -> None:
        for window, found in self.nights.published().items():
            self.answers.setdefault(window, set()).update(found)
        assert all(len(found) == 1 for found in self.answers.values()), self.answers
        if self.has_ledger and self.answers:
            self.check_charged({run_id for run_id, _ in self.answers})

    def check_charged(self, drawn: set[str]) -> None:
        ledger = self.nights.ledger
        if not self.is_whole and not self.knows_all_answers():
            return  # an older copy, which is refused
        runs, (balance,) = ledger.runs(), ledger.balances()
        assert drawn <= {run.run_id for run, _ in runs if run.status != "released"}
        assert balance.total.epsilon >= len(drawn) * COST.epsilon
        if self.is_whole:
            assert len([run for run, _ in runs if run.status == "reserved"]) <= 1
        assert not ledger.faults()


class AloneMachine(NightMachine):
    """A run with a ledger of its own, beside its state."""

    has_ledger = False


@pytest.mark.parametrize("examples", [2, pytest.param(300, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("machine", [NightMachine, AloneMachine])
def test_a_run_is_answered_once_and_paid_for_whatever_is_killed(machine: type[NightMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.generate,),  # a smaller example would take minutes
            suppress_health_check=list(HealthCheck),
        ),
    )


# --- All lines, one after the other


def take_again(machine: NightMachine) -> None:
    machine.take_again_what_was_killed()


def take_what_was_moved(machine: NightMachine) -> None:
    """Both again, from the log as it was and from another one."""
    end, log = machine.begun or (0, "")
    machine.move_the_report()
    machine.take_another(end)
    machine.no_window_is_answered_twice_and_no_answer_is_free()
    in_a_process(lambda: machine.nights.take(end, log))


def fail_and_take_another(machine: NightMachine) -> None:
    machine.fail_at_what_was_killed(None)


def bring_back_the_state(machine: NightMachine) -> None:
    end, _ = machine.nights.begun() or (machine.closed + 1, "a")
    machine.bring_back("state")
    machine.move_the_report()
    for log in ("b", "a"):
        in_a_process(lambda log=log: machine.nights.take(end, log, is_bad=log == "a"))
        machine.take_another(end)
    machine.is_whole = False
    machine.begin_anew()


AFTERWARDS = [take_again, take_what_was_moved, fail_and_take_another, bring_back_the_state]


@pytest.mark.parametrize("of_all", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_a_night_that_is_killed_before_any_line(afterwards: Callable[[NightMachine], None], of_all: bool) -> None:
    """By day before each line that finds something new on the disk, followed by one of these each."""
    count, news = lines_of_a_night()
    assert len(news) > 10
    for kind in (NightMachine, AloneMachine)[: 2 if of_all else 1]:
        for at in range(1, count) if of_all else news[AFTERWARDS.index(afterwards) :: len(AFTERWARDS)]:
            machine = kind()
            try:
                kill_a_night(machine, at, afterwards)
            finally:
                machine.teardown()


def kill_a_night(machine: NightMachine, at: int, afterwards: Callable[[NightMachine], None]) -> None:
    """Its second night."""
    machine.take(1, "a", False)
    machine.keep("state")
    in_a_process(lambda: machine.nights.take(2, "a"), at)
    machine.no_window_is_answered_twice_and_no_answer_is_free()
    if machine.begun or afterwards is bring_back_the_state:
        afterwards(machine)
        machine.no_window_is_answered_twice_and_no_answer_is_free()
    if machine.begun:
        machine.take_again_what_was_killed()
