"""kill -9 anywhere: the same command again brings the part to its end, once, and it was paid for once."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from dp_transforms.runs.ledger import Ledger, LedgerDamagedError, VerdictKind
from tests.helpers.ledger_runs import CAPS, Night, cost, dies, part

OURS = ("dp_transforms/runs/ledger/", "tests/helpers/ledger_runs.py", "dp_transforms/stores/local_files.py")


class Lines:
    """Counts the lines of ours that are run, and ends the process before one of them."""

    def __init__(self, die_at: int | None = None) -> None:
        self.count = 0
        self.die_at = die_at

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if not any(name in frame.f_code.co_filename for name in OURS):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def steps_of(folder: pathlib.Path, end: int) -> dict[str, int]:
    """At which line each step of an undisturbed night begins; "" is the end. The night is run, and stays."""
    lines, begins = Lines(), {}
    sys.settrace(lines.trace)
    try:
        Night(folder, end, lambda step: begins.setdefault(step, lines.count)).run()
    finally:
        sys.settrace(None)
    return {**begins, "": lines.count}


def check(folder: pathlib.Path, end: int) -> None:
    """One report, one charge, one input of each window; and nothing more to do."""
    ledger = Ledger.open(folder / "ledger.db", create=False)
    (balance,) = ledger.balances()
    assert balance.runs == 1
    assert balance.total.epsilon == cost().epsilon
    ((run, parts),) = ledger.runs()
    assert [part.range for part in parts if part.has_ended] == [(n, n + 1) for n in range(end)]
    draws = set((folder / "draws.txt").read_text().splitlines())
    assert draws == {f"{run.run_id} {n} {n + 1} input of {n + 1}" for n in range(end)}
    assert len(list(folder.glob("report-*.txt"))) == end
    assert not [finding for finding in ledger.doctor() if finding.is_fault]
    assert Night(folder, end).run() == VerdictKind.DONE


def kill_in_each_step(folder: pathlib.Path, times: int, chance: random.Random) -> None:
    dry = folder / "dry"
    dry.mkdir()
    Night(dry, 1).run()
    begins = steps_of(dry, 2)  # the same lines in each folder
    for number in range(times):
        for at, step in enumerate(Night.STEPS):
            place = folder / f"{number}-{step}"
            place.mkdir()
            Night(place, 1).run()  # the second night is the one that is killed: it has a state
            last = begins[Night.STEPS[at + 1]] if at + 1 < len(Night.STEPS) else begins[""]
            die_at = chance.randint(begins[step] + 1, last)
            assert dies(lambda die_at=die_at, place=place: run_and_die(place, 2, die_at)) == signal.SIGKILL
            assert Night(place, 2).run() in VerdictKind
            check(place, 2)


def run_and_die(folder: pathlib.Path, end: int, die_at: int) -> None:
    sys.settrace(Lines(die_at).trace)
    Night(folder, end).run()


def test_a_night_that_is_killed_in_any_step_is_done_by_the_same_command(folder: pathlib.Path) -> None:
    kill_in_each_step(folder, 1, random.Random(1))


@pytest.mark.nightly
def test_a_night_that_is_killed_a_hundred_times_in_each_step_is_done_by_the_same_command(
    folder: pathlib.Path,
) -> None:
    kill_in_each_step(folder, 100, random.Random(2))


def kill_first_nights(folder: pathlib.Path, deaths: int, chance: random.Random) -> None:
    """Again and again until one lives: also the ledger itself is made under fire."""
    (folder / "dry").mkdir()
    lines = steps_of(folder / "dry", 1)[""]
    for number in range(deaths):
        place = folder / str(number)
        place.mkdir()
        for _ in range(3):
            die_at = chance.randint(1, lines)
            assert dies(lambda die_at=die_at, place=place: run_and_die(place, 1, die_at)) in (signal.SIGKILL, None)
        Night(place, 1).run()
        check(place, 1)


def test_a_first_night_that_is_killed_three_times_pays_once(folder: pathlib.Path) -> None:
    kill_first_nights(folder, 4, random.Random(3))


@pytest.mark.nightly
def test_many_first_nights_that_are_killed_three_times_pay_once(folder: pathlib.Path) -> None:
    kill_first_nights(folder, 100, random.Random(4))


def kill_at_any_moment(folder: pathlib.Path, nights: int, chance: random.Random) -> int:
    """By a timer, so within the database and the system too. How many processes died."""
    (folder / "dry").mkdir()
    began = time.monotonic()
    Night(folder / "dry", 1).run()
    longest = time.monotonic() - began
    died = 0
    for end in range(1, nights + 1):
        for _ in range(3):
            seconds = chance.uniform(0.0005, longest)

            def work(seconds: float = seconds, end: int = end) -> None:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, seconds)
                Night(folder, end).run()
                signal.setitimer(signal.ITIMER_REAL, 0)

            died += dies(work) == signal.SIGALRM
        Night(folder, end).run()
    check(folder, nights)
    return died


def test_nights_that_end_at_any_moment_add_up_to_one_run(folder: pathlib.Path) -> None:
    assert kill_at_any_moment(folder, 5, random.Random(5)) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6))
def test_thirty_nights_that_end_at_any_moment_add_up_to_one_run(folder: pathlib.Path, seed: int) -> None:
    assert kill_at_any_moment(folder, 30, random.Random(seed)) > 5


def kill_repairs(folder: pathlib.Path, places: slice) -> None:
    """In the middle, at each of these lines: nothing that was lost may be used before it is charged."""
    path, older = folder / "ledger.db", folder / "older.db"
    ledger = Ledger.open(path)
    ledger.reserve(part(run_id="run 1"), CAPS)
    shutil.copy(path, older)
    ledger.reserve(part(run_id="run 2"))
    lost = pathlib.Path(f"{path}.counter").read_bytes()

    def restore() -> None:
        shutil.copy(older, path)
        pathlib.Path(f"{path}.counter").write_bytes(lost)

    restore()
    lines = Lines()
    sys.settrace(lines.trace)
    try:
        Ledger.open(path).repair()
    finally:
        sys.settrace(None)
    for at in range(1, lines.count + 1)[places]:
        restore()
        assert dies(lambda at=at: (sys.settrace(Lines(at).trace), Ledger.open(path).repair())) == signal.SIGKILL
        try:
            spent = Ledger.open(path).balances()[0].total.epsilon
        except LedgerDamagedError:
            Ledger.open(path).repair()
            spent = Ledger.open(path).balances()[0].total.epsilon
        assert spent == 2 * cost().epsilon, at


@pytest.mark.nightly
def test_a_repair_that_is_killed_at_any_line_forgets_nothing(folder: pathlib.Path) -> None:
    kill_repairs(folder, slice(None, None, 29))


def test_the_check_finds_a_second_charge(folder: pathlib.Path) -> None:
    Night(folder, 1).run()
    Ledger.open(folder / "ledger.db").reserve(part())
    with pytest.raises(AssertionError):
        check(folder, 1)
