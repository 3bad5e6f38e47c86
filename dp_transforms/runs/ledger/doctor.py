"""What is wrong with a ledger, and the one repair: to charge what a restored copy has forgotten."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from dp_transforms.plan.lifetime_cost import BudgetRule, Price
from dp_transforms.runs.ledger.book import Book, Entry
from dp_transforms.runs.ledger.database import Database, Transaction
from dp_transforms.runs.ledger.records import (
    Actor,
    Balance,
    LedgerDamagedError,
    LedgerError,
    Part,
    Run,
    StateMark,
    Status,
    amount,
    is_gone,
)
from dp_transforms.runs.ledger.reserving import ended

_CLOCK_SECONDS = 60.0  # entries that are earlier than the one before by more than this show a clock that was set back


class Finding(NamedTuple):
    """is_fault: the ledger must not be used as it is; else something that an operator should look at."""

    is_fault: bool
    text: str


def examine(database: Database, states: Sequence[StateMark]) -> list[Finding]:
    """All findings, faults first. Raises LedgerError only if the ledger cannot be read at all."""
    with database.look() as connection:
        found = [*_file_faults(database, connection)]
        try:
            book = database.book(connection, anew=True)
        except LedgerDamagedError as error:
            return [*found, Finding(True, f"{error}.")]
        found += _copy_findings(database, book)
        found += _clock_findings(book)
        found += _balance_findings(book)
        found += _part_findings(book)
        found += [finding for state in states for finding in _state_findings(state, book)]
    return sorted(found, key=lambda finding: not finding.is_fault)


def repair(database: Database, actor: Actor) -> list[str]:
    """Accepts a ledger that does not end where its copy of the journal says. Returns what was done; nothing if it
    agrees.

    Of both, the one that holds all of the other is the ledger from then on. If neither does, both were written to, and
    runs of the other one are charged too. All open runs are abandoned: what they have drawn since these copies were
    made is not known.
    """
    with database.mend() as (texts, copy, entries):
        table, rest = _whole_part(texts)
        if copy and not rest and copy.agrees_with(table):
            return ["The ledger agrees with its counter file: nothing was done."]
        known = copy.book() if copy else table
        shared = sum(ours.digest == theirs.digest for ours, theirs in zip(table.journal, known.journal, strict=False))
        is_older = shared == len(table.journal)
        base = known if is_older else table
        if not base.journal:
            raise LedgerDamagedError(f"nothing of the ledger {database.name} can be read. Bring back a good copy.")
        done = []
        if copy is None:
            done = ["There is no counter file to compare with: charges that this copy has forgotten stay forgotten."]
        elif not is_older and shared == len(known.journal):
            done = ["The counter file is an older copy. Charges that both have forgotten stay forgotten."]
        others = rest if is_older else [*known.journal[shared:], *rest]
        transaction = Transaction(base, actor)
        spent = {balance.population.name: balance.total for balance in table.balances()}
        _charge(transaction, Book(entry.text for entry in base.journal[:shared]), others)
        after = [balance for balance in base.balances() if spent.get(balance.population.name) != balance.total]
        done += [_charged(balance, bool(others)) for balance in after]
        done += _abandon_open(transaction)
        transaction.enter("repair", " ".join(done))
        assert transaction.entry is not None
        entries += [*base.journal, transaction.entry]
    return done


def _whole_part(texts: Sequence[Any]) -> tuple[Book, list[Entry]]:
    """The entries before the chain is broken, and of those after it what can be read."""
    book, rest = Book(), list[Entry]()
    for text in texts:
        with contextlib.suppress(LedgerDamagedError):
            entry = Entry.parsed(text)
            if not rest and book.is_followed_by(entry):
                book.add(entry)
            else:
                rest.append(entry)
    return book, rest


def _charge(transaction: Transaction, common: Book, others: Sequence[Entry]) -> None:
    """Charges the runs of other entries, which came after those that the ledger has in common with them.

    A run that is alike in both, or went on in one of them alone, is one run. One that went on in both, or was changed
    by somebody, is charged for what it is in each: what it drew then cannot be told from what it drew here.
    """
    base, other = transaction.book, Book(entry.text for entry in common.journal)
    for entry in others:
        with contextlib.suppress(LedgerDamagedError):  # about what cannot be read
            other.put(*entry.records)
    for name, population in other.populations.items():
        mine = base.populations.get(name, population)
        rule, theirs = mine.rule, population.rule
        caps = min(rule.max_epsilon, theirs.max_epsilon), min(rule.max_delta, theirs.max_delta)
        lowered = dataclasses.replace(mine, rule=_with_caps(rule, *caps))
        if base.populations.get(name) != lowered:
            transaction.put(lowered)
    for run_id in other.runs:
        before, here, there = (_as_abandoned(book, run_id) for book in (common, base, other))
        if there in (before, here):
            continue
        run, open_here = _as_priced_in(base, other, other.runs[run_id]), base.runs.get(run_id)
        if open_here is None:
            transaction.put(run if run.status == Status.RELEASED else dataclasses.replace(run, status=Status.ABANDONED))
        elif here == before:
            transaction.put(*ended(open_here, base.parts_of(run_id), Status.ABANDONED))
        else:
            lost = f"lost:{transaction.counter}:{run_id}"
            transaction.put(dataclasses.replace(run, run_id=lost, status=Status.ABANDONED))


def _as_abandoned(book: Book, run_id: str) -> list[Run | Part]:
    """A run and its parts: an open one as a repair leaves it, which may have been killed before it was done."""
    run, parts = book.runs.get(run_id), book.parts_of(run_id)
    if run is None or run.status != Status.RESERVED:
        return [run, *parts] if run else []
    return list(ended(run, parts, Status.ABANDONED))


def _as_priced_in(base: Book, other: Book, run: Run) -> Run:
    """A run of another book as its population charges it here: amounts of one rule say nothing in another one, where
    its epsilon and delta are charged in full."""
    rules = [_with_caps(book.populations[run.population].rule, 1, 1) for book in (base, other)]
    if rules[0] == rules[1]:
        return run
    price = Price(max(run.plan_epsilon, run.price.epsilon), max(run.plan_delta, run.price.delta), 0)
    kept = Price(run.kept.epsilon, run.kept.delta + run.kept.sampling, 0)
    return dataclasses.replace(run, price=price, kept=kept)


def _with_caps(rule: BudgetRule, max_epsilon: int, max_delta: int) -> BudgetRule:
    return dataclasses.replace(rule, max_epsilon=max_epsilon, max_delta=max_delta)


def _charged(after: Balance, was_forked: bool) -> str:
    more = " Both copies were written to, so a run that went on in both is charged for each." if was_forked else ""
    now = f"now {amount(after.spent_epsilon)} of its epsilon is spent."
    return f"Population {after.population.name}: charged for what was lost; {now}{more}"


def _abandon_open(transaction: Transaction) -> list[str]:
    book = transaction.book
    open_runs = [run for run in book.runs_of() if run.status == Status.RESERVED]
    for run in open_runs:
        transaction.put(*ended(run, book.parts_of(run.run_id), Status.ABANDONED))
    return [f"Run {run.run_id} is abandoned: it was open, and stays charged." for run in open_runs]


# ---------------------------------------------------------------------------------------------------------------------
# Findings
# ---------------------------------------------------------------------------------------------------------------------


def _file_faults(database: Database, connection: sa.Connection) -> list[Finding]:
    if database.file is None:
        return []
    check = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    found = [] if check == ["ok"] else [Finding(True, "The file of the ledger is damaged. Bring back a good copy.")]
    query = "SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')"
    if connection.exec_driver_sql(query).first() is not None:
        text = "Somebody has put triggers or views into the ledger, which may change what is charged."
        found.append(Finding(True, f"{text} Bring back a good copy."))
    return found


def _copy_findings(database: Database, book: Book) -> list[Finding]:
    try:
        copy = database.copy()
        database.check(book, copy)
        if copy:
            copy.book()  # what a repair would need of it
    except LedgerError as error:
        remedy = (
            "If the newest copy is lost: shh ledger doctor --repair accepts this copy, charges what the counter file"
            " knows to be spent, and abandons all open runs."
        )
        return [Finding(True, f"{error}. {remedy}")]
    if copy and copy.last.digest == book.digest and not copy.settled:
        text = (
            "The last entry is not settled in the counter file: a crash, or a full disk. The next entry settles it;"
            " until then a copy that is older by this one entry would not be noticed."
        )
        return [Finding(False, text)]
    return []


def _clock_findings(book: Book) -> list[Finding]:
    times = [datetime.datetime.fromisoformat(entry.fields["at"]).timestamp() for entry in book.journal]
    if all(after - before >= -_CLOCK_SECONDS for before, after in itertools.pairwise(times)):
        return []
    text = "The clock was set back between two entries. Nothing depends on it but the times that are shown."
    return [Finding(False, text)]


def _balance_findings(book: Book) -> list[Finding]:
    found = []
    is_repaired = any(entry.fields["action"] == "repair" for entry in book.journal)
    for balance in book.balances():
        population = balance.population
        if not population.rule.allows(balance.total):
            why = "was charged more than its caps by a repair: no run of it is admitted any more."
            text = f"Population {population.name} {why if is_repaired else 'has spent more than its caps.'}"
            found.append(Finding(not is_repaired, text))
    return found


def _part_findings(book: Book) -> list[Finding]:
    found = []
    open_runs = [run for run in book.runs_of() if run.status == Status.RESERVED]
    for part in (part for run in open_runs for part in book.parts_of(run.run_id)):
        if part.status not in (Status.RESERVED, Status.RUNNING, Status.FAILED):
            continue
        what = f"Run {part.run_id}, windows {part.first_window} .. {part.end_window - 1}: {part.status} since"
        if part.process and not is_gone(part.place, part.process):
            continue
        if part.has_started:
            remedy = "Finish it by the same command and input, or give it up: shh ledger abandon"
        else:
            remedy = f"Its process is gone. Run the same command again, or: shh ledger release {part.run_id}"
        found.append(Finding(False, f"{what} {part.started_at or part.reserved_at}. {remedy}"))
    for run in open_runs:
        if not book.parts_of(run.run_id):
            text = f"Run {run.run_id} was reserved by {run.who} at {run.reserved_at} and has no part yet."
            found.append(Finding(False, text))
    return found


def _state_findings(state: StateMark, book: Book) -> list[Finding]:
    """A state that the ledger does not know shows that the ledger is an older copy; the other way round, the state."""
    run = book.runs.get(state.run_id)
    if run is None:
        text = (
            f"The state of run {state.run_id} is of a run that is not in the ledger: the ledger is an older copy, or"
            " the run was begun without it. Bring back the newest copy, or begin a new run, which pays in full."
        )
        return [Finding(True, text)]
    if run.plan_fingerprint != state.plan_fingerprint:
        return [Finding(True, f"The state of run {state.run_id} is of another plan than its run.")]
    drawn = [part for part in book.parts_of(run.run_id) if part.may_be_published]
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
