"""How a part is reserved, within one transaction: its population, its run, what it takes, and the row that it gets."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dp_transforms.plan.lifetime_cost import (
    NOTHING,
    BudgetRule,
    Price,
    cap_units,
    from_delta_units,
    from_epsilon_units,
)
from dp_transforms.runs.ledger import rows
from dp_transforms.runs.ledger.database import Transaction
from dp_transforms.runs.ledger.errors import BudgetExceededError, RunRefusedError
from dp_transforms.runs.ledger.judgement import Decision
from dp_transforms.runs.ledger.records import (
    Balance,
    Caps,
    Part,
    PartRequest,
    Population,
    Run,
    Status,
    Verdict,
    VerdictKind,
    amount,
)


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
    if rows.is_forgotten(transaction.connection, run_id):
        raise RunRefusedError(
            f"run id {run_id} was used in a copy of this ledger that is lost: on another input it would draw the same"
            " noise. Use another run id; it pays."
        )
    if has_part and request.end_window == request.first_window:
        raise RunRefusedError("the part has no windows. Name a later --until.")
    connection = transaction.connection
    price, takes = _prices(connection, population, request, "Nothing was drawn.")
    inputs = request.input_fingerprint
    same_input = rows.run_of_input(connection, population.name, request.stream, inputs) if has_part else ""
    run = Run(
        run_id=run_id,
        population=population.name,
        stream=request.stream,
        plan_fingerprint=request.plan_fingerprint,
        release=request.cost.release,
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
    rows.write_run(connection, run)
    part = _new_part(transaction, run_id, request) if has_part else 0
    balance = note(transaction, run, part, "reserve")
    return Verdict(VerdictKind.NEW, run_id, part, transaction.counter, balance, takes, same_input)


def known_run(
    transaction: Transaction, population: Population, run: Run, request: PartRequest, decision: Decision
) -> Verdict:
    """Does what was decided about a part of a run that has paid."""
    connection, part = transaction.connection, decision.part
    if decision.settled:
        ended: dict[str, Any] = {"status": Status.FINISHED, "finished_at": transaction.at}
        rows.set_part(connection, decision.settled.part, **ended, end_window=decision.settled.end_window)
    for dropped in decision.dropped:
        rows.set_part(connection, dropped.part, status=Status.RELEASED)
    if decision.kind == VerdictKind.DONE:
        assert part is not None
        if decision.settled or decision.dropped:
            note(transaction, run, part.part, "settle", "finished, as its state says")
        balance = rows.read_balance(connection, population)
        return Verdict(decision.kind, run.run_id, part.part, part.claim, balance, NOTHING)
    if not run.key_fingerprint:
        rows.set_run(connection, run.run_id, key_fingerprint=request.key_fingerprint)
    if part is None:
        number = _new_part(transaction, run.run_id, request)
    else:
        number = part.part
        inputs, state = request.fingerprints
        changes: dict[str, Any] = {"input_fingerprint": inputs, "state_before": state, "claim": transaction.counter}
        rows.set_part(connection, number, **changes, **vars(transaction.actor))
    balance = note(transaction, run, number, str(decision.kind))
    was_publishing = part is not None and part.was_publishing
    claim = transaction.counter
    return Verdict(decision.kind, run.run_id, number, claim, balance, NOTHING, was_publishing=was_publishing)


def _new_part(transaction: Transaction, run_id: str, request: PartRequest) -> int:
    part = Part(
        part=0,
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
    return rows.write_part(transaction.connection, part)


def note(transaction: Transaction, run: Run, part: int, action: str, text: str = "") -> Balance:
    """The entry of this transaction. Returns what the population has spent with it."""
    (population,) = rows.read_populations(transaction.connection, run.population)
    balance = rows.read_balance(transaction.connection, population)
    spent = balance.total.epsilon, balance.total.delta
    transaction.enter(action, run.population, run.run_id, part, spent, text)
    return balance


def check_fits(connection: sa.Connection, request: PartRequest, caps: Caps | None) -> None:
    """Raises what reserving this run would raise now, if the ledger does not know it. Changes nothing."""
    if request.run_id is None or rows.read_run(connection, request.run_id) is None:
        population, _ = _population_of(connection, request, caps, at="")
        _prices(connection, population, request, "Nothing was read.")


def declared_population(transaction: Transaction, request: PartRequest, caps: Caps | None) -> Population:
    """The population of the request; declared now if it is new."""
    population, is_new = _population_of(transaction.connection, request, caps, transaction.at)
    if is_new:
        rows.write_population(transaction.connection, population)
    return population


def _population_of(
    connection: sa.Connection, request: PartRequest, caps: Caps | None, at: str
) -> tuple[Population, bool]:
    """The population of the request, and whether it is new: it is not written here."""
    found = rows.read_populations(connection, request.population)
    if not found:
        if caps is None:
            raise RunRefusedError(
                f"the ledger knows no population {request.population}. Declare it, once, with --max-epsilon and"
                " --max-delta: what its users may ever lose."
            )
        try:
            rule = BudgetRule.declare(caps.max_epsilon, caps.max_delta, request.cost, caps.rule)
        except ValueError as error:
            raise RunRefusedError(str(error)) from None
        return Population(request.population, request.unit, rule, at), True
    population = found[0]
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
    return population, False


def _prices(
    connection: sa.Connection, population: Population, request: PartRequest, so_far: str
) -> tuple[Price, Price]:
    """The price of the run, and what it takes: with the base of the rule if it is the first one.

    Raises BudgetExceededError, with the sentence so_far, if it does not fit.
    """
    rule, before = population.rule, rows.read_balance(connection, population)
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
