"""The ledger: which runs drew on the budget of which users, for ever; and how far each of them is.

Guarantee: of all runs of one population only those were allowed to draw whose prices add up to at most its caps, by the
`BudgetRule` that was fixed when it was declared (`runs.lifetime_cost`, docs/guarantee.md, "Many runs"). A run is
charged when it is reserved, before it reads its events, and the charge stays whatever happens to it; only a run without
a start record can be released. For each run id a window is handled by at most one part with one input (`runs.judge`
has the state machine).

A ledger of many runs has populations with caps. A run of its own that is taken in parts has a ledger too, beside its
state, without a population: what it does with a part is the same.

It holds no event, no user id and no label: names, times, paths, fingerprints and whole numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import getpass
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dp_transforms.runs.judge import OF_WHAT_WAS_DRAWN, Decision, check_run, judged
from dp_transforms.runs.ledger_file import LedgerFile, Rows
from dp_transforms.runs.lifetime_cost import NOTHING, BudgetRule, Price, cap_units, from_delta_units, from_epsilon_units
from dp_transforms.runs.records import (
    Balance,
    BudgetExceededError,
    Caps,
    LedgerBusyError,
    LedgerDamagedError,
    Part,
    PartRequest,
    Population,
    Run,
    RunRefusedError,
    Status,
    Verdict,
    VerdictKind,
    amount,
)

DEFAULT_WAIT_SECONDS = 30.0


class Shown(NamedTuple):
    """What a file says of a run, for `Ledger.findings`. name: of the file. window, state_fingerprint: how far the run
    is, and what it has left, by a state; 0 and "" of a report."""

    name: str
    run_id: str
    window: int = 0
    state_fingerprint: str = ""


class Finding(NamedTuple):
    """is_fault: the ledger must not be used as it is; else something that an operator should look at."""

    is_fault: bool
    text: str


class Ledger:
    """A ledger, in a file that the first `reserve` makes.

    Every method is one transaction, on the disk when it returns. Raises `LedgerError` and `RunRefusedError`, whose text
    is one line with the remedy; nothing has changed then. Each may be repeated: after a crash the same call finds what
    was done.
    """

    def __init__(self, place: str | os.PathLike[str], *, wait_seconds: float = DEFAULT_WAIT_SECONDS) -> None:
        """wait_seconds: how long to wait for another process."""
        self._file = LedgerFile(place, wait_seconds)

    def begun_at(self, state_path: str) -> str:
        """The run that is to leave its state at this path, and has left none yet; "" if there is none."""
        with self._file.trying() as rows:
            for run in rows.all(Run, state_path=state_path, status=Status.RESERVED):
                if not any(part.status == Status.FINISHED for part in rows.all(Part, run_id=run.run_id)):
                    return run.run_id
        return ""

    def reserve(self, request: PartRequest, caps: Caps | None = None, *, is_trial: bool = False) -> Verdict:
        """Whether a part may run; a new run is charged at once, for its whole declared range.

        caps: needed for a population that the ledger does not know, and compared with those of one that it knows.
        is_trial: only say so, and change nothing. Raises BudgetExceededError if the run does not fit into what is left,
        RunRefusedError if the part does not fit to its run, LedgerBusyError if another process has this part.
        """
        with self._file.trying() if is_trial else self._file.writing(may_make=True) as rows:
            run = rows.get(Run, request.run.run_id)
            parts = rows.all(Part, run_id=run.run_id) if run else []
            for part in parts:
                if part.is_open and not self._file.take(part.part):
                    raise LedgerBusyError(f"another process has {part.windows}. Wait until it has ended.")
                if is_trial:
                    self._file.let_go(part.part)
            decision = judged(run, parts, request)
            same_input = "" if run else _run_of_input(rows, request)
            verdict = self._reserved_run(rows, request, caps)
            part = self._given(rows, verdict.run_id, request, decision)
            if part.is_open and not is_trial:
                self._file.take(part.part)
            return dataclasses.replace(verdict, kind=decision.kind, part=part, same_input=same_input)

    def reserve_run(self, request: PartRequest, caps: Caps | None = None, *, is_trial: bool = False) -> Verdict:
        """Charges a run without a part: an operator sets its budget aside. The run id is then used by its parts.

        The verdict is NEW, or CONTINUES if the run was charged before. caps, is_trial: as in `reserve`.
        """
        with self._file.trying() if is_trial else self._file.writing(may_make=True) as rows:
            return self._reserved_run(rows, request, caps)

    def start(self, verdict: Verdict) -> None:
        """From here on the part counts as drawn. Call it before the first noise."""
        with self._claimed(verdict) as (rows, part):
            if part.status == Status.FINISHED:
                raise RunRefusedError(f"{part.windows} are finished. There is nothing to draw.")
            started = part.started_at or _now()
            rows.put(dataclasses.replace(part, status=Status.RUNNING, started_at=started))

    def publishing(self, verdict: Verdict, state_fingerprint: str) -> None:
        """The report is published next, and then the new state, with this fingerprint. Call it before the first of both
        can be read: a process that dies in between has left this state or none, and what it drew may be read."""
        with self._claimed(verdict) as (rows, part):
            if part.status != Status.RUNNING:
                raise RunRefusedError(f"{part.windows} are {part.status}, and cannot be published.")
            rows.put(dataclasses.replace(part, state_after=state_fingerprint, publishing_at=_now()))

    def finish(self, verdict: Verdict, state_fingerprint: str = "") -> None:
        """The report and the new state are published. state_fingerprint: of the new state; "" without one."""
        with self._claimed(verdict) as (rows, part):
            if part.status not in (Status.RUNNING, Status.FINISHED):
                raise RunRefusedError(f"{part.windows} are {part.status}, and cannot be finished.")
            if part.state_after != state_fingerprint:
                raise RunRefusedError(f"{part.windows} have left another state than the one that was announced.")
            rows.put(dataclasses.replace(part, status=Status.FINISHED, finished_at=part.finished_at or _now()))
        self._file.let_go(part.part)

    def fail(self, verdict: Verdict, *, forget: bool = False) -> None:
        """The part failed. The run stays charged, and the part may be resumed with the same input.

        forget: only if it is certain that nothing of the part was published, by this process or by one before it, and
        that it failed whatever its noise was. Then its windows may be drawn from another input, and if it was the first
        part of its run, with another key. A part that was `publishing` is never forgotten; one that drew nothing always
        is.
        """
        with self._claimed(verdict) as (rows, part):
            if part.status == Status.FINISHED:
                return
            is_forgotten = not part.started_at or (forget and not part.state_after)
            rows.put(dataclasses.replace(part, status=Status.RELEASED if is_forgotten else Status.FAILED))
        self._file.let_go(part.part)

    def abandon(self, run_id: str) -> None:
        """The run will never go on. What it cost stays spent."""
        self._end(run_id, Status.ABANDONED)

    def release(self, run_id: str) -> None:
        """Gives back what a run was charged, if no part of it has a start record."""
        self._end(run_id, Status.RELEASED)

    def balances(self, population: str | None = None) -> list[Balance]:
        """Of one population, or of all, by name. Raises RunRefusedError for an unknown one."""
        with self._file.reading() as rows:
            found = [each for each in rows.all(Population) if population in (None, each.name)]
            if population is not None and not found:
                raise RunRefusedError(f"the ledger knows no population {population}. See: shh ledger")
            return [_balance(rows, each) for each in sorted(found, key=lambda each: each.name)]

    def runs(self, population: str | None = None) -> list[tuple[Run, list[Part]]]:
        """Runs with their parts, in the order in which they were reserved."""
        with self._file.reading() as rows:
            found = rows.all(Run) if population is None else rows.all(Run, population=population)
            return [(run, rows.all(Part, run_id=run.run_id)) for run in found]

    def findings(self, files: Sequence[Shown] = ()) -> list[Finding]:
        """What is wrong, and what to look at, faults first: with the file, with open runs, and where the ledger does
        not reach what these reports and states say of their runs. Changes nothing."""
        with self._file.reading() as rows:
            if rows.connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                return [Finding(True, "The file of the ledger is damaged. Bring back a good copy.")]
            runs = {run.run_id: (run, rows.all(Part, run_id=run.run_id)) for run in rows.all(Run)}
            spent = [_balance(rows, population) for population in rows.all(Population)]
        over = [each.population.name for each in spent if not each.population.allows(each.total)]
        found = [Finding(True, f"Population {name} has spent more than its caps.") for name in over]
        found += [finding for file in files for finding in _reached(file, runs.get(file.run_id))]
        for run, parts in runs.values():
            if run.status == Status.RESERVED:
                found += self._open_ends(run, parts)
        return sorted(found, key=lambda finding: not finding.is_fault)

    def _reserved_run(self, rows: Rows, request: PartRequest, caps: Caps | None) -> Verdict:
        """Charges the run of the request, unless that was done before."""
        run, takes, kind = rows.get(Run, request.run.run_id), NOTHING, VerdictKind.CONTINUES
        population = _population(rows, request, caps) if request.run.population else None
        if run is not None:
            check_run(run, request.run, has_drawn=False)
        else:
            price, kind = NOTHING, VerdictKind.NEW
            if population:
                price, takes = _prices(population, _balance(rows, population), request)
            run = dataclasses.replace(
                request.run,
                run_id=request.run.run_id or secrets.token_hex(16),
                charged_epsilon=price.epsilon,
                charged_delta=price.delta,
                charged_sampling=price.sampling,
                **_written(),
            )
            rows.put(run)
        return Verdict(kind, run.run_id, _balance(rows, population) if population else None, takes)

    def _given(self, rows: Rows, run_id: str, request: PartRequest, decision: Decision) -> Part:
        """Does what was decided about a part of a run that is charged."""
        part = decision.part
        if decision.settled:
            rows.put(dataclasses.replace(decision.settled, finished_at=_now()))
        if decision.kind == VerdictKind.DONE and part:
            return part
        if part and part.may_be_published:
            part = dataclasses.replace(part, claim=part.claim + 1)
        else:
            run = _known(rows, run_id)
            of_log = {name: getattr(request.run, name) for name in OF_WHAT_WAS_DRAWN}
            rows.put(dataclasses.replace(run, state_path=request.run.state_path, **of_log))
            number, claim = (part.part, part.claim) if part else (rows.count(Part) + 1, 0)
            part = dataclasses.replace(request.part, part=number, claim=claim + 1, run_id=run_id, **_written())
        rows.put(part)
        return part

    @contextlib.contextmanager
    def _claimed(self, verdict: Verdict) -> Iterator[tuple[Rows, Part]]:
        """A transaction about the part of a verdict. Raises RunRefusedError if it is no longer that of its owner."""
        with self._file.writing() as rows:
            run, part = _known(rows, verdict.run_id), verdict.part and rows.get(Part, verdict.part.part)
            if part is None or verdict.part is None or part.run_id != run.run_id:
                raise LedgerDamagedError(
                    f"a part of run {run.run_id} is not in the ledger. Bring back the newest copy."
                )
            if run.status != Status.RESERVED or part.status == Status.RELEASED:
                status = run.status if run.status != Status.RESERVED else part.status
                raise RunRefusedError(f"{part.windows} were {status} meanwhile. Use another run id; it pays again.")
            if part.claim != verdict.part.claim:
                raise RunRefusedError(f"{part.windows} were taken over by another process. Let that one finish them.")
            yield rows, part

    def _end(self, run_id: str, status: Status) -> None:
        with self._file.writing() as rows:
            run, parts = _known(rows, run_id), rows.all(Part, run_id=run_id)
            if run.status == status:
                return
            if run.status != Status.RESERVED:
                raise RunRefusedError(f"run {run_id} was {run.status} before, and cannot be {status}.")
            if status == Status.RELEASED and any(part.started_at for part in parts):
                raise RunRefusedError(
                    f"run {run_id} has a start record: it may have drawn noise, and stays charged. To say that it will"
                    f" never go on: shh ledger abandon {run_id}"
                )
            rows.put(dataclasses.replace(run, status=status))
            for part in parts:
                if part.status not in (Status.FINISHED, Status.RELEASED):
                    rows.put(dataclasses.replace(part, status=status))

    def _open_ends(self, run: Run, parts: Sequence[Part]) -> Iterator[Finding]:
        if not parts:
            yield Finding(
                False, f"Run {run.run_id} was reserved by {run.who} at {run.reserved_at} and has no part yet."
            )
        for part in parts:
            if part.status in (Status.FINISHED, Status.RELEASED) or not self._file.take(part.part):
                continue
            self._file.let_go(part.part)
            remedy = f"Run the same command again, or: shh ledger release {run.run_id}"
            if part.started_at:
                remedy = f"Finish it by the same command and input, or give it up: shh ledger abandon {run.run_id}"
            since = part.started_at or part.reserved_at
            yield Finding(False, f"{part.windows.capitalize()}: {part.status} since {since}, by no process. {remedy}")


def _reached(file: Shown, known: tuple[Run, list[Part]] | None) -> Iterator[Finding]:
    """A file that the ledger does not know shows that the ledger is an older copy; the other way round, the file."""
    drawn = [part for part in known[1] if part.may_be_published] if known else []
    older = "the ledger is an older copy, or the run was begun without it. Bring back the newest copy."
    if not drawn or file.window > drawn[-1].end_window:
        yield Finding(True, f"{file.name} is of windows of run {file.run_id} that are not in the ledger: {older}")
    elif file.state_fingerprint:
        newest = [part.state_after for part in drawn if part.state_after][-1:]
        before = [part.state_before for part in drawn if part.status != Status.FINISHED]
        if file.state_fingerprint not in (*newest, *before):
            yield Finding(
                True, f"{file.name} is an older copy of the state of run {file.run_id}. Bring back the newest."
            )


def _written() -> dict[str, Any]:
    return {"who": _login(), "reserved_at": _now()}


def _known(rows: Rows, run_id: str) -> Run:
    run = rows.get(Run, run_id)
    if run is None:
        raise RunRefusedError(f"the ledger knows no run {run_id}. See: shh ledger --population NAME")
    return run


def _run_of_input(rows: Rows, request: PartRequest) -> str:
    """The first run of this stream, by its name, of which a part was started on this input; "" if there is none."""
    query = (
        "SELECT min(run_id) FROM parts JOIN runs USING (run_id)"
        " WHERE input_fingerprint = ? AND started_at != '' AND population = ? AND stream = ?"
    )
    asked = request.part.input_fingerprint, request.run.population, request.run.stream
    return rows.connection.execute(query, asked).fetchone()[0] or ""


def _balance(rows: Rows, population: Population) -> Balance:
    """The sum over all runs but the released ones, in whole numbers."""
    query = "SELECT charged_epsilon, charged_delta, charged_sampling FROM runs WHERE population = ? AND status != ?"
    charged = rows.connection.execute(query, (population.name, Status.RELEASED)).fetchall()
    try:
        amounts = [list(map(int, column)) for column in zip(*charged, strict=True)]
    except ValueError:
        raise LedgerDamagedError("an amount of the ledger cannot be read. Bring back a good copy.") from None
    if any(min(column) < 0 for column in amounts):
        raise LedgerDamagedError("an amount of the ledger is below 0. Bring back a good copy.")
    total = population.total(Price(*map(sum, amounts)) if charged else NOTHING, len(charged))
    return Balance(population, len(charged), total)


def _population(rows: Rows, request: PartRequest, caps: Caps | None) -> Population:
    """The population of the request; declared now if it is new."""
    population = rows.get(Population, request.run.population)
    try:
        if population is None:
            if caps is None:
                raise RunRefusedError(
                    f"the ledger knows no population {request.run.population}. Declare it, once, with --caps: what its"
                    " users may ever lose."
                )
            rule = BudgetRule.declare(*caps, request.cost)
            population = Population(**vars(rule), name=request.run.population, declared_at=_now())
            rows.put(population)
        elif caps is not None and cap_units(*caps) != (population.max_epsilon, population.max_delta):
            raise RunRefusedError(
                f"the caps of population {population.name} are set once: max epsilon"
                f" {amount(from_epsilon_units(population.max_epsilon))}, max delta"
                f" {amount(from_delta_units(population.max_delta))}, rule {population.kind}. Leave --caps out."
            )
    except ValueError as error:
        raise RunRefusedError(str(error)) from None
    return population


def _prices(population: Population, before: Balance, request: PartRequest) -> tuple[Price, Price]:
    """The price of the run, and what it takes: with the base of the rule if it is the first one. Raises
    BudgetExceededError if it does not fit."""
    if min(request.cost.epsilon, request.cost.delta) < 1:
        raise ValueError("a run must cost epsilon and delta. Take the cost of its plan.")
    price = population.price(request.cost, before.total)
    takes = price if before.runs else price + population.base
    if population.allows(before.total + takes):
        return price, takes
    raise BudgetExceededError(
        f"this run takes {amount(from_epsilon_units(takes.epsilon))} and delta"
        f" {amount(from_delta_units(takes.delta))} of what users of *{population.name}* may ever lose, and"
        f" {amount(before.left_epsilon, down=True)} of {amount(before.max_epsilon)} and delta"
        f" {amount(before.left_delta, down=True)} of {amount(before.max_delta)} is left. Nothing was drawn. Use a plan"
        " with a smaller budget, or go on with a run that has paid."
    )


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, as in containers
        return f"uid {os.getuid()}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
