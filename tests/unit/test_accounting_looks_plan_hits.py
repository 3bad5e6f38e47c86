"""Plan with hits: two price lists of one purse, a threshold that is safe for both, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from dp_transforms.accounting.purse.look_prices import zone_price
from dp_transforms.accounting.purse.open_threshold import found_from
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.plan.plan import Plan
from tests.helpers.calibrated_plans import HOURLY
from tests.unit import purse_oracle


def tail(plan: Plan, margin: int) -> float:
    """``Pr[Z >= margin]``."""
    return float(purse_oracle.tail(plan.paid_looks.shape, plan.paid_looks.scale, margin))


@functools.cache
def with_hits(**changes: Any) -> Plan:
    """epsilon 2 and delta 1e-9 over `HOURLY`, except for the changes."""
    options = {"epsilon": 2.0, "delta": 1e-9, "schedule": HOURLY, "most_looks": 200, "usual_looks": (50, 200)}
    return Plan.calibrate(mode="looks", **{"hits_per_user": 2, **options, **changes})


def test_two_lists_of_one_purse() -> None:
    plan = with_hits()
    assert plan.hit_prices is not None
    assert (plan.hits_per_user, plan.hit_prices.hits, plan.paid_looks.most_looks) == (2, 2, 200)
    left = PURSE_UNITS - 2 * plan.paid_hits.units
    assert 0 < left < PURSE_UNITS
    assert PURSE_UNITS // plan.paid_looks.units[0] == left // plan.paid_hits.look_units[0] == 200
    assert plan.paid_hits.weights[-1] <= plan.paid_looks.weights[-1]
    for weights, units in (
        (plan.paid_looks.weights, plan.paid_looks.units),
        (plan.paid_hits.weights, plan.paid_hits.look_units),
    ):
        assert list(weights) == sorted(set(weights))
        assert list(units) == sorted(set(units))
    for weight, units in zip(plan.paid_hits.weights, plan.paid_hits.look_units, strict=True):
        hit_price = plan.paid_hits.units / PURSE_UNITS * plan.paid_looks.budget
        price = zone_price(
            plan.looks.noise, plan.paid_looks.order, weight, plan.paid_looks.spacing, hit_price=hit_price
        )
        assert units / PURSE_UNITS * plan.paid_looks.budget >= price


def test_the_threshold_is_safe_for_both_lists() -> None:
    """docs/guarantee.md, "Looks and hits in one purse": shares of what each list leaves for looks."""
    plan = with_hits()
    left = PURSE_UNITS - 2 * plan.paid_hits.units
    needed = [
        (tail(plan, plan.threshold - weight), plan.delta_open * units / purse)
        for weights, all_units, purse in (
            (plan.paid_looks.weights, plan.paid_looks.units, PURSE_UNITS),
            (plan.paid_hits.weights, plan.paid_hits.look_units, left),
        )
        for weight, units in zip(weights, all_units, strict=True)
    ]
    assert all(found <= allowed for found, allowed in needed)
    assert any(
        tail(plan, plan.threshold - 1 - weight) > plan.delta_open * units / left
        for weight, units in zip(plan.paid_hits.weights, plan.paid_hits.look_units, strict=True)
    )


def test_a_user_takes_the_list_with_the_larger_weight() -> None:
    plan = with_hits()
    assert plan.hit_prices is not None
    alone = dataclasses.replace(plan, hits=None)
    assert 1 < plan.hits_from < 200
    assert plan.found_from(plan.hits_from - 1) == alone.found_from(plan.hits_from - 1)
    assert plan.found_from(200) == found_from(plan.hit_prices, plan.threshold, 200) < alone.found_from(200) * 0.8


def test_looks_alone_are_chosen_where_hits_are_not_asked_for() -> None:
    for usual in ((1, 10), (50, 200)):
        plan = with_hits(usual_looks=usual, hits_per_user=None)
        assert plan.hits_per_user == 0
        assert plan == with_hits(usual_looks=usual, hits_per_user=0)
