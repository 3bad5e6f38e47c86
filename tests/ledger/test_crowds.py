"""Several processes at once on one ledger: nothing is overspent, and a part has one process."""

from __future__ import annotations

import os
import pathlib

import pytest

from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.records import Caps
from tests.helpers.ledger_crowd import crowd, spend_all, take_one_part
from tests.helpers.ledger_runs import CAPS, cost, part


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


def test_a_ledger_that_is_made_while_it_is_looked_for_is_not_taken_for_a_deleted_one(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lstat = folder / "ledger.db", os.lstat

    def look(name: str) -> os.stat_result:
        monkeypatch.setattr(os, "lstat", lstat)
        Ledger.open(path).reserve(part(), CAPS)
        raise FileNotFoundError

    monkeypatch.setattr(os, "lstat", look)
    assert Ledger.open(path).balances()[0].runs == 1
