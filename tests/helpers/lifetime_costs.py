"""Plans and what their runs cost for ever, for tests of the accounting over runs."""

from __future__ import annotations

import collections
import decimal
import functools
import itertools
import math
from decimal import Decimal
from typing import Any

from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.lifetime_cost import BASIC, NOTHING, BudgetRule, LifetimeCost, cap_units
from tests.helpers.modes import plan_of_mode

SCHEDULE = WindowSchedule.fixed("2026-01-01", "2026-01-03", 3600)
EPSILON = 10**15
DELTA = 10**30


@functools.cache
def plan(epsilon: float = 0.5, delta: float = 1e-9, mode: str = "looks", **choices: Any) -> Plan:
    return plan_of_mode(mode, epsilon=epsilon, delta=delta, schedule=SCHEDULE, **choices)


@functools.cache
def cost(**choices: Any) -> LifetimeCost:
    return LifetimeCost.of_plan(plan(**choices))


def basic(max_epsilon: float | str, max_delta: float | str) -> BudgetRule:
    return BudgetRule(BASIC, *cap_units(max_epsilon, max_delta))


def renyi(max_epsilon: float | str, max_delta: float | str, first: LifetimeCost) -> BudgetRule:
    rule = BudgetRule.renyi(*cap_units(max_epsilon, max_delta), first)
    assert rule is not None
    return rule


def runs_that_fit(rule: BudgetRule, each: LifetimeCost) -> int:
    total, runs = NOTHING, 0
    while rule.allows(rule.total(total + (price := rule.price(each, total)), runs + 1)):
        total, runs = total + price, runs + 1
    assert rule.runs_that_fit(each) == runs
    return runs


def exact_delta(epsilon: Decimal, draws: dict[Decimal, int]) -> Decimal:
    """Of independent randomized responses together: for each epsilon of one, how many. With 60 digits."""
    with decimal.localcontext(prec=60):
        losses = {Decimal(0): Decimal(1)}
        for each, count in draws.items():
            p = each.exp() / (1 + each.exp())
            terms = [
                (each * (2 * k - count), math.comb(count, k) * p**k * (1 - p) ** (count - k)) for k in range(count + 1)
            ]
            sums: collections.defaultdict[Decimal, Decimal] = collections.defaultdict(Decimal)
            for (so_far, weight), (loss, share) in itertools.product(losses.items(), terms):
                sums[so_far + loss] += weight * share
            losses = dict(sums)
        return sum((w * (1 - (epsilon - loss).exp()) for loss, w in losses.items() if loss > epsilon), Decimal(0))
