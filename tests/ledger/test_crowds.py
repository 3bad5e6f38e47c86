"""Several processes at once on one ledger: nothing is overspent, and a part has one process."""

from __future__ import annotations

import pathlib

import pytest

from dp_transforms.runs.ledger import Caps, Ledger
from tests.helpers.ledger_crowd import crowd, spend_all, take_one_part
from tests.helpers.ledger_runs import CAPS, cost


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
