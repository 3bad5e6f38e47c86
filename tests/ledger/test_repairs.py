"""What `shh ledger doctor --repair` charges: at least what was spent in any copy."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from dp_transforms.plan.lifetime_cost import LifetimeCost
from dp_transforms.runs.ledger import (
    BudgetExceededError,
    Caps,
    Ledger,
    LedgerDamagedError,
    LedgerError,
    RunRefusedError,
    database,
)
from tests.helpers.ledger_copies import (
    counter,
    cut_to,
    delete,
    go_on_with_a_copy,
    restore,
    restore_counter,
    take_another,
)
from tests.helpers.ledger_runs import CAPS, cost, dies, names_cost, part


def test_the_doctor_charges_what_a_restored_ledger_has_forgotten(path: pathlib.Path) -> None:
    restore(path)
    ledger = Ledger.open(path)
    (fault,) = (finding for finding in ledger.doctor() if finding.is_fault)
    assert "older copy" in fault.text
    assert "--repair" in fault.text
    assert ledger.repair() == [
        "Population news: charged for what was lost; now 1 of its epsilon is spent.",
        "Run run 1 is abandoned: it was open, and stays charged.",
    ]
    assert ledger.balances()[0].total.epsilon == 2 * cost().epsilon
    assert not [finding for finding in ledger.doctor() if finding.is_fault]
    with pytest.raises(RunRefusedError, match="not in the ledger"):
        ledger.reserve(part(1, 2, run_id="run 2", state_fingerprint="state 1"))
    assert ledger.repair() == ["The ledger agrees with its counter file: nothing was done."]
    assert [(entry["action"], entry["counter"]) for entry in ledger.journal()] == [("reserve", 1), ("repair", 5)]


def test_a_run_that_was_open_in_a_restored_copy_draws_no_more(path: pathlib.Path) -> None:
    """Its start record, or its release, may be what was lost: as if it had drawn, and as if it were charged."""
    ledger = Ledger.open(path)
    ledger.release("run 1")
    ledger.reserve(part(run_id="run 3"))
    assert ledger.balances()[0].total.epsilon == 2 * cost().epsilon
    restore(path)
    ledger = Ledger.open(path)
    ledger.repair()
    assert ledger.balances()[0].total.epsilon == 2 * cost().epsilon
    with pytest.raises(RunRefusedError, match="abandoned"):
        ledger.reserve(part(run_id="run 1"))
    with pytest.raises(RunRefusedError, match="abandoned before, and cannot be released"):
        ledger.release("run 1")


def test_two_copies_that_were_both_written_to_are_charged_for_both(path: pathlib.Path) -> None:
    go_on_with_a_copy(path)
    ledger = Ledger.open(path)
    first = ledger.repair()[0]
    assert "Both copies were written to" in first
    # Runs 1, 2 and 3 are here, and 1, 2 and 4 were there: whether 1 and 2 are the same is not known.
    assert ledger.balances()[0].total.epsilon == 6 * cost().epsilon


@pytest.mark.parametrize("entries_behind", [1, 2, 3])
def test_a_copy_that_went_on_by_itself_is_told_from_an_older_one(path: pathlib.Path, entries_behind: int) -> None:
    """Also if it has as many entries, or one that the counter file promised and another one came."""
    shutil.copy(path, path.with_name("copy.db"))
    shutil.copy(counter(path), counter(path.with_name("copy.db")))
    for number in range(entries_behind):
        Ledger.open(path).reserve(part(run_id=f"here {number}"))
    Ledger.open(path.with_name("copy.db")).reserve(part(run_id="there"))
    shutil.copy(path.with_name("copy.db"), path)
    ledger = Ledger.open(path)
    ledger.repair()
    assert ledger.balances()[0].total.epsilon >= (3 + entries_behind) * cost().epsilon


def test_another_ledger_of_the_same_population_is_charged_on_top(path: pathlib.Path) -> None:
    take_another(path)
    ledger = Ledger.open(path)
    ledger.repair()
    assert ledger.balances()[0].total.epsilon == 3 * cost().epsilon


@pytest.mark.parametrize("spent", [10**15, 5 * 10**15])
def test_a_population_that_was_declared_twice_is_charged_the_caps_of_the_other_one(
    path: pathlib.Path, spent: int
) -> None:
    """Amounts of one rule say nothing in another one, but what was spent is within the caps, unless by a repair."""
    path.unlink()
    counter(path).rename(path.with_name("kept"))
    Ledger.open(path).reserve(part(), Caps(9, "1e-6"))
    fields = json.loads(path.with_name("kept").read_text())
    fields["populations"]["news"]["spent"][0] = spent
    counter(path).write_text(json.dumps(fields))
    ledger = Ledger.open(path)
    ledger.repair()
    total = ledger.balances()[0].total
    assert total.epsilon == cost().epsilon + max(spent, 4 * 10**15)
    assert total.delta == cost().delta + 10**22


def test_a_repair_that_is_killed_before_its_commit_forgets_nothing(path: pathlib.Path) -> None:
    """Its promise must not make the copy a good one."""
    restore(path)
    real = database.write_counter

    def write_and_die(*words: Any) -> None:
        real(*words)
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        database.write_counter = write_and_die
        Ledger.open(path).repair()

    assert dies(work) == signal.SIGKILL
    with pytest.raises(LedgerDamagedError, match="older copy"):
        Ledger.open(path).balances()
    ledger = Ledger.open(path)
    ledger.repair()
    assert ledger.balances()[0].total.epsilon == 2 * cost().epsilon


def change(path: pathlib.Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize("statement", ["UPDATE shh_runs SET price_epsilon = '0'", "DELETE FROM shh_runs"])
def test_charges_that_were_changed_in_the_tables_are_charged_again(path: pathlib.Path, statement: str) -> None:
    change(path, statement)
    ledger = Ledger.open(path)
    ledger.repair()
    assert ledger.balances()[0].total.epsilon == 2 * cost().epsilon
    assert not [finding for finding in ledger.doctor() if finding.is_fault]


def test_caps_that_were_raised_in_the_tables_are_lowered_again(path: pathlib.Path) -> None:
    change(path, "UPDATE shh_populations SET max_epsilon = '9000000000000000'")
    ledger = Ledger.open(path)
    ledger.repair()
    (balance,) = ledger.balances()
    assert (str(balance.max_epsilon.normalize()), balance.left_epsilon) == ("4", 0)
    (note,) = ledger.doctor()
    assert (note.is_fault, "more than its caps by a repair" in note.text) == (False, True)
    with pytest.raises(BudgetExceededError):
        ledger.reserve(part(run_id="run 3"))


def test_triggers_in_a_ledger_are_a_fault(path: pathlib.Path) -> None:
    change(path, "CREATE TRIGGER t AFTER INSERT ON shh_runs BEGIN UPDATE shh_runs SET price_epsilon = '0'; END")
    assert ["triggers or views" in finding.text for finding in Ledger.open(path).doctor() if finding.is_fault] == [True]


def test_a_counter_file_that_is_older_than_its_ledger_charges_nothing(path: pathlib.Path) -> None:
    restore_counter(path)
    ledger = Ledger.open(path)
    done = ledger.repair()
    assert "The counter file is an older copy" in done[0]
    assert ledger.balances()[0].total.epsilon == 2 * cost().epsilon
    assert ledger.doctor() == []


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM shh_populations",
        "UPDATE shh_populations SET name = 'others'",
        "UPDATE shh_runs SET status = 'released' WHERE run_id = 'run 1'",
        "DELETE FROM shh_runs",
    ],
)
def test_a_journal_that_is_whole_does_not_show_that_all_charges_are(path: pathlib.Path, damage: str) -> None:
    """The counter file seems to be the older one, since the tables' own end is not known to it."""
    change(path, damage)
    change(path, "UPDATE shh_ledger SET digest = 'of somebody'")
    ledger = Ledger.open(path)
    ledger.repair()
    spent = {balance.population.name: balance.total for balance in ledger.balances()}["news"]
    assert spent.epsilon >= 2 * cost().epsilon
    assert spent.delta >= 2 * cost().delta
    with pytest.raises(RunRefusedError):
        ledger.reserve(part(run_id="run 1"))


