"""`Ledger`: reserve before a part reads its events, start before it draws, finish when its report is published."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from dp_transforms.checks import check_whole
from dp_transforms.runs.judge import check_open_run, part_by_ledger
from dp_transforms.runs.ledger.book import Actor, Book, Transaction, is_gone
from dp_transforms.runs.ledger.database import Database
from dp_transforms.runs.ledger.doctor import Finding, examine, repair
from dp_transforms.runs.ledger.reserving import charge_run, check_fits, declared_population, ended, give_part
from dp_transforms.runs.lifetime_cost import NOTHING
from dp_transforms.runs.records import (
    Balance,
    Caps,
    LedgerDamagedError,
    NoLedgerError,
    Part,
    PartRequest,
    Run,
    RunRefusedError,
    StateMark,
    Status,
    Verdict,
    VerdictKind,
)

DEFAULT_WAIT_SECONDS = 30.0


class Ledger:
    """A ledger. Build it with `open`. Every method is one transaction, on the disk when it returns.

    Guarantee: that of the package. Raises `LedgerError` and `RunRefusedError`, whose text is one line with the remedy;
    nothing has changed then, but by `start`. Each method may be repeated: after a crash the same call finds what was
    done.
    """

    def __init__(self, database: Database, actor: Actor) -> None:
        self._database = database
        self._actor = actor

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        *,
        create: bool = True,
        wait_seconds: float = DEFAULT_WAIT_SECONDS,
        actor: Actor | None = None,
        rebuild: bool = False,
    ) -> Ledger:
        """place: the path of its file. create: make it if it is not there.

        wait_seconds: how long to wait for another process. actor: who writes; None for this process. rebuild: where the
        file was deleted and its counter file was not, make an empty one, which is good for `repair` alone.
        """
        actor = actor or Actor.here()
        return cls(Database.open(place, actor, create=create, wait_seconds=wait_seconds, rebuild=rebuild), actor)

    @classmethod
    def on_trial(cls, place: str, folder: str) -> Ledger:
        """The ledger of ``place``, to be asked alone. One that is not there and may be made is made in a folder, and
        goes with it."""
        try:
            return cls.open(place, create=False)
        except NoLedgerError:
            return cls.open(os.path.join(folder, "ledger.db"))

    @property
    def name(self) -> str:
        """Where it is."""
        return self._database.name

    def check_fits(self, request: PartRequest, caps: Caps | None = None) -> Verdict | None:
        """What `reserve` would say, or raise, now for a new run; None for one that is known. For when its input is not
        known yet.

        request: its windows and fingerprints are not looked at. Changes nothing, so `reserve` may still refuse.
        """
        with self._database.read() as book:
            return check_fits(book, request, caps)

    def reserve(self, request: PartRequest, caps: Caps | None = None) -> Verdict:
        """Whether a part may run; a new run is charged at once, for its whole declared range.

        caps: needed for a population that the ledger does not know, and compared with those of one that it knows.
        Raises BudgetExceededError if the run does not fit into what is left, RunRefusedError if the part does not fit
        to its run, LedgerBusyError if another process has this part.
        """
        with self._database.write(self._actor) as transaction:
            population = declared_population(transaction, request, caps)
            run_id = request.run_id or secrets.token_hex(16)
            book = transaction.book
            run, parts = book.runs.get(run_id), book.parts_of(run_id)
            decision = part_by_ledger(run_id, run, parts, request, self._actor.process, is_gone)
            if run is not None:
                return give_part(transaction, run, request, decision)
            same_input = book.run_of_input(population.name, request.stream, request.input_fingerprint)
            run, takes = charge_run(transaction, population, run_id, request)
            verdict = give_part(transaction, run, request, decision)
            return dataclasses.replace(verdict, takes=takes, same_input=same_input)

    def reserve_run(self, request: PartRequest, caps: Caps | None = None) -> Verdict:
        """Charges a run without a part: an operator sets its budget aside. The run id is then used by its parts.

        The verdict is NEW, or CONTINUES if the run was charged before. request: its windows and fingerprints of inputs
        and states are not looked at.
        """
        with self._database.write(self._actor) as transaction:
            population = declared_population(transaction, request, caps)
            run_id = request.run_id or secrets.token_hex(16)
            run = transaction.book.runs.get(run_id)
            if run is not None:
                check_open_run(run, request, has_drawn=False)
                balance = transaction.book.balance(population)
                return Verdict(VerdictKind.CONTINUES, run_id, 0, 0, balance, NOTHING)
            run, takes = charge_run(transaction, population, run_id, dataclasses.replace(request, key_fingerprint=""))
            balance = transaction.note(run, 0, "reserve")
            return Verdict(VerdictKind.NEW, run_id, 0, transaction.counter, balance, takes)

    def start(self, verdict: Verdict) -> None:
        """From here on the part counts as drawn. Call it before the first noise.

        Raises LedgerError unless its record can no longer be forgotten: a copy without it, restored, would let
        `release` give back what was drawn.
        """
        with self._claimed(verdict, must_settle=True) as (transaction, run, part):
            if part.status == Status.FINISHED:
                raise RunRefusedError(f"{_shown(part)} is finished. Reserve it again; there is nothing to draw.")
            if part.status == Status.RUNNING and part.process == self._actor.process:
                return
            started = part.started_at or transaction.at
            owner = vars(self._actor)
            transaction.put(dataclasses.replace(part, status=Status.RUNNING, started_at=started, **owner))
            transaction.note(run, part.part, "start")

    def publishing(self, verdict: Verdict, state_fingerprint: str) -> None:
        """The report is published next, and then the new state, with this fingerprint. Call it before the first of both
        can be read: a process that dies in between has left this state or none, and what it drew may be read."""
        with self._claimed(verdict) as (transaction, run, part):
            if part.status != Status.RUNNING:
                raise RunRefusedError(f"{_shown(part)} is {part.status}, and cannot be published. Reserve it again.")
            if part.state_after != state_fingerprint:
                transaction.put(dataclasses.replace(part, state_after=state_fingerprint))
                transaction.note(run, part.part, "publishing")

    def finish(self, verdict: Verdict, state_fingerprint: str = "", end_window: int | None = None) -> None:
        """The report and the new state are published. state_fingerprint: of the new state; "" without one. end_window:
        where the part has ended, if that is before what was reserved: as a stream does that was stopped."""
        with self._claimed(verdict) as (transaction, run, part):
            if part.status == Status.FINISHED and part.state_after == state_fingerprint:
                return
            if part.status != Status.RUNNING:
                raise RunRefusedError(f"{_shown(part)} is {part.status}, and cannot be finished. Reserve it again.")
            if end_window is not None:
                check_whole("end_window", end_window, part.first_window + 1, part.end_window)
                part = dataclasses.replace(part, end_window=end_window)
            finished = dataclasses.replace(part, status=Status.FINISHED, finished_at=transaction.at)
            transaction.put(dataclasses.replace(finished, state_after=state_fingerprint))
            transaction.note(run, part.part, "finish")

    def fail(self, verdict: Verdict, *, forget: bool = False) -> None:
        """The part failed. The run stays charged, and the part may be resumed with the same input.

        forget: only if it is certain that nothing of the part was published, by this process or by one before it, and
        that it failed whatever its noise was. Then its windows may be drawn from another input, and if it was the first
        part of its run, with another key. A part that was `publishing` is never forgotten.
        """
        with self._claimed(verdict) as (transaction, run, part):
            if part.status in (Status.RUNNING, Status.RESERVED):
                # What drew nothing goes on waiting; no process has it any more.
                status = Status.FAILED if part.has_started else Status.RESERVED
                if forget and not part.was_publishing:
                    status = Status.RELEASED
                transaction.put(dataclasses.replace(part, status=status, place="", process=""))
                transaction.note(run, part.part, "fail")

    def fail_run(self, run_id: str) -> int:
        """An operator says that the processes of a run are dead. Returns how many parts may now be resumed."""
        with self._database.write(self._actor) as transaction:
            run, parts = _known(transaction.book, run_id), transaction.book.parts_of(run_id)
            open_parts = [part for part in parts if part.status in (Status.RUNNING, Status.RESERVED)]
            for part in open_parts:
                status = Status.FAILED if part.has_started else Status.RESERVED
                claim = transaction.counter
                transaction.put(dataclasses.replace(part, status=status, claim=claim, place="", process=""))
            if open_parts:
                transaction.note(run, 0, "fail", f"{len(open_parts)} parts, by an operator")
            return len(open_parts)

    def abandon(self, run_id: str) -> None:
        """The run will never go on. What it cost stays spent."""
        self._end(run_id, Status.ABANDONED)

    def release(self, run_id: str) -> None:
        """Gives back what a run was charged, if no part of it has a start record."""
        self._end(run_id, Status.RELEASED)

    def balances(self, population: str | None = None) -> list[Balance]:
        """Of one population, or of all, by name. Raises RunRefusedError for an unknown one."""
        with self._database.read() as book:
            found = [balance for balance in book.balances() if population in (None, balance.population.name)]
            if population is not None and not found:
                raise RunRefusedError(f"the ledger knows no population {population}. See: shh ledger")
            return found

    def runs(self, population: str | None = None) -> list[tuple[Run, list[Part]]]:
        """Runs with their parts, in the order in which they were reserved."""
        with self._database.read() as book:
            return [(run, book.parts_of(run.run_id)) for run in book.runs_of(population)]

    def journal(self) -> list[dict[str, Any]]:
        """All entries, in order: what was done, by whom, and what the population had spent then."""
        with self._database.read() as book:
            return [entry.fields for entry in book.journal[1:]]

    def doctor(self, states: Sequence[StateMark] = ()) -> list[Finding]:
        """What is wrong, and what to look at; also of a ledger that all other methods refuse. Changes nothing."""
        return examine(self._database, states)

    def repair(self) -> list[str]:
        """Accepts a restored ledger: charges what its counter file knows and it does not, and abandons all open runs.

        Returns what was done; nothing is if it agrees with its counter file.
        """
        return repair(self._database, self._actor)

    @contextlib.contextmanager
    def _claimed(self, verdict: Verdict, *, must_settle: bool = False) -> Iterator[tuple[Transaction, Run, Part]]:
        """A transaction about the part of a verdict. Raises RunRefusedError if it is no longer that of its owner."""
        with self._database.write(self._actor, must_settle=must_settle) as transaction:
            run, part = _known(transaction.book, verdict.run_id), transaction.book.parts.get(verdict.part)
            if part is None or part.run_id != run.run_id:
                raise LedgerDamagedError(f"part {verdict.part} is not in the ledger. See: shh ledger doctor")
            if run.status != Status.RESERVED or part.status == Status.RELEASED:
                status = run.status if run.status != Status.RESERVED else part.status
                raise RunRefusedError(f"{_shown(part)} was {status} meanwhile. Use another run id; it pays again.")
            if part.claim != verdict.claim:
                raise RunRefusedError(
                    f"{_shown(part)} was taken over by another process meanwhile. Let that one finish it."
                )
            yield transaction, run, part

    def _end(self, run_id: str, status: Status) -> None:
        with self._database.write(self._actor) as transaction:
            run, parts = _known(transaction.book, run_id), transaction.book.parts_of(run_id)
            if run.status == status:
                return
            if run.status != Status.RESERVED:
                raise RunRefusedError(f"run {run_id} was {run.status} before, and cannot be {status}.")
            if status == Status.RELEASED and any(part.has_started for part in parts):
                raise RunRefusedError(
                    f"run {run_id} has a start record: it may have drawn noise, and stays charged. To say that it will"
                    f" never go on: shh ledger abandon {run_id}"
                )
            transaction.put(*ended(run, parts, status))
            transaction.note(run, 0, "release" if status == Status.RELEASED else "abandon")


def _known(book: Book, run_id: str) -> Run:
    run = book.runs.get(run_id)
    if run is None:
        raise RunRefusedError(f"the ledger knows no run {run_id}. See: shh ledger --runs")
    return run


def _shown(part: Part) -> str:
    return f"the part with windows {part.first_window} .. {part.end_window - 1} of run {part.run_id}"
