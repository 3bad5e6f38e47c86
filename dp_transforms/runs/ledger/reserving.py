"""May this part run, and how is it reserved? `judge` decides from what the ledger knows of the run, and of nothing
else: no database, no clock. What follows works within one transaction: population, run, what it takes, and the records.

For each run id the windows go forward: a part begins where the last one ended, the first one at 0. A part that has
started belongs to its input for ever: the same windows are never drawn from another one. So there is at most one answer
for a window of a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dp_transforms.plan.lifetime_cost import (
    NOTHING,
    BudgetRule,
    Price,
    cap_units,
    from_delta_units,
    from_epsilon_units,
)
from dp_transforms.runs.ledger.book import Book
from dp_transforms.runs.ledger.database import Transaction
from dp_transforms.runs.ledger.records import (
    Balance,
    BudgetExceededError,
    Caps,
    LedgerBusyError,
    Part,
    PartRequest,
    Population,
    Run,
    RunRefusedError,
    Status,
    Verdict,
    amount,
)
from dp_transforms.runs.state_header import VerdictKind

IsGone = Callable[[str, str], bool]


@dataclasses.dataclass(frozen=True)
class Decision:
    """part: the one that is resumed or done; None for a new one. settled: a part that is finished by what the state
    says. dropped: parts that drew nothing and that this one takes the place of."""

    kind: VerdictKind
    part: Part | None = None
    settled: Part | None = None
    dropped: tuple[Part, ...] = ()


def judge(run: Run, parts: Sequence[Part], request: PartRequest, process: str, is_gone: IsGone) -> Decision:
    """What the part of this request is to a run that has paid. Raises RunRefusedError or LedgerBusyError.

    process: of who asks. is_gone: whether the process (place, process) of a part has ended.
    """
    kept = [part for part in parts if part.status != Status.RELEASED]
    check_same_run(run, request, has_drawn=any(part.may_be_published for part in kept))
    for part in kept:
        if part.status in (Status.RESERVED, Status.RUNNING) and part.process not in ("", process):
            _check_gone(part, is_gone)
    drawn = sorted((part for part in kept if part.may_be_published), key=lambda part: part.range)
    waiting = tuple(part for part in kept if not part.may_be_published)
    last = drawn[-1] if drawn else None
    settled = None
    if last and not last.has_ended and request.state_fingerprint and last.ended_at(request.first_window):
        # The state was written, and then the process died before it told the ledger. It had said which state it is.
        if last.state_after != request.state_fingerprint:
            known = f"the one that its part from window {last.first_window} on was to leave"
            raise RunRefusedError(_other_state(run.run_id, known))
        settled = last = dataclasses.replace(last, status=Status.FINISHED, end_window=request.first_window)
    if request.first_window == request.end_window:
        if last and last.end_window == request.end_window:
            _check_state(last, request)
            return Decision(VerdictKind.DONE, last, settled)
        raise RunRefusedError(f"the part of run {run.run_id} has no windows. Name a later --until.")
    if settled is None and last and last.range == (request.first_window, request.end_window):
        return _again(last, request, waiting)
    if last:
        _check_after(run, last, request)
        _check_state(last, request)
    same = next((part for part in waiting if part.range == (request.first_window, request.end_window)), None)
    dropped = tuple(part for part in waiting if part is not same)
    if not last and (request.state_fingerprint or request.first_window):
        raise RunRefusedError(
            f"the ledger does not know the parts of run {run.run_id} that its state has: they ran without it, or it was"
            " restored from a backup. Begin a new run, with a new run id and state, which pays in full."
        )
    if same:
        return Decision(VerdictKind.RESUMES, same, settled, dropped)
    return Decision(VerdictKind.CONTINUES, None, settled, dropped)


def check_same_run(run: Run, request: PartRequest, *, has_drawn: bool) -> None:
    """Raises RunRefusedError unless the request is about the run as it was reserved, and the run is open. has_drawn:
    whether its key has drawn anything that somebody may have read; else any other one is as good."""
    if run.status == Status.RELEASED:
        raise RunRefusedError(f"run {run.run_id} was released. Use another run id; it pays again.")
    if run.status == Status.ABANDONED:
        raise RunRefusedError(f"run {run.run_id} was abandoned. Use another run id; it pays again.")
    for name, stored, asked in (
        ("population", run.population, request.population),
        ("stream", run.stream, request.stream),
        ("plan", run.plan_fingerprint, request.plan_fingerprint),
        ("noise key", run.key_fingerprint, request.key_fingerprint if has_drawn else run.key_fingerprint),
    ):
        if stored != asked:
            short = "" if name == "noise key" else f" ({stored[:16]} and not {asked[:16]})"
            raise RunRefusedError(
                f"run id {run.run_id} was used before with another {name}{short}. Use the same one, or another run id,"
                " which pays in full."
            )


def _check_gone(part: Part, is_gone: IsGone) -> None:
    if not is_gone(part.place, part.process):
        raise LedgerBusyError(
            f"process {part.process.partition(':')[0]} of {part.who} on {part.place.partition('/')[0]} has windows"
            f" {part.first_window} .. {part.end_window - 1} of run {part.run_id}. Wait until it has ended. If it is"
            f" certainly dead: shh ledger fail {part.run_id}"
        )


def _again(last: Part, request: PartRequest, waiting: tuple[Part, ...]) -> Decision:
    """The windows of the last part that was drawn, once more."""
    if request.draws_once:
        raise RunRefusedError(
            f"the ledger knows run {last.run_id}, and that these windows of it may have been drawn. On other records it"
            " would draw the same noise, and both together would show what changed. Resume it with --resume-from"
            " SAVEPOINT, or leave --run-id out: a new run pays in full."
        )
    if last.input_fingerprint != request.input_fingerprint:
        raise RunRefusedError(
            f"windows {last.first_window} .. {last.end_window - 1} of run {last.run_id} were drawn from another input."
            " Use the input as it was then. A corrected log is a new run: it needs another run id and a new state file,"
            " and pays in full."
        )
    if last.has_ended:
        return Decision(VerdictKind.DONE, last)
    if last.state_before != request.state_fingerprint:
        raise RunRefusedError(_other_state(last.run_id, "the one that this part began with"))
    return Decision(VerdictKind.RESUMES, last, None, waiting)


def _check_after(run: Run, last: Part, request: PartRequest) -> None:
    """The part begins where the last one that was drawn ended."""
    if request.first_window > last.end_window:
        raise RunRefusedError(
            f"this part of run {run.run_id} begins at window {request.first_window}, and the ledger knows its windows"
            f" up to {last.end_window - 1} alone: parts ran without it, or it was restored from a backup. See: shh"
            " ledger doctor --state FILE"
        )
    if request.first_window < last.end_window:
        if request.state_fingerprint and last.state_after not in ("", request.state_fingerprint):
            raise RunRefusedError(_other_state(run.run_id, f"the one after window {last.end_window - 1}"))
        raise RunRefusedError(
            f"windows up to {last.end_window - 1} of run {run.run_id} were drawn before, and this part begins at"
            f" {request.first_window}. Go on with the state of the last part, or use another run id, which pays in"
            " full."
        )
    if not last.has_ended:
        raise RunRefusedError(
            f"windows {last.first_window} .. {last.end_window - 1} of run {run.run_id} were begun and not finished."
            " Finish them first, by the same command and input as then."
        )


def _check_state(last: Part, request: PartRequest) -> None:
    if last.state_after != request.state_fingerprint:
        raise RunRefusedError(_other_state(last.run_id, f"the one after window {last.end_window - 1}"))


def _other_state(run_id: str, known: str) -> str:
    return (
        f"the state of run {run_id} is not {known}, which the ledger knows: it is an older copy, or of another time"
        " line."
        " Bring back the newest copy. Without it the run cannot go on; a new one needs another run id and pays in full."
    )


# ---------------------------------------------------------------------------------------------------------------------
# Within a transaction
# ---------------------------------------------------------------------------------------------------------------------


def new_run(
    transaction: Transaction, population: Population, run_id: str, request: PartRequest, has_part: bool = True
) -> Verdict:
    """Charges a run that the ledger does not know, and reserves its first part. has_part: False for a run alone.

    Raises RunRefusedError for a run that began elsewhere, BudgetExceededError if it does not fit.
    """
    if has_part and (request.first_window or request.state_fingerprint):
        raise RunRefusedError(
            f"run {run_id}, which the state belongs to, is not in the ledger. If it was begun without a ledger, go"
            " on without one, or begin a new run, which pays in full. If the ledger was restored from a backup, see:"
            " shh ledger doctor"
        )
    if has_part and request.end_window == request.first_window:
        raise RunRefusedError("the part has no windows. Name a later --until.")
    book, inputs = transaction.book, request.input_fingerprint
    price, takes = _prices(book, population, request, "Nothing was drawn.")
    same_input = book.run_of_input(population.name, request.stream, inputs) if has_part else ""
    run = Run(
        run_id=run_id,
        population=population.name,
        stream=request.stream,
        plan_fingerprint=request.plan_fingerprint,
        mode=request.cost.mode,
        horizon=request.horizon,
        range_start=request.range_start,
        range_end=request.range_end,
        plan_epsilon=request.cost.epsilon,
        plan_delta=request.cost.delta,
        price=price,
        kept=population.rule.kept_by_release(request.cost, price),
        key_fingerprint=request.key_fingerprint if has_part else "",
        status=Status.RESERVED,
        **vars(transaction.actor),
        reserved_at=transaction.at,
    )
    transaction.put(run)
    part = _new_part(transaction, run_id, request) if has_part else 0
    balance = transaction.note(run, part, "reserve")
    return Verdict(VerdictKind.NEW, run_id, part, transaction.counter, balance, takes, same_input)


def known_run(
    transaction: Transaction, population: Population, run: Run, request: PartRequest, decision: Decision
) -> Verdict:
    """Does what was decided about a part of a run that has paid."""
    part = decision.part
    if decision.settled:
        transaction.put(dataclasses.replace(decision.settled, finished_at=transaction.at))
    transaction.put(*(dataclasses.replace(dropped, status=Status.RELEASED) for dropped in decision.dropped))
    if decision.kind == VerdictKind.DONE:
        assert part is not None
        if decision.settled or decision.dropped:
            transaction.note(run, part.part, "settle", "finished, as its state says")
        balance = transaction.book.balance(population)
        return Verdict(decision.kind, run.run_id, part.part, part.claim, balance, NOTHING)
    if run.key_fingerprint != request.key_fingerprint:
        transaction.put(dataclasses.replace(run, key_fingerprint=request.key_fingerprint))
    if part is None:
        number = _new_part(transaction, run.run_id, request)
    else:
        number = part.part
        inputs = {"input_fingerprint": request.input_fingerprint, "state_before": request.state_fingerprint}
        taken: dict[str, Any] = {**inputs, "claim": transaction.counter, **vars(transaction.actor)}
        transaction.put(dataclasses.replace(part, **taken))
    balance = transaction.note(run, number, str(decision.kind))
    was_publishing = part is not None and part.was_publishing
    claim = transaction.counter
    return Verdict(decision.kind, run.run_id, number, claim, balance, NOTHING, was_publishing=was_publishing)


def _new_part(transaction: Transaction, run_id: str, request: PartRequest) -> int:
    part = Part(
        part=len(transaction.book.parts) + 1,
        run_id=run_id,
        first_window=request.first_window,
        end_window=request.end_window,
        input_fingerprint=request.input_fingerprint,
        state_before=request.state_fingerprint,
        state_after="",
        status=Status.RESERVED,
        claim=transaction.counter,
        **vars(transaction.actor),
        reserved_at=transaction.at,
    )
    transaction.put(part)
    return part.part


def ended(run: Run, parts: Sequence[Part], status: Status) -> Iterator[Run | Part]:
    """The run and those of its parts that are open, with this status. parts: all of the run."""
    yield dataclasses.replace(run, status=status)
    for part in parts:
        if part.status not in (Status.FINISHED, Status.RELEASED):
            yield dataclasses.replace(part, status=status)


def check_fits(book: Book, request: PartRequest, caps: Caps | None) -> None:
    """Raises what reserving this run would raise now, if the ledger does not know it. Changes nothing."""
    if request.run_id not in book.runs:
        _prices(book, _population_of(book, request, caps, at=""), request, "Nothing was read.")


def declared_population(transaction: Transaction, request: PartRequest, caps: Caps | None) -> Population:
    """The population of the request; declared now if it is new."""
    population = _population_of(transaction.book, request, caps, transaction.at)
    if population.name not in transaction.book.populations:
        transaction.put(population)
    return population


def _population_of(book: Book, request: PartRequest, caps: Caps | None, at: str) -> Population:
    """The population of the request. A new one is not written here."""
    population = book.populations.get(request.population)
    if population is None:
        if caps is None:
            raise RunRefusedError(
                f"the ledger knows no population {request.population}. Declare it, once, with --max-epsilon and"
                " --max-delta: what its users may ever lose."
            )
        try:
            rule = BudgetRule.declare(caps.max_epsilon, caps.max_delta, request.cost, caps.rule)
        except ValueError as error:
            raise RunRefusedError(str(error)) from None
        return Population(request.population, request.unit, rule, at)
    rule = population.rule
    if caps is not None:
        try:
            asked = cap_units(caps.max_epsilon, caps.max_delta)
        except ValueError as error:
            raise RunRefusedError(str(error)) from None
        if asked != (rule.max_epsilon, rule.max_delta) or caps.rule not in (None, rule.kind):
            raise RunRefusedError(
                f"the caps of population {population.name} are set once: max epsilon"
                f" {amount(from_epsilon_units(rule.max_epsilon))}, max delta"
                f" {amount(from_delta_units(rule.max_delta))}, rule {rule.kind}. Leave --max-epsilon and --max-delta"
                " out."
            )
    return population


def _prices(book: Book, population: Population, request: PartRequest, so_far: str) -> tuple[Price, Price]:
    """The price of the run, and what it takes: with the base of the rule if it is the first one.

    Raises BudgetExceededError, with the sentence so_far, if it does not fit.
    """
    rule, before = population.rule, book.balance(population)
    price = rule.price(request.cost, before.total)
    takes = price if before.runs else price + rule.base
    if not rule.allows(before.total + takes):
        raise _too_much(population, before, takes, so_far)
    return price, takes


def _too_much(population: Population, before: Balance, takes: Price, so_far: str) -> BudgetExceededError:
    if before.total.sampling > population.rule.sampling:
        return BudgetExceededError(
            f"a repair of the ledger charged users of *{population.name}* with more distances of sampled noise than its"
            " rule renyi sets aside, so no run fits any more. Bring back the newest copy, if there is one."
        )
    epsilon, delta = takes.epsilon, takes.delta
    left = f"{amount(before.left_epsilon, down=True)} of {amount(before.max_epsilon)}"
    left_delta = f"{amount(before.left_delta, down=True)} of {amount(before.max_delta)}"
    return BudgetExceededError(
        f"this run takes {amount(from_epsilon_units(epsilon))} and delta {amount(from_delta_units(delta))} of what"
        f" users of *{population.name}* may ever lose, and {left} and delta {left_delta} is left. {so_far} Use"
        " a plan with a smaller budget, or go on with a run that has paid."
    )
