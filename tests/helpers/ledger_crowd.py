"""Several processes that draw on one ledger at the same moment."""

from __future__ import annotations

import os
import pathlib
import sys
import traceback
from collections.abc import Callable

from dp_transforms.runs.ledger import BudgetExceededError, Caps, Ledger, LedgerBusyError, VerdictKind
from tests.helpers.ledger_runs import part


def crowd(count: int, work: Callable[[int], str]) -> list[str]:
    """What `work` of each of so many processes returns. They begin together."""
    start_reading, start_writing = os.pipe()
    ends = []
    for number in range(count):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.close(start_writing)
            text = ""
            try:
                os.read(start_reading, 1)
                text = work(number)
            except BaseException:
                traceback.print_exc()
                text = f"failed: {sys.exc_info()[0]}"
            finally:
                os.write(writing, text.encode())
                os._exit(0)
        os.close(writing)
        ends.append(reading)
    os.close(start_reading)
    os.close(start_writing)
    answers = []
    for reading in ends:
        with open(reading, "rb") as file:
            answers.append(file.read().decode())
    for _ in range(count):
        os.wait()
    return answers


def spend_all(place: str | pathlib.Path, caps: Caps) -> Callable[[int], str]:
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


def take_one_part(place: str | pathlib.Path, caps: Caps) -> Callable[[int], str]:
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
