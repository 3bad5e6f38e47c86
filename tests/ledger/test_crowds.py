"""Several processes at once on one ledger: nothing is overspent, and a part has one process."""

from __future__ import annotations

import multiprocessing
import pathlib
from collections.abc import Callable

import pytest

from dp_transforms.runs.ledger import BudgetExceededError, Caps, Ledger, LedgerBusyError, VerdictKind
from tests.helpers.ledger_runs import CAPS, cost, part


def crowd(count: int, work: Callable[[int], str]) -> list[str]:
    """What `work` of each of so many processes returns. They begin together."""
    context = multiprocessing.get_context("fork")
    answers, barrier = context.SimpleQueue(), context.Barrier(count)

    def begin(number: int) -> None:
        barrier.wait()
        try:
            answers.put(work(number))
        except BaseException as error:
            answers.put(f"failed: {error!r}")

    processes = [context.Process(target=begin, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [answers.get() for _ in processes]


def spend_all(place: pathlib.Path, caps: Caps) -> Callable[[int], str]:
    """Work for `crowd`: runs of 0.5 until the budget is gone. Returns how many there were."""

    def work(number: int) -> str:
        ledger, done = Ledger.open(place, wait_seconds=120), 0
        while True:
            try:
                verdict = ledger.reserve(part(run_id=f"{number}-{done}", stream=f"stream {number}"), caps)
            except BudgetExceededError:
                return str(done)
            ledger.start(verdict)
            ledger.finish(verdict, "state")
            done += 1

    return work


def take_one_part(place: pathlib.Path, caps: Caps) -> Callable[[int], str]:
    """Work for `crowd`: all want the same part of one run. Returns what each of them was told."""

    def work(number: int) -> str:
        ledger = Ledger.open(place, wait_seconds=120)
        try:
            verdict = ledger.reserve(part(run_id="run"), caps)
        except LedgerBusyError:
            return "busy"
        if verdict.kind != VerdictKind.DONE:
            ledger.start(verdict)
            ledger.finish(verdict, "state")
        return str(verdict.kind)

    return work


@pytest.mark.parametrize("runs", [8, pytest.param(1000, marks=pytest.mark.nightly)])
def test_eight_processes_never_overspend(folder: pathlib.Path, runs: int) -> None:
    answers = crowd(8, spend_all(folder / "ledger.db", Caps(str(runs / 2), "1e-5")))
    assert sum(map(int, answers)) == runs
    ledger = Ledger.open(folder / "ledger.db")
    (balance,) = ledger.balances()
    assert (balance.runs, balance.total.epsilon) == (runs, runs * cost().epsilon)
    assert ledger.doctor() == []
    assert [entry["counter"] for entry in ledger.journal()] == list(range(1, 3 * runs + 1))


def test_of_eight_processes_one_gets_the_part(folder: pathlib.Path) -> None:
    answers = crowd(8, take_one_part(folder / "ledger.db", CAPS))
    assert answers.count("new") == 1
    assert set(answers) <= {"new", "busy", "done"}
    assert Ledger.open(folder / "ledger.db").balances()[0].runs == 1
