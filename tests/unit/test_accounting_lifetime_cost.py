"""What runs cost for ever: amounts on a grid, the rules that add them up, and what each is checked against."""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.accounting.purse.price_list import delta_of_budget
from dp_transforms.plan.lifetime_cost import BudgetRule, epsilon_units, from_delta_units, from_epsilon_units
from tests.helpers.lifetime_costs import DELTA, EPSILON, cost, plan

# --- The grid


@pytest.mark.parametrize(
    ("value", "units"),
    [
        (0.1, EPSILON // 10),
        ("0.1", EPSILON // 10),
        (2, 2 * EPSILON),
        (Decimal("1e-15"), 1),
        (1e-16, 1),
        (1.0000000000000002, EPSILON + 1),
        ("1.00000000000000000000000000000000000001", EPSILON + 1),
    ],
)
def test_amounts_are_rounded_up_to_the_grid(value: Any, units: int) -> None:
    assert epsilon_units("epsilon", value) == units


@given(st.floats(1e-12, 1e6))
def test_the_grid_never_rounds_down(value: float) -> None:
    """Against what the float prints as; it is within 2^-53 of the float itself."""
    up = from_epsilon_units(epsilon_units("epsilon", value))
    assert Decimal(0) <= up - Decimal(repr(value)) < Decimal("1e-15")
    assert abs(Decimal(repr(value)) / Decimal(value) - 1) <= Decimal(2) ** -53


@pytest.mark.parametrize("mode", ["looks", "hits", "hits-with-counts", "kms21"])
def test_a_plan_keeps_its_promise_for_the_number_that_it_prints_as(mode: str) -> None:
    """The proofs behind a plan leave room for far more than the last digit of a float."""
    made = plan(mode=mode, epsilon=0.7, delta=1.1e-9)
    if made.looks is not None:
        proved = delta_of_budget(made.looks.order, made.looks.budget, made.epsilon * (1 - 1e-14))
        assert proved <= made.shares.paid * (1 - 1e-14)
    else:
        hits = made.charged_hits
        proof = hits.rules.proof(hits.noise, hits.per_user)
        assert proof.delta(made.epsilon * (1 - 1e-14)) <= made.shares.paid * (1 + 1e-11)


# --- Costs


def test_the_cost_of_names_has_its_parts() -> None:
    made, found = plan(), cost()
    assert made.looks is not None
    assert (found.epsilon, found.delta) == (EPSILON // 2, DELTA // 10**9)
    assert Decimal(found.order) == Decimal(made.looks.order)
    assert 0 <= from_epsilon_units(found.divergence) - Decimal(made.looks.budget) < Decimal("1e-15")
    events = Decimal(made.delta_open) + Decimal(made.shares.hash)
    assert 0 <= from_delta_units(found.delta_events) - events < Decimal("1e-30")
    assert found.distance * 1e-45 == pytest.approx(made.shares.sampling / (1 + math.exp(made.epsilon)), rel=1e-12)
    assert found.distance * (1 + math.exp(made.epsilon)) * 1e-45 >= made.shares.sampling * (1 - 1e-12)


def test_a_histogram_of_the_same_users_costs_too() -> None:
    with_histogram = cost(epsilon=1.96, activity_epsilon=0.04)
    assert with_histogram.epsilon == 2 * EPSILON
    assert with_histogram.activity == EPSILON // 25
    rule = BudgetRule.declare(4, 1e-8, with_histogram)
    assert rule.price(with_histogram).epsilon - with_histogram.divergence == EPSILON // 25


def test_costs_that_cannot_be_are_refused() -> None:
    for changes in ({"epsilon": 0}, {"delta": 0}, {"divergence": -1}, {"delta_events": 0.5}, {"order": ""}):
        with pytest.raises(ValueError, match="must"):
            dataclasses.replace(cost(), **changes)  # type: ignore[arg-type]
