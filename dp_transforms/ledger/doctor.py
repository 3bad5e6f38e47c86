"""What is wrong with a ledger, and the one repair: to charge what a restored copy has forgotten."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from dp_transforms.accounting.lifetime_cost import NOTHING, Price
from dp_transforms.ledger import rows
from dp_transforms.ledger.actor import Actor, is_gone
from dp_transforms.ledger.counter_file import CounterFile, Place, check_counter, read_counter
from dp_transforms.ledger.database import Database
from dp_transforms.ledger.errors import LedgerDamagedError, LedgerError
from dp_transforms.ledger.records import Part, Population, Run, StateMark, Status, amount
from dp_transforms.ledger.schema import entry_digest

_LOST = "lost"  # release mode of the run that stands for what a restored ledger has forgotten
_CLOCK_SECONDS = 60.0  # entries that are earlier than the one before by more than this show a clock that was set back


class Finding(NamedTuple):
    """is_fault: the ledger must not be used as it is; else something that an operator should look at."""

    is_fault: bool
    text: str


def examine(database: Database, states: Sequence[StateMark]) -> list[Finding]:
    """All findings, faults first. Raises LedgerError only if the ledger cannot be read at all."""
    with database.read(checked=False) as connection:
        found = [*_file_faults(database, connection)]
        found += _journal_findings(database, connection)
        found += _balance_findings(connection)
        runs, parts = rows.read_runs(connection), rows.read_parts(connection)
        found += _part_findings(runs, parts)
        found += [finding for state in states for finding in _state_findings(state, runs, parts)]
    return sorted(found, key=lambda finding: not finding.is_fault)


def repair(database: Database, actor: Actor) -> list[str]:
    """Charges each population what the counter file says that it spent, if the ledger says less. Returns what was done.

    Lost runs are charged as one run that is abandoned. Their run ids are not known any more: none that was used since
    the copy was made may be used again, but from the states, which the ledger then refuses.
    """
    done = []
    with database.repair(actor) as transaction:
        connection = transaction.connection
        counter = read_counter(database.file) if database.file else None
        if counter is None:
            done.append(
                "There is no counter file to compare with: charges that this copy has forgotten stay forgotten."
            )
        for name, known in (counter.populations if counter else {}).items():
            done += _charge_lost(connection, actor, transaction.at, name, known)
        transaction.enter("repair", "", "", 0, (0, 0), " ".join(done))
    return done or ["The ledger agreed with its counter file."]


def _charge_lost(connection: sa.Connection, actor: Actor, at: str, name: str, known: dict[str, Any]) -> list[str]:
    try:
        spent, runs = Price(*map(int, known["spent"])), int(known["runs"])
        unit, declared = str(known["unit"]), str(known["declared_at"])
    except (KeyError, TypeError, ValueError):
        raise LedgerDamagedError("the counter file is damaged. Bring it back from where it was.") from None
    found = rows.read_populations(connection, name)
    if not found:
        rows.write_population(connection, Population(name, unit, rows.rule_of(known), declared))
    (population,) = rows.read_populations(connection, name)
    balance = rows.read_balance(connection, population)
    lost = spent - balance.total
    if not balance.runs and runs:  # the base of the rule is charged with any run
        lost = lost - population.rule.base
    lost = Price(max(0, lost.epsilon), max(0, lost.delta), max(0, lost.sampling))
    if lost == NOTHING and balance.runs >= runs:
        return []
    run = Run(
        run_id=f"lost-{at}-{name}",
        population=name,
        stream="",
        plan_fingerprint="",
        release=_LOST,
        horizon=1,
        range_start="",
        range_end="",
        plan_epsilon=lost.epsilon,
        plan_delta=lost.delta,
        price=lost,
        key_fingerprint="",
        status=Status.ABANDONED,
        **vars(actor),
        reserved_at=at,
    )
    rows.write_run(connection, run)
    after = rows.read_balance(connection, population)
    return [
        f"Population {name}: charged for what was lost; now {amount(after.spent_epsilon)} of its epsilon is spent."
        " Use no run id again that was used since this copy was made."
    ]


def _file_faults(database: Database, connection: sa.Connection) -> list[Finding]:
    if database.file is None:
        return []
    check = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    found = [] if check == ["ok"] else [Finding(True, "The file of the ledger is damaged. Bring back a good copy.")]
    meta = database.meta(connection)
    try:
        counter = read_counter(database.file)
        check_counter(counter, meta.ledger_id, Place(meta.counter, meta.digest), database.file)
        if counter and counter.after == Place(meta.counter, meta.digest):
            found += _amount_faults(connection, counter)
    except LedgerError as error:
        remedy = (
            "If the newest copy is lost: shh ledger doctor --repair charges what the counter file knows to be spent,"
            " and accepts this copy."
        )
        found.append(Finding(True, f"{error}. {remedy}"))
    return found


def _amount_faults(connection: sa.Connection, counter: CounterFile) -> list[Finding]:
    """Whether caps and what was spent are those that the counter file has for the same entry."""
    spent = rows.read_spent(connection)
    names = sorted(name for name in {*spent, *counter.populations} if spent.get(name) != counter.populations.get(name))
    text = "Caps or charges were changed, and not by shh, of population {}. Bring back a good copy."
    return [Finding(True, text.format(name)) for name in names]


def _journal_findings(database: Database, connection: sa.Connection) -> list[Finding]:
    """The chain of entries is whole, and ends where the ledger says."""
    entries, meta = rows.read_journal(connection), database.meta(connection)
    found, digest, broken = [], "", False
    for entry in entries:
        digest, stored = entry_digest(digest, entry), entry["digest"]
        broken = broken or digest != stored
        digest = stored
    if broken or (entries and (entries[-1]["counter"], digest) != (meta.counter, meta.digest)):
        found.append(Finding(True, "Entries of the journal were changed or removed. Bring back a good copy."))
    if broken:
        return found
    times = [datetime.datetime.fromisoformat(entry["at"]).timestamp() for entry in entries]
    back = [after - before for before, after in itertools.pairwise(times)]
    if any(step < -_CLOCK_SECONDS for step in back):
        found.append(
            Finding(
                False, "The clock was set back between two entries. Nothing depends on it but the times that are shown."
            )
        )
    return found


def _balance_findings(connection: sa.Connection) -> list[Finding]:
    found = []
    for population in rows.read_populations(connection):
        balance = rows.read_balance(connection, population)
        if not population.rule.allows(balance.total):
            found.append(Finding(True, f"Population {population.name} has spent more than its caps."))
    return found


def _part_findings(runs: Sequence[Run], parts: Sequence[Part]) -> list[Finding]:
    found = []
    open_runs = {run.run_id for run in runs if run.status == Status.RESERVED}
    for part in parts:
        if part.run_id not in open_runs or part.status not in (Status.RESERVED, Status.RUNNING, Status.FAILED):
            continue
        what = f"Run {part.run_id}, windows {part.first_window} .. {part.end_window - 1}: {part.status} since"
        if part.process and not is_gone(part.place, part.process):
            continue
        if part.has_started:
            remedy = "Finish it by the same command and input, or give it up: shh ledger abandon"
        else:
            remedy = f"Its process is gone. Run the same command again, or: shh ledger release {part.run_id}"
        found.append(Finding(False, f"{what} {part.started_at or part.reserved_at}. {remedy}"))
    for run in runs:
        if run.status == Status.RESERVED and not any(part.run_id == run.run_id for part in parts):
            text = f"Run {run.run_id} was reserved by {run.who} at {run.reserved_at} and has no part yet."
            found.append(Finding(False, text))
    return found


def _state_findings(state: StateMark, runs: Sequence[Run], parts: Sequence[Part]) -> list[Finding]:
    """A state that the ledger does not know shows that the ledger is an older copy; the other way round, the state."""
    run = next((run for run in runs if run.run_id == state.run_id), None)
    if run is None:
        text = (
            f"The state of run {state.run_id} is of a run that is not in the ledger: the ledger is an older copy, or"
            " the run was begun without it. Bring back the newest copy, or begin a new run, which pays in full."
        )
        return [Finding(True, text)]
    if run.plan_fingerprint != state.plan_fingerprint:
        return [Finding(True, f"The state of run {state.run_id} is of another plan than its run.")]
    drawn = [part for part in parts if part.run_id == run.run_id and part.may_be_published]
    last = max(drawn, key=lambda part: part.range, default=None)
    known = last.end_window if last else 0
    if last and last.state_after == state.fingerprint:
        return []
    if not last and not state.closed_through:  # of a run that is reserved
        return []
    if last and not last.has_ended and last.first_window <= state.closed_through <= last.end_window:
        text = f"Run {run.run_id}: its last part was not recorded as finished. Run the same command again."
        return [Finding(False, text)]
    if state.closed_through > known:
        text = f"The state of run {run.run_id} is ahead of the ledger, by {state.closed_through - known} windows: the "
        return [Finding(True, text + "ledger is an older copy. Bring back the newest one.")]
    text = (
        f"The state of run {run.run_id} is not the one that the ledger knows: an older copy. Bring back the newest one."
    )
    return [Finding(True, text)]
