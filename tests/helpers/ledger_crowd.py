"""Several processes that draw on one ledger at the same moment."""

from __future__ import annotations

import multiprocessing
import pathlib
from collections.abc import Callable

from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.records import BudgetExceededError, Caps, LedgerBusyError, RunRefusedError
from tests.helpers.ledger_runs import cost, drawn, part


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


def spend_all(place: pathlib.Path, caps: Caps, runs_a_half: float = 1) -> Callable[[int], str]:
    """Work for `crowd`: runs of 0.5, or a share of it, until the budget is gone. Returns how many there were."""
    each = cost(0.5 / runs_a_half)

    def work(number: int) -> str:
        ledger, done = Ledger(place, wait_seconds=600), 0
        while True:
            try:
                verdict = ledger.reserve(part(run_id=f"{number}-{done}", cost=each), caps)
            except BudgetExceededError:
                return str(done)
            drawn(ledger, verdict, "state")
            done += 1

    return work


def take_one_part(place: pathlib.Path, caps: Caps) -> Callable[[int], str]:
    """Work for `crowd`: all want the same part of one run. Returns what each of them was told."""

    def work(number: int) -> str:
        ledger = Ledger(place, wait_seconds=120)
        try:
            verdict = ledger.reserve(part(run_id="run"), caps)
        except LedgerBusyError:
            return "busy"
        except RunRefusedError:  # the part is finished, and this process does not have the state that it left
            return "refused"
        drawn(ledger, verdict, "state")
        return str(verdict.kind)

    return work
