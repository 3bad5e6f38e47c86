"""What is wrong with a ledger, and the one repair: to charge what a restored copy has forgotten."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import itertools
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from dp_transforms.runs.judge import check_place
from dp_transforms.runs.ledger.book import Actor, Book, Entry, Transaction, is_gone
from dp_transforms.runs.ledger.database import Database
from dp_transforms.runs.ledger.reserving import ended
from dp_transforms.runs.lifetime_cost import BudgetRule, Price
from dp_transforms.runs.records import (
    Balance,
    LedgerDamagedError,
    LedgerError,
    Part,
    Run,
    RunRefusedError,
    StateMark,
    Status,
    amount,
)

_CLOCK_SECONDS = 60.0  # entries that are earlier than the one before by more than this show a clock that was set back


class Finding(NamedTuple):
    """is_fault: the ledger must not be used as it is; else something that an operator should look at."""

    is_fault: bool
    text: str


def examine(database: Database, states: Sequence[StateMark]) -> list[Finding]:
    """All findings, faults first. Raises LedgerError only if the ledger cannot be read at all."""
    with database.look() as connection:
        found = _file_faults(connection)
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

    The ledger is from then on as its last entry says, or as its copy says if this goes on from there. Runs of other
    entries, which two copies that were both written to have, are charged too. All open runs are abandoned: what they
    have drawn since these copies were made is not known.

    Each entry names the one before it. Where that one is in neither, what it charged is not known, so that no charge
    would be enough: nothing is repaired then.
    """
    with database.mend() as (texts, copy, entries):
        whole = _whole_part(texts)
        if copy and len(whole.journal) == len(texts) and copy.agrees_with(whole):
            return ["The ledger agrees with its counter file: nothing was done."]
        theirs = copy.book().journal if copy else []
        base, others = _branches(database.name, texts, theirs)
        done = []
        if copy is None:
            done = ["There is no counter file to compare with: charges that this copy has forgotten stay forgotten."]
        elif base[-1].digest != theirs[-1].digest and not others:
            done = ["The counter file is an older copy. Charges that both have forgotten stay forgotten."]
        transaction = Transaction(Book(entry.text for entry in base), actor)
        for other in others:
            _charge(transaction, base, other)
        spent = {balance.population.name: balance.total for balance in whole.balances()}
        after = [each for each in transaction.book.balances() if spent.get(each.population.name) != each.total]
        done += [_charged(balance, bool(others)) for balance in after]
        done += _abandon_open(transaction)
        transaction.enter("repair", " ".join(done))
        assert transaction.entry is not None
        entries += [*base, transaction.entry]
    return done


def _whole_part(texts: Sequence[Any]) -> Book:
    """The entries before the chain is broken."""
    book = Book()
    with contextlib.suppress(LedgerDamagedError):
        book.extend(texts)
    return book


def _branches(name: str, texts: Sequence[Any], theirs: Sequence[Entry]) -> tuple[list[Entry], list[list[Entry]]]:
    """All entries from the first one to the one that the ledger has as its last one, or its copy after that; and to
    each other one that none follows. theirs: of the copy.

    Raises LedgerDamagedError if one is missing: what cannot be read must be before another entry of the ledger.
    """
    ours = [_readable(text) for text in texts]
    if not ours and not theirs:
        raise LedgerDamagedError(f"nothing of the ledger {name} can be read. Bring back a good copy.")
    known = {entry.digest: entry for entry in [*theirs, *ours] if entry}
    befores = {entry.before for entry in known.values()}
    if (ours and ours[-1] is None) or not befores <= {"", *known}:
        raise LedgerDamagedError(
            f"entries of the ledger {name} are lost, and nobody knows what they charged. Bring back a good copy. If"
            " there is none, but the newest counter file is: move the ledger away, and: shh ledger doctor --repair"
        )

    def to(last: Entry) -> list[Entry]:
        branch = [last]
        while branch[-1].before:
            branch.append(known[branch[-1].before])
        return branch[::-1]

    base = to(ours[-1]) if ours and ours[-1] else list(theirs)
    if base[-1] in theirs:
        base = list(theirs)
    others = [entry for entry in known.values() if entry.digest not in befores and entry not in base]
    return base, [to(entry) for entry in others]


def _readable(text: Any) -> Entry | None:
    with contextlib.suppress(LedgerDamagedError):
        return Entry.parsed(text)
    return None


def _charge(transaction: Transaction, base: Sequence[Entry], branch: Sequence[Entry]) -> None:
    """Charges the runs of a branch that is not the ledger.

    A run that is alike in both, or went on in one of them alone, is one run. One that went on in both, or was changed
    by somebody, is charged for what it is in each: what it drew then cannot be told from what it drew here. A repair
    that was killed is done again, and charges nothing twice: what it put in has no parts.
    """
    start, other = (Book(entry.text for entry in entries) for entries in (base, branch))
    shared = {entry.digest for entry in base}
    common, book = Book(entry.text for entry in branch if entry.digest in shared), transaction.book
    for name, population in other.populations.items():
        mine = book.populations.get(name, population)
        rule, theirs = mine.rule, population.rule
        caps = min(rule.max_epsilon, theirs.max_epsilon), min(rule.max_delta, theirs.max_delta)
        lowered = dataclasses.replace(mine, rule=_with_caps(rule, *caps))
        if book.populations.get(name) != lowered:
            transaction.put(lowered)
    for run_id, run in other.runs.items():
        before, here, there = (_as_abandoned(each, run_id) for each in (common, start, other))
        priced = _as_priced_in(book, other, run)
        if run.status != Status.RELEASED:
            priced = dataclasses.replace(priced, status=Status.ABANDONED)
        lost = f"lost:{hashlib.sha256(repr(there).encode()).hexdigest()[:16]}:{run_id}"
        if there in (before, here) or here == [priced] or lost in start.runs:
            continue
        if run_id not in book.runs:
            transaction.put(priced)
        elif run_id in start.runs and here == before:
            transaction.put(*ended(start.runs[run_id], start.parts_of(run_id), Status.ABANDONED))
        else:
            transaction.put(dataclasses.replace(priced, run_id=lost, status=Status.ABANDONED))


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


def _file_faults(connection: sqlite3.Connection) -> list[Finding]:
    check = connection.execute("PRAGMA integrity_check").fetchall()
    found = [] if check == [("ok",)] else [Finding(True, "The file of the ledger is damaged. Bring back a good copy.")]
    query = "SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')"
    if connection.execute(query).fetchone() is not None:
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
    if last and not last.has_ended and last.first_window <= state.closed_through <= last.end_window:
        text = f"Run {run.run_id}: its last part was not recorded as finished. Run the same command again."
        return [Finding(False, text)]
    try:
        check_place(run.run_id, last, state.closed_through, state.fingerprint if state.closed_through else "")
    except RunRefusedError as error:
        return [Finding(True, f"{str(error)[0].upper()}{str(error)[1:]}")]
    return []
