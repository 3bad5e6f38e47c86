"""LooksPlan with hits: two price lists of one purse, a threshold that is safe for both, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from typing import Any

import pytest

from dp_transforms.accounting.purse.look_prices import zone_price
from dp_transforms.accounting.purse.open_threshold import found_from
from dp_transforms.plan.looks_plan import LooksPlan
from dp_transforms.plan.release_plan import ReleasePlan
from tests.helpers.calibrated_plans import DOMAIN, HOURLY
from tests.helpers.plan_files import changed_plan
from tests.unit import purse_oracle


def tail(plan: LooksPlan, margin: int) -> float:
    """``Pr[Z >= margin]``."""
    return float(purse_oracle.tail(plan.shape, plan.scale, margin))


@functools.cache
def with_hits(**changes: Any) -> LooksPlan:
    """epsilon 2 and delta 1e-9 over `HOURLY`, except for the changes."""
    options = {"epsilon": 2.0, "delta": 1e-9, "schedule": HOURLY, "most_looks": 200, "usual_looks": (50, 200)}
    return LooksPlan.calibrate(mode="looks", **{"hits_per_user": 2, **options, **changes})


def test_two_lists_of_one_purse() -> None:
    plan = with_hits()
    assert plan.hit_prices is not None
    assert (plan.hits_per_user, plan.hit_prices.hits, plan.most_looks) == (2, 2, 200)
    left = plan.purse - 2 * plan.hit_units
    assert 0 < left < plan.purse
    assert plan.purse // plan.units[0] == left // plan.hit_look_units[0] == 200
    assert plan.hit_weights[-1] <= plan.weights[-1]
    for weights, units in ((plan.weights, plan.units), (plan.hit_weights, plan.hit_look_units)):
        assert list(weights) == sorted(set(weights))
        assert list(units) == sorted(set(units))
    for weight, units in zip(plan.hit_weights, plan.hit_look_units, strict=True):
        hit_price = plan.hit_units / plan.purse * plan.budget
        price = zone_price(plan.noise, plan.order, weight, plan.spacing, hit_price=hit_price)
        assert units / plan.purse * plan.budget >= price


def test_the_threshold_is_safe_for_both_lists() -> None:
    """docs/guarantee.md, "Looks and hits in one purse": shares of what each list leaves for looks."""
    plan = with_hits()
    left = plan.purse - 2 * plan.hit_units
    needed = [
        (tail(plan, plan.threshold - weight), plan.delta_open * units / purse)
        for weights, all_units, purse in (
            (plan.weights, plan.units, plan.purse),
            (plan.hit_weights, plan.hit_look_units, left),
        )
        for weight, units in zip(weights, all_units, strict=True)
    ]
    assert all(found <= allowed for found, allowed in needed)
    assert any(
        tail(plan, plan.threshold - 1 - weight) > plan.delta_open * units / left
        for weight, units in zip(plan.hit_weights, plan.hit_look_units, strict=True)
    )


def test_a_user_takes_the_list_with_the_larger_weight() -> None:
    plan = with_hits()
    assert plan.hit_prices is not None
    alone = dataclasses.replace(plan, hits_per_user=0, hit_units=0, hits_from=0, hit_weights=(), hit_look_units=())
    assert 1 < plan.hits_from < 200
    assert plan.found_from(plan.hits_from - 1) == alone.found_from(plan.hits_from - 1)
    assert plan.found_from(200) == found_from(plan.hit_prices, plan.threshold, 200) < alone.found_from(200) * 0.8


def test_looks_alone_are_chosen_where_hits_are_not_asked_for() -> None:
    for usual in ((1, 10), (50, 200)):
        plan = with_hits(usual_looks=usual, hits_per_user=None)
        assert plan.hits_per_user == 0
        assert plan == with_hits(usual_looks=usual, hits_per_user=0)


def test_hits_in_a_known_domain_and_in_json() -> None:
    for plan in (with_hits(), with_hits(domain=DOMAIN)):
        assert ReleasePlan.from_json(plan.to_json()) == plan
        assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301
    assert with_hits(domain=DOMAIN).delta_open == 0
    assert with_hits(domain=DOMAIN).expected_false_reports <= 0.05


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: {"hits_per_user": 3}, "most_looks must be"),
        (lambda p: {"hits_per_user": 10**4}, "hits_per_user must be a whole number in 0"),
        (lambda p: {"hits_per_user": 1}, "most_looks must be"),
        (lambda p: {"hit_units": p.hit_units * 9 // 10}, "weight .* costs"),
        (lambda p: {"hit_units": p.purse}, "leave nothing of a purse|hit_units must be"),
        (lambda p: {"hit_look_units": (p.hit_look_units[0] + 10**5, *p.hit_look_units[1:])}, "most_looks must be 199"),
        (lambda p: {"hit_look_units": (*p.hit_look_units[:-1], p.hit_look_units[-1] * 9 // 10)}, "weight .* costs"),
        (lambda p: {"hit_weights": p.weights[-len(p.hit_weights) :]}, "weight .* costs"),
        (lambda p: {"hit_weights": (*p.hit_weights[:-1], p.weights[-1] + 1)}, "must be at most"),
        (lambda p: {"hit_weights": ()}, "one length"),
        (lambda p: {"hit_weights": ["a"]}, "each of hit_weights must be a whole number"),
        (lambda p: {"weights": ["a"]}, "each of weights must be a whole number"),
        (lambda p: {"weights": []}, "weights and units must have one length"),
        (lambda p: {"hit_weights": 5}, "hit_weights must be at most 1,000 whole numbers"),
        (lambda p: {"hits_from": p.hits_from + 1}, f"hits_from must be {with_hits().hits_from}"),
        (lambda p: {"threshold": p.threshold - 1}, "threshold must be >="),
    ],
)
def test_tampered_hits_are_refused(change: Any, said: str) -> None:
    plan = with_hits()
    with pytest.raises(ValueError, match=said):
        ReleasePlan.from_json(changed_plan(plan, **change(plan)))