def test_a_second_row_where_there_must_be_one_is_told(path: pathlib.Path) -> None:
    change(path, "ALTER TABLE shh_ledger RENAME TO once")
    change(path, "CREATE TABLE shh_ledger AS SELECT * FROM once UNION ALL SELECT * FROM once")
    with pytest.raises(LedgerDamagedError, match="one row that it must have"):
        Ledger.open(path)


@pytest.mark.parametrize("damage", [delete, cut_to(0)])
def test_a_ledger_that_is_gone_is_made_again_from_its_counter_file(
    path: pathlib.Path, damage: Callable[[pathlib.Path], None]
) -> None:
    damage(path)
    with pytest.raises(LedgerDamagedError, match=r"deleted or emptied.*doctor --repair"):
        Ledger.open(path)
    # A process that dies before it has repaired leaves a ledger that is refused.
    with pytest.raises(LedgerDamagedError, match="older copy: 4 entries less"):
        Ledger.open(path, create=False, rebuild=True).balances()
    ledger = Ledger.open(path, create=False, rebuild=True)
    assert ledger.repair()[0] == "Population news: charged for what was lost; now 1 of its epsilon is spent."
    (balance,) = Ledger.open(path).balances()
    assert (balance.total.epsilon, balance.total.delta) == (2 * cost().epsilon, 2 * cost().delta)
    assert str(balance.max_epsilon.normalize()) == "4"
    assert not [finding for finding in ledger.doctor() if finding.is_fault]
    ledger.reserve(part(run_id="run 3"))
    with pytest.raises(RunRefusedError, match="not in the ledger"):
        ledger.reserve(part(1, 2, run_id="run 2", state_fingerprint="state 1"))
    for run_id in ("run 1", "run 2"):
        with pytest.raises(RunRefusedError, match="used in a copy of this ledger that is lost"):
            ledger.reserve(part(run_id=run_id))
        with pytest.raises(RunRefusedError, match="used in a copy of this ledger that is lost"):
            ledger.reserve_run(part(run_id=run_id))
    # Once more: what was lost then is not forgotten now.
    damage(path)
    ledger = Ledger.open(path, create=False, rebuild=True)
    ledger.repair()
    assert ledger.balances()[0].total.epsilon == 3 * cost().epsilon
    for run_id in ("run 1", "run 2", "run 3"):
        with pytest.raises(RunRefusedError, match="used in a copy of this ledger that is lost"):
            ledger.reserve(part(run_id=run_id))


