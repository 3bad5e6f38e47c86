"""What is wrong with a ledger, and the one repair: to charge what a restored copy has forgotten."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from dp_transforms.plan.lifetime_cost import NOTHING, LifetimeCost, Price
from dp_transforms.runs.ledger import rows
from dp_transforms.runs.ledger.counter_file import CounterFile, Place, check_counter, read_counter
from dp_transforms.runs.ledger.database import Database, Transaction
from dp_transforms.runs.ledger.records import (
    Actor,
    LedgerError,
    Part,
    Population,
    Run,
    StateMark,
    Status,
    amount,
    is_gone,
)
from dp_transforms.runs.ledger.rows import entry_digest, hash_of_run_id

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
    """Accepts a ledger that does not end where its counter file says. Returns what was done; nothing if it agrees.

    Charges what the counter file knows to be spent and the ledger does not: the difference, if the ledger is an older
    copy; all of it, if both were written to, since nobody knows what they have in common. Lost runs are charged as one
    run that is abandoned. All open runs are abandoned: what they have drawn since this copy was made is not known.
    """
    with database.write(actor, repairs=True) as transaction:
        connection = transaction.connection
        meta = database.meta(connection)
        end = Place(meta.counter, meta.digest)
        counter = database.counter()
        if counter and counter.agrees_with(meta.ledger_id, end) and not _changed_amounts(connection, counter, end):
            return ["The ledger agrees with its counter file: nothing was done."]
        done = []
        if counter is None:
            done = ["There is no counter file to compare with: charges that this copy has forgotten stay forgotten."]
        else:
            is_ahead = counter.after != end and _knows(rows.read_journal(connection), counter.after)
            if is_ahead:
                done = ["The counter file is an older copy. Charges that both have forgotten stay forgotten."]
            # What one of both has from the other is charged once. The journal alone does not show that all of it is
            # still in the tables, so charges are compared in each case.
            share = is_ahead or counter.continues(meta.ledger_id, end)
            for name, known in counter.populations.items():
                done += _charge_lost(transaction, name, known, share)
        done += _abandon_open(connection)
        transaction.enter("repair", "", "", 0, (0, 0), " ".join(done))
    return done


def _knows(journal: Sequence[dict[str, Any]], place: Place) -> bool:
    return any((entry["counter"], entry["digest"]) == (place.counter, place.digest) for entry in journal)


def _abandon_open(connection: sa.Connection) -> list[str]:
    open_runs = [run.run_id for run in rows.read_runs(connection) if run.status == Status.RESERVED]
    for run_id in open_runs:
        rows.end_run(connection, run_id, rows.read_parts(connection, run_id), Status.ABANDONED)
    return [f"Run {run_id} is abandoned: it was open, and stays charged." for run_id in open_runs]


def _charge_lost(transaction: Transaction, name: str, known: dict[str, Any], share: bool) -> list[str]:
    """share: one of the ledger and its counter file is an older copy of the other; else both were written to."""
    connection = transaction.connection
    rule, spent = rows.rule_of(known), Price(*known["spent"])
    if not known["runs"] and spent == NOTHING:
        return []
    found = rows.read_populations(connection, name)
    if not found:
        rows.write_population(connection, Population(name, known["unit"], rule, known["declared_at"]))
    (population,) = rows.read_populations(connection, name)
    balance = rows.read_balance(connection, population)
    if population.rule != rule:
        # Its amounts are of another kind, but what it has spent is within its caps, unless a repair charged more. The
        # smaller caps hold from now on.
        epsilon, delta = max(rule.max_epsilon, spent.epsilon), max(rule.max_delta, spent.delta + rule.sampling)
        lost = population.rule.price(LifetimeCost(epsilon, delta, rows.LOST))
        rows.lower_caps(connection, population, rule)
    else:
        lost = spent - balance.total if share else spent
        if known["runs"] and not balance.runs:  # the base of the rule is charged with any run
            lost = lost - rule.base
    lost = Price(max(0, lost.epsilon), max(0, lost.delta), max(0, lost.sampling))
    hashes = sorted(set(known["run_ids"]) - set(rows.hashes_of_run_ids(connection, name)))
    if lost == NOTHING and not hashes:
        return []
    # One row for each lost run, so that its run id is not used again; all that was lost is charged with the first one.
    for number, digits in enumerate(hashes or [hash_of_run_id(f"{transaction.counter} {name}")]):
        _write_lost(transaction, name, rows.LOST_ID + digits, NOTHING if number else lost)
    after = rows.read_balance(connection, population)
    more = "" if share else " Both copies were written to, so all that the counter file knows was charged on top."
    now = f"now {amount(after.spent_epsilon)} of its epsilon is spent."
    return [f"Population {name}: charged for what was lost; {now}{more}"]


def _write_lost(transaction: Transaction, name: str, run_id: str, lost: Price) -> None:
    run = Run(
        run_id=run_id,
        population=name,
        mode=rows.LOST,
        horizon=1,
        plan_epsilon=lost.epsilon,
        plan_delta=lost.delta,
        price=lost,
        kept=lost,
        status=Status.ABANDONED,
        **vars(transaction.actor),
        reserved_at=transaction.at,
    )
    rows.write_run(transaction.connection, run)


def _file_faults(database: Database, connection: sa.Connection) -> list[Finding]:
    if database.file is None:
        return []
    check = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    found = [] if check == ["ok"] else [Finding(True, "The file of the ledger is damaged. Bring back a good copy.")]
    query = "SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')"
    if connection.exec_driver_sql(query).first() is not None:
        text = "Somebody has put triggers or views into the ledger, which may change what is charged."
        found.append(Finding(True, f"{text} Bring back a good copy."))
    meta = database.meta(connection)
    end = Place(meta.counter, meta.digest)
    try:
        counter = read_counter(database.file)
        check_counter(counter, meta.ledger_id, end, database.file)
        if counter and counter.after == end and not counter.settled:
            text = (
                "The last entry is not settled in the counter file: a crash, or a full disk. The next entry settles it;"
                " until then a copy that is older by this one entry would not be noticed."
            )
            found.append(Finding(False, text))
        if counter:
            text = "Caps or charges were changed, and not by shh, of population {}. Bring back a good copy."
            found += [Finding(True, text.format(name)) for name in _changed_amounts(connection, counter, end)]
    except LedgerError as error:
        remedy = (
            "If the newest copy is lost: shh ledger doctor --repair accepts this copy, charges what the counter file"
            " knows to be spent, and abandons all open runs."
        )
        found.append(Finding(True, f"{error}. {remedy}"))
    return found


def _changed_amounts(connection: sa.Connection, counter: CounterFile, end: Place) -> list[str]:
    """Populations whose caps or charges are not those that the counter file has for the same entry."""
    if counter.after != end:
        return []
    spent = rows.read_spent(connection)
    return sorted(name for name in {*spent, *counter.populations} if spent.get(name) != counter.populations.get(name))


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
            is_repaired = any(run.mode == rows.LOST for run in rows.read_runs(connection, population.name))
            why = "was charged more than its caps by a repair: no run of it is admitted any more."
            text = f"Population {population.name} {why if is_repaired else 'has spent more than its caps.'}"
            found.append(Finding(not is_repaired, text))
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
    if last and last.has_ended and last.state_after == state.fingerprint:
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
