"""Plans by mode: one word for what users pay for, for counts and for the noise."""

from __future__ import annotations

import dataclasses
from typing import Any

from dp_transforms import WindowSchedule
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.plan.calibration import DEFAULT_FORGET_AFTER, calibrate_contributions, checked_contributions
from dp_transforms.plan.plan import DEFAULT_MAX_ITEMS, DEFAULT_MAX_USERS, Plan, plan_for
from dp_transforms.plan.records import Budget
from dp_transforms.plan.rounds import rounds_of

_CHOICES: dict[str, dict[str, Any]] = {
    "contributions": {"charge": "contributions"},  # in one round, unless a use is given
    "contributions-twice": {"charge": "contributions", "use": "stream"},
    "hits": {"charge": "hits"},
    "hits-with-counts": {"charge": "hits", "counts": True},
    "kms21": {"charge": "hits", "noise": "printed"},
}


def plan_of_mode(mode: str, **choices: Any) -> Plan:
    """choices: of `Plan.for_contributions` or `Plan.for_hits`."""
    if (
        mode == "contributions"
        and "use" not in choices
        and (choices.get("public_items") is None or choices.get("also_open"))
    ):
        choices = {"forget_after": min(DEFAULT_FORGET_AFTER, choices["schedule"].horizon), **choices}  # one round
    return plan_for(**{**_CHOICES[mode], **choices})


_MODES = {"names": "hits", "counts": "hits-with-counts", "printed": "kms21"}


def mode_of_plan(plan: Plan) -> str:
    return "contributions" if plan.hits is None else _MODES[plan.hits.mode]


def plan_in_rounds(
    schedule: WindowSchedule,
    *,
    epsilon: float = 2,
    delta: float = 1e-9,
    max_users: int = DEFAULT_MAX_USERS,
    max_items: int = DEFAULT_MAX_ITEMS,
    usual_contributions: tuple[int, int] | None = None,
    most_contributions: int | None = None,
    **of_rounds: Any,
) -> Plan:
    """With rounds, whatever the rule says. of_rounds: fields of `Rounds` that are others than usual."""
    budget = Budget(epsilon=epsilon, delta=delta, schedule=schedule, max_users=max_users, max_items=max_items)
    rounds = dataclasses.replace(rounds_of(schedule), **of_rounds)
    contributions = checked_contributions(usual_contributions, most_contributions)
    return Plan(**vars(budget), **calibrate_contributions(budget, *contributions, rounds=rounds))


def units_of_shares(*percents: int) -> tuple[int, ...]:
    """Of a user budget in each round. percents: of what is left."""
    units, left = list[int](), BUDGET_UNITS
    for percent in percents:
        units.append(left * percent // 100)
        left -= units[-1]
    return tuple(units)