def test_nothing_is_made_from_a_counter_file_that_is_gone_too(folder: pathlib.Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger.open(folder / "ledger.db", create=False, rebuild=True)
    assert list(folder.iterdir()) == []


def test_a_renyi_population_that_is_made_again_has_spent_what_it_had(folder: pathlib.Path) -> None:
    path = folder / "ledger.db"
    ledger = Ledger.open(path)
    names = LifetimeCost(10**15, 10**22, "looks", "8", 4 * 10**14, 10**20, distance=5)
    for number in range(2):
        ledger.reserve(part(cost=names, run_id=f"run {number}"), Caps(20, "1e-6"))
    before = ledger.balances()[0].total
    path.unlink()
    ledger = Ledger.open(path, rebuild=True)
    ledger.repair()
    assert ledger.balances()[0].total == before
    assert ledger.balances()[0].population.rule.kind == "renyi"


@pytest.mark.parametrize("damage", [delete, restore])
def test_what_a_released_run_has_kept_is_charged_by_a_repair(
    folder: pathlib.Path, damage: Callable[[pathlib.Path], None]
) -> None:
    path = folder / "ledger.db"
    ledger = Ledger.open(path)
    shutil.copy(path, folder / "older.db")
    ledger.reserve_run(part(cost=names_cost(activity=0.5), run_id="a"), Caps(8, "1e-6"))
    ledger.release("a")
    before = ledger.balances()[0].total
    damage(path)
    ledger = Ledger.open(path, rebuild=True)
    ledger.repair()
    (balance,) = ledger.balances()
    assert before.epsilon == 5 * 10**14
    assert balance.total == before + balance.population.rule.base, "with the row of a lost run comes the base"


def test_the_doctor_charges_a_population_that_a_restored_ledger_does_not_know(folder: pathlib.Path) -> None:
    path = folder / "ledger.db"
    ledger = Ledger.open(path)
    shutil.copy(path, folder / "older.db")
    ledger.reserve(part(), CAPS)
    restore(path)
    ledger.repair()
    (balance,) = ledger.balances()
    assert (balance.total.epsilon, balance.runs) == (cost().epsilon, 1)
    assert str(balance.max_epsilon.normalize()) == "4"
