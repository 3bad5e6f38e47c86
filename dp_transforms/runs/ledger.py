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

from dp_transforms.runs.judge import OF_WHAT_WAS_DRAWN, Decision, judged
from dp_transforms.runs.ledger_file import LedgerFile, Rows
from dp_transforms.runs.lifetime_cost import NOTHING, BudgetRule, Price, cap_units, from_delta_units, from_epsilon_units
from dp_transforms.runs.records import (
    Balance,
    LedgerError,
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
Caps = tuple[object, object]
"""max_epsilon and max_delta: what the users of a population may ever lose."""


class Shown(NamedTuple):
    """What a file says of a run, for `Ledger.faults`. name: of the file. window, state_fingerprint: how far the run is,
    and what it has left, by a state; 0 and "" of a report."""

    name: str
    run_id: str
    window: int = 0
    state_fingerprint: str = ""


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
        is_trial: only say so, and change nothing. Raises RunRefusedError if the run does not fit into what is left, or
        the part to its run; LedgerError if another process has this part.
        """
        with self._file.trying() if is_trial else self._file.writing(may_make=True) as rows:
            known = rows.get(Run, request.run.run_id)
            parts = rows.all(Part, run_id=known.run_id) if known else []
            for part in parts:
                if part.is_open and not self._file.take(part.part):
                    raise LedgerError(f"another process has {part.windows}. Wait until it has ended.")
                if is_trial:
                    self._file.let_go(part.part)
            decision = judged(known, parts, request)
            run, balance, takes = _charged(rows, known, request, caps)
            part = _given(rows, run, request, decision)
            if part.is_open and not is_trial:
                self._file.take(part.part)
            return Verdict(decision.kind, run.run_id, balance, takes, part)

    def start(self, verdict: Verdict) -> None:
        """From here on the part counts as drawn. Call it before the first noise."""
        with self._claimed(verdict, Status.RESERVED, Status.RUNNING, Status.FAILED) as (rows, part):
            rows.put(dataclasses.replace(part, status=Status.RUNNING, started_at=part.started_at or _now()))

    def publishing(self, verdict: Verdict, state_fingerprint: str) -> None:
        """The report is published next, and then the new state, with this fingerprint. Call it before the first of both
        can be read: a process that dies in between has left this state or none, and what it drew may be read."""
        with self._claimed(verdict, Status.RUNNING) as (rows, part):
            rows.put(dataclasses.replace(part, state_after=state_fingerprint, publishing_at=_now()))

    def finish(self, verdict: Verdict, state_fingerprint: str = "") -> None:
        """The report and the new state are published. state_fingerprint: of the new state; "" without one."""
        with self._claimed(verdict, Status.RUNNING, Status.FINISHED) as (rows, part):
            if part.state_after != state_fingerprint:
                raise RunRefusedError(f"{part.windows} have left another state than the one that was announced.")
            rows.put(dataclasses.replace(part, status=Status.FINISHED, finished_at=part.finished_at or _now()))
        self._file.let_go(verdict.part.part)

    def fail(self, verdict: Verdict, *, forget: bool = False) -> None:
        """The part failed. The run stays charged, and the part may be resumed with the same input.

        forget: only if it is certain that nothing of the part was published, by this process or by one before it, and
        that it failed whatever its noise was. Then its windows may be drawn from another input, and if it was the first
        part of its run, with another key. A part that was `publishing` is never forgotten; one that drew nothing always
        is.
        """
        with self._claimed(verdict, Status.RESERVED, Status.RUNNING, Status.FAILED) as (rows, part):
            is_forgotten = not part.started_at or (forget and not part.state_after)
            rows.put(dataclasses.replace(part, status=Status.RELEASED if is_forgotten else Status.FAILED))
        self._file.let_go(verdict.part.part)

    def end(self, run_id: str) -> Status:
        """The run will never go on. It is released, and not charged any more, if no part of it has a start record; else
        it is abandoned, and what it cost stays spent."""
        with self._file.writing() as rows:
            run, parts = rows.get(Run, run_id), rows.all(Part, run_id=run_id)
            if run is None:
                raise RunRefusedError(f"the ledger knows no run {run_id}. See: shh ledger --population NAME")
            if run.status != Status.RESERVED:
                return run.status
            status = Status.ABANDONED if any(part.started_at for part in parts) else Status.RELEASED
            rows.put(dataclasses.replace(run, status=status))
            for part in parts:
                if part.is_open:
                    rows.put(dataclasses.replace(part, status=status))
            return status

    def balances(self, population: str | None = None) -> list[Balance]:
        """Of one population, or of all, by name. Raises RunRefusedError for an unknown one."""
        with self._file.reading() as rows:
            found = [each for each in rows.all(Population) if population in (None, each.name)]
            if population is not None and not found:
                raise RunRefusedError(f"the ledger knows no population {population}. See: shh ledger --ledger FILE")
            return [_balance(rows, each) for each in sorted(found, key=lambda each: each.name)]

    def runs(self, population: str | None = None) -> list[tuple[Run, list[Part]]]:
        """Runs with their parts, in the order in which they were reserved."""
        with self._file.reading() as rows:
            found = rows.all(Run) if population is None else rows.all(Run, population=population)
            return [(run, rows.all(Part, run_id=run.run_id)) for run in found]

    def faults(self, files: Sequence[Shown] = ()) -> list[str]:
        """Why the ledger must not be used as it is: its file is damaged, or it does not reach what these reports and
        states say of their runs. Changes nothing."""
        with self._file.reading() as rows:
            if rows.connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                return ["The file of the ledger is damaged. Bring back the newest copy."]
            for population in rows.all(Population):
                _balance(rows, population)
            rows.all(Run)
            parts = rows.all(Part)
        found = []
        for file in files:
            drawn = [part for part in parts if part.run_id == file.run_id and part.may_be_published]
            if not drawn or file.window > drawn[-1].end_window:
                found.append(
                    f"{file.name} is of windows of run {file.run_id} that are not in the ledger: the ledger is an older"
                    " copy, or the run was begun without it. Bring back the newest copy."
                )
            elif file.state_fingerprint:
                newest = [part.state_after for part in drawn if part.state_after][-1:]
                before = [part.state_before for part in drawn if part.status != Status.FINISHED]
                if file.state_fingerprint not in (*newest, *before):
                    found.append(
                        f"{file.name} is an older copy of the state of run {file.run_id}. Bring back the newest."
                    )
        return found

    @contextlib.contextmanager
    def _claimed(self, verdict: Verdict, *may_be: Status) -> Iterator[tuple[Rows, Part]]:
        """A transaction about the part of a verdict. Raises RunRefusedError unless it is still that of its owner, and
        has one of these statuses."""
        with self._file.writing() as rows:
            run, part = rows.get(Run, verdict.run_id), rows.get(Part, verdict.part.part)
            if (
                run is None
                or part is None
                or (run.status, run.run_id, part.claim) != (Status.RESERVED, part.run_id, verdict.part.claim)
                or part.status not in may_be
            ):
                status = part.status if part else "not in the ledger"
                raise RunRefusedError(
                    f"windows {verdict.part.first_window} .. {verdict.part.end_window - 1} of run {verdict.run_id} are"
                    f" {status}: the run was ended meanwhile, another process has taken them, or an older ledger was"
                    " brought back. They stay charged. Look at: shh ledger --ledger FILE"
                )
            yield rows, part


def _charged(rows: Rows, run: Run | None, request: PartRequest, caps: Caps | None) -> tuple[Run, Balance | None, Price]:
    """Charges a run that the ledger does not know. The run, what is left, and what it took now."""
    population = _population(rows, request, caps) if request.run.population else None
    takes = NOTHING
    if run is None:
        price = NOTHING
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
    return run, _balance(rows, population) if population else None, takes


def _given(rows: Rows, run: Run, request: PartRequest, decision: Decision) -> Part:
    """Does what was decided about a part of a run that is charged."""
    part = decision.part
    if decision.settled:
        rows.put(dataclasses.replace(decision.settled, finished_at=_now()))
    if decision.kind == VerdictKind.DONE and part:
        return part
    if part and part.may_be_published:
        part = dataclasses.replace(part, claim=part.claim + 1)
    else:
        of_log = {name: getattr(request.run, name) for name in OF_WHAT_WAS_DRAWN}
        rows.put(dataclasses.replace(run, state_path=request.run.state_path, **of_log))
        number, claim = (part.part, part.claim) if part else (rows.count(Part) + 1, 0)
        part = dataclasses.replace(request.part, part=number, claim=claim + 1, run_id=run.run_id, **_written())
    rows.put(part)
    return part


def _balance(rows: Rows, population: Population) -> Balance:
    """The sum over all runs but the released ones, in whole numbers."""
    query = "SELECT charged_epsilon, charged_delta, charged_sampling FROM runs WHERE population = ? AND status != ?"
    charged = rows.connection.execute(query, (population.name, Status.RELEASED)).fetchall()
    try:
        amounts = [list(map(int, column)) for column in zip(*charged, strict=True)]
    except ValueError:
        amounts = [[-1]]
    if any(min(column) < 0 for column in amounts):
        raise LedgerError("an amount of the ledger is damaged. Bring back the newest copy.")
    total = population.total(Price(*map(sum, amounts))) if charged else NOTHING
    return Balance(population, len(charged), total)


def _population(rows: Rows, request: PartRequest, caps: Caps | None) -> Population:
    """The population of the request; declared now if it is new."""
    name = request.run.population
    population = rows.get(Population, name)
    if population is None and caps is None:
        raise RunRefusedError(f"the ledger knows no population {name}. Declare it, once, with --caps EPSILON DELTA.")
    try:
        if population is None and caps is not None:
            rule = BudgetRule.declare(*caps, request.cost)
            population = Population(**vars(rule), name=name, declared_at=_now())
            rows.put(population)
        elif population and caps is not None and cap_units(*caps) != (population.max_epsilon, population.max_delta):
            raise ValueError(f"the caps of population {name} are set once, and are others. Leave --caps out.")
    except ValueError as error:
        raise RunRefusedError(str(error)) from None
    assert population is not None
    return population


def _prices(population: Population, before: Balance, request: PartRequest) -> tuple[Price, Price]:
    """The price of the run, and what it takes: with the base of the rule if it is the first one. Raises RunRefusedError
    if it does not fit."""
    price = population.price(request.cost, before.total)
    takes = price if before.runs else price + population.base
    if population.allows(before.total + takes):
        return price, takes
    raise RunRefusedError(
        f"this run takes {amount(from_epsilon_units(takes.epsilon))} and delta"
        f" {amount(from_delta_units(takes.delta))} of what users of *{population.name}* may ever lose, and"
        f" {amount(before.left_epsilon, down=True)} of {amount(before.max_epsilon)} and delta"
        f" {amount(before.left_delta, down=True)} of {amount(before.max_delta)} is left. Nothing was drawn. Use a plan"
        " with a smaller budget, or go on with a run that has paid."
    )


def _written() -> dict[str, Any]:
    try:
        who = getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, as in containers
        who = f"uid {os.getuid()}"
    return {"who": who, "reserved_at": _now()}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
