"""How a part is reserved, within one transaction: its population, its run, what it takes, and the records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from dp_transforms.runs.judge import Decision
from dp_transforms.runs.ledger.book import Book, Transaction
from dp_transforms.runs.lifetime_cost import NOTHING, BudgetRule, Price, cap_units, from_delta_units, from_epsilon_units
from dp_transforms.runs.records import (
    USER,
    Balance,
    BudgetExceededError,
    Caps,
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


def charge_run(
    transaction: Transaction, population: Population, run_id: str, request: PartRequest
) -> tuple[Run, Price]:
    """A run that the ledger does not know is charged. Returns also what it takes. Raises BudgetExceededError."""
    price, takes = _prices(transaction.book, population, request, "Nothing was drawn.")
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
        kept=NOTHING,
        key_fingerprint=request.key_fingerprint,
        status=Status.RESERVED,
        **vars(transaction.actor),
        reserved_at=transaction.at,
    )
    transaction.put(run)
    return run, takes


def give_part(transaction: Transaction, run: Run, request: PartRequest, decision: Decision) -> Verdict:
    """Does what was decided about a part of a run that is charged."""
    part, kind = decision.part, decision.kind
    population = transaction.book.populations[run.population]
    if decision.settled:
        transaction.put(dataclasses.replace(decision.settled, finished_at=transaction.at))
    transaction.put(*(dataclasses.replace(dropped, status=Status.RELEASED) for dropped in decision.dropped))
    if kind == VerdictKind.DONE:
        assert part is not None
        if decision.settled or decision.dropped:
            transaction.note(run, part.part, "settle", "finished, as its state says")
        return Verdict(kind, run.run_id, part.part, part.claim, transaction.book.balance(population), NOTHING)
    if run.key_fingerprint != request.key_fingerprint:
        transaction.put(dataclasses.replace(run, key_fingerprint=request.key_fingerprint))
    taken: dict[str, Any] = {
        "input_fingerprint": request.input_fingerprint,
        "state_before": request.state_fingerprint,
        "claim": transaction.counter,
        **vars(transaction.actor),
    }
    if part is None:
        part = Part(
            part=len(transaction.book.parts) + 1,
            run_id=run.run_id,
            first_window=request.first_window,
            end_window=request.end_window,
            state_after="",
            status=Status.RESERVED,
            reserved_at=transaction.at,
            **taken,
        )
    else:
        part = dataclasses.replace(part, **taken)
    transaction.put(part)
    balance = transaction.note(run, part.part, "reserve" if kind == VerdictKind.NEW else str(kind))
    claim, was_publishing = transaction.counter, part.was_publishing
    return Verdict(kind, run.run_id, part.part, claim, balance, NOTHING, was_publishing=was_publishing)


def ended(run: Run, parts: Sequence[Part], status: Status) -> Iterator[Run | Part]:
    """The run and those of its parts that are open, with this status. parts: all of the run."""
    yield dataclasses.replace(run, status=status)
    for part in parts:
        if part.status not in (Status.FINISHED, Status.RELEASED):
            yield dataclasses.replace(part, status=status)


def check_fits(book: Book, request: PartRequest, caps: Caps | None) -> Verdict | None:
    """What reserving this run would say or raise now; None for a run that the ledger knows. Changes nothing."""
    if request.run_id in book.runs:
        return None
    population = _population_of(book, request, caps, at="")
    _, takes = _prices(book, population, request, "Nothing was read.")
    before = book.balance(population)
    after = Balance(population, before.runs + 1, before.total + takes)
    return Verdict(VerdictKind.NEW, request.run_id or "", 0, 0, after, takes)


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
        return Population(request.population, USER, rule, at)
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
