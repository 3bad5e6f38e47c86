"""Several processes at once on one ledger: nothing is overspent, and a part has one process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import signal
from collections.abc import Callable, Iterator

import pytest

from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.records import LedgerError, RunRefusedError, VerdictKind
from tests.helpers.ledger_runs import CAPS, cost, drawn, part, spent


def crowd(work: Callable[[int], str]) -> list[str]:
    """What `work` of each of eight processes returns. They begin together."""
    context = multiprocessing.get_context("fork")
    answers, barrier = context.SimpleQueue(), context.Barrier(8)

    def begin(number: int) -> None:
        barrier.wait()
        try:
            answers.put(work(number))
        except BaseException as error:
            answers.put(f"failed: {error!r}")

    processes = [context.Process(target=begin, args=(number,)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [answers.get() for _ in processes]


@pytest.mark.parametrize("runs", [8, pytest.param(5000, marks=pytest.mark.nightly)])
def test_eight_processes_never_overspend(folder: pathlib.Path, runs: int) -> None:
    """They try as many more as fit: each of them ends by being refused."""
    max_epsilon = min(1000.0, runs / 2)
    caps, each = (str(max_epsilon), "1e-5"), cost(max_epsilon / runs)

    def spend_all(number: int) -> str:
        ledger, done = Ledger(folder / "ledger.db", wait_seconds=600), 0
        while True:
            try:
                verdict = ledger.reserve(part(run_id=f"{number}-{done}", cost=each), caps)
            except RunRefusedError:
                return str(done)
            drawn(ledger, verdict, "state")
            done += 1

    assert sum(map(int, crowd(spend_all))) == runs
    ledger = Ledger(folder / "ledger.db")
    (balance,) = ledger.balances()
    assert (balance.runs, balance.total.epsilon) == (runs, int(max_epsilon * 10**15))
    assert ledger.faults() == []
    numbers = [part.part for _, parts in ledger.runs() for part in parts]
    assert sorted(numbers) == list(range(1, runs + 1))


def test_of_eight_processes_one_gets_the_part(folder: pathlib.Path) -> None:
    def take_it(number: int) -> str:
        ledger = Ledger(folder / "ledger.db", wait_seconds=120)
        try:
            verdict = ledger.reserve(part(run_id="run"), CAPS)
        except LedgerError:
            return "busy"
        except RunRefusedError:  # the part is finished, and this process does not have the state that it left
            return "refused"
        drawn(ledger, verdict, "state")
        return str(verdict.kind)

    answers = crowd(take_it)
    assert answers.count("new") == 1
    assert set(answers) <= {"new", "busy", "refused"}
    assert Ledger(folder / "ledger.db").balances()[0].runs == 1


@contextlib.contextmanager
def another_process(place: pathlib.Path, has_started: bool, ended_by: int) -> Iterator[None]:
    """It has the first part of the run "run" while the block runs, and is then ended by this signal."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        theirs = Ledger(place)
        verdict = theirs.reserve(part(run_id="run"), CAPS)
        if has_started:
            theirs.start(verdict)
        os.write(writing, b"x")
        signal.pause()
    try:
        assert os.read(reading, 1)
        yield
    finally:
        os.kill(child, ended_by)
        os.waitpid(child, 0)


@pytest.mark.parametrize(("has_started", "ended_by"), [(False, signal.SIGTERM), (True, signal.SIGKILL)])
def test_a_part_is_taken_from_no_process_that_lives(folder: pathlib.Path, has_started: bool, ended_by: int) -> None:
    """However it ends, it has the part no longer: no clock and no number of a process is asked."""
    ledger = Ledger(folder / "ledger.db")
    with another_process(folder / "ledger.db", has_started, ended_by):
        for request in (part(run_id="run"), part(0, 2, run_id="run")):
            for is_trial in (True, False):
                with pytest.raises(LedgerError, match="another process has windows 0"):
                    ledger.reserve(request, is_trial=is_trial)
    verdict = ledger.reserve(part(run_id="run"))
    assert verdict.kind == VerdictKind.RESUMES
    drawn(ledger, verdict, "state")
    assert spent(ledger) == cost().epsilon
