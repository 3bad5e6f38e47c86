"""What runs cost for ever, how it adds up under caps, and what the rules allow."""

import dataclasses
import functools
import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.lifetime_cost import (
    BASIC,
    NOTHING,
    RENYI,
    BudgetRule,
    LifetimeCost,
    Price,
    cap_units,
    delta_units,
    epsilon_units,
    from_delta_units,
    from_epsilon_units,
    pure_divergence,
)
from tests.helpers.modes import plan_of_mode

SCHEDULE = WindowSchedule.fixed("2026-01-01", "2026-01-03", 3600)
EPSILON, DELTA = 10**15, 10**30  # units
MODES = ["contributions", "hits", "hits-with-counts", "kms21"]


@functools.cache
def plan(epsilon=0.5, delta=1e-9, mode="contributions"):
    return plan_of_mode(mode, epsilon=epsilon, delta=delta, schedule=SCHEDULE)


def cost(**choices):
    return LifetimeCost.of_plan(plan(**choices))


def basic(*caps):
    return BudgetRule(BASIC, *cap_units(*caps))


def renyi(max_epsilon, max_delta, first):
    rule = BudgetRule.renyi(*cap_units(max_epsilon, max_delta), first)
    assert rule is not None
    return rule


def runs_that_fit(rule, each):
    """One by one; `BudgetRule.runs_that_fit` takes larger steps."""
    total, runs = NOTHING, 0
    while rule.allows(rule.total(total + (price := rule.price(each, total)))):
        total, runs = total + price, runs + 1
    assert rule.runs_that_fit(each) == runs
    return runs


# --- The grid


@pytest.mark.parametrize(
    ("value", "units"),
    [
        (0.1, EPSILON // 10),
        ("0.1", EPSILON // 10),
        (Decimal("1e-15"), 1),
        (1e-16, 1),
        (1.0000000000000002, EPSILON + 1),
        ("1.00000000000000000000000000000000000001", EPSILON + 1),
    ],
)
def test_amounts_are_rounded_up_to_the_grid(value, units):
    assert epsilon_units("epsilon", value) == units


@given(st.floats(1e-12, 1e6))
def test_the_grid_never_rounds_down(value):
    """Against what the float prints as; it is within 2^-53 of the float itself."""
    up = from_epsilon_units(epsilon_units("epsilon", value))
    assert Decimal(0) <= up - Decimal(repr(value)) < Decimal("1e-15")
    assert abs(Decimal(repr(value)) / Decimal(value) - 1) <= Decimal(2) ** -53


def test_caps_are_rounded_down():
    assert cap_units("4.0000000000000009", "1.9e-30") == (4 * EPSILON, 1)
    assert cap_units("0.999999999999999" + 30 * "9", 1e-8) == (EPSILON - 1, DELTA // 10**8)


@pytest.mark.parametrize(
    "caps", [("9e-16", 1e-8), (4, "9e-31"), (1001, 1e-8), (4, 0.011), (float("nan"), 1e-8), (4, 1e-310), (True, 1e-8)]
)
def test_caps_that_no_rule_can_keep_are_refused(caps):
    with pytest.raises(ValueError, match=r"^max_(epsilon|delta) must ") as refusal:
        BudgetRule.declare(*caps, cost())
    assert str(refusal.value).endswith(tuple(f"got {cap!r}." for cap in caps))


# --- What a run costs


@pytest.mark.parametrize("mode", MODES)
def test_a_plan_keeps_its_promise_for_the_number_that_it_prints_as(mode):
    """The proofs behind a plan leave room for far more than the last digit of a float."""
    made = plan(mode=mode, epsilon=0.7, delta=1.1e-9)
    if made.contributions is None:
        assert made.charged_hits.proof.delta(made.epsilon * (1 - 1e-14)) <= made.shares.paid * (1 + 1e-11)
        return
    paid = made.contributions
    from dp_accounting.rdp import rdp_privacy_accountant  # slow to load: here, not for all tests

    proved, _ = rdp_privacy_accountant.compute_delta([paid.order], [paid.budget], made.epsilon * (1 - 1e-14))
    assert proved <= made.shares.paid * (1 - 1e-14)


def test_the_cost_of_contributions_has_its_parts():
    made, found = plan(), cost()
    assert made.contributions is not None
    assert (found.epsilon, found.delta) == (EPSILON // 2, DELTA // 10**9)
    assert Decimal(found.order) == Decimal(made.contributions.order)
    assert 0 <= from_epsilon_units(found.divergence) - Decimal(made.contributions.budget) < Decimal("1e-15")
    events = Decimal(made.delta_open) + Decimal(made.shares.hash)
    assert 0 <= from_delta_units(found.delta_events) - events < Decimal("1e-30")
    assert found.distance * 1e-45 == pytest.approx(made.shares.sampling / (1 + math.exp(made.epsilon)), rel=1e-12)
    assert found.distance * (1 + math.exp(made.epsilon)) * 1e-45 >= made.shares.sampling * (1 - 1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.7, 1.1e-9), (8.0, 1e-6)])
def test_one_run_fits_into_caps_of_its_own_size_and_takes_all_of_them(mode, epsilon, delta):
    one = cost(epsilon=epsilon, delta=delta, mode=mode)
    rule = BudgetRule.declare(epsilon, delta, one)
    assert runs_that_fit(rule, one) == 1
    assert rule.total(rule.price(one)).epsilon == rule.max_epsilon
    below = float(np.nextafter(epsilon, 0)) - 2e-15
    assert runs_that_fit(BudgetRule.declare(below, delta, one), one) == 0


# --- Which rule


def test_the_first_plan_chooses_the_rule_by_which_more_runs_of_it_fit():
    """That of contributions adds divergences up. Its noise may be so far from its law that each run but the first
    costs as much as by the basic rule, or more."""
    names, hits = cost(), cost(mode="hits")
    assert runs_that_fit(basic(4, 1e-7), names) == runs_that_fit(BudgetRule.declare(4, 1e-7, hits), hits) == 8
    assert (BudgetRule.declare(4, 1e-7, names).kind, BudgetRule.declare(4, 1e-7, hits).kind) == (RENYI, BASIC)
    assert runs_that_fit(BudgetRule.declare(4, 1e-7, names), names) == 18
    far = dataclasses.replace(names, distance=9 * 10**29)
    assert (runs_that_fit(renyi(12, 2e-9, far), far), runs_that_fit(basic(12, 2e-9), far)) == (1, 2)
    assert BudgetRule.declare(12, 2e-9, far) == basic(12, 2e-9)
    of_no_use = [(60, 1e-8, names), (200, 1e-8, names), (4, 1e-12, names), (4, 1e-8, hits)]
    for *caps, first in (*of_no_use, (4, 1e-8, dataclasses.replace(names, order="1000001"))):
        assert BudgetRule.renyi(*cap_units(*caps), first) is None
        assert BudgetRule.declare(*caps, first) == basic(*caps)


@pytest.mark.parametrize("max_epsilon", [9, 14, 20])
def test_distances_of_sampled_noise_leave_room_for_the_runs_that_epsilon_allows(max_epsilon):
    """With a small delta and a large max_epsilon they are more than one part in 10^12."""
    first = LifetimeCost(8 * 10**15, 10**18, "6", 3 * 10**15, delta_events=10**16, distance=10**11)
    rule = BudgetRule.declare(max_epsilon, 1e-4, first)
    assert runs_that_fit(rule, first) == (rule.max_epsilon - rule.base.epsilon) // first.divergence
    assert rule.sampling <= delta_units("max_delta", 1e-4) // 1000


@pytest.mark.parametrize("order", ["1.5", "40"])
@pytest.mark.parametrize("max_delta", [1e-15, 1e-11])
def test_a_cap_below_the_delta_of_the_first_plan_costs_what_the_conversion_takes(order, max_delta):
    """The formula of docs/guarantee.md, "Conversion", in floats."""
    rule, alpha = BudgetRule.declare(900, max_delta, LifetimeCost(10**15, 10**22, order, 10**14)), float(order)
    delta = rule.base.delta / DELTA
    loss = (math.log(1 / delta) + alpha * math.log(1 - 1 / alpha) - math.log(alpha - 1)) / (alpha - 1)
    assert rule.base.epsilon / EPSILON == pytest.approx(max(loss, 0.9), rel=1e-12)
    assert delta == pytest.approx(max_delta, rel=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        *({"max_epsilon": 0}, {"max_delta": 10**28 + 1}, {"kind": "pld"}, {"base_epsilon": 1}),
        *({"order": order} for order in ("", "1", "1000001")),
    ],
)
def test_a_rule_that_cannot_be_is_not_read(changes):
    with pytest.raises((ValueError, ArithmeticError)):
        dataclasses.replace(BudgetRule.declare(4, 1e-8, cost()), **changes)


# --- What a rule charges


@pytest.mark.parametrize(("max_epsilon", "max_delta"), [(4, 1e-8), (10, 2e-9), (0.5, 1e-9)])
def test_what_the_rule_renyi_allows_is_proved_by_an_independent_conversion(max_epsilon, max_delta):
    """dp_accounting on the sum of the divergences; the rest of delta by hand, in floats."""
    made, one = plan(), cost()
    runs, paid = runs_that_fit(BudgetRule.declare(max_epsilon, max_delta, one), one), made.contributions
    from dp_accounting.rdp import rdp_privacy_accountant

    of_tests, _ = rdp_privacy_accountant.compute_delta([paid.order], [runs * paid.budget], max_epsilon)
    distance = made.shares.sampling / (1 + math.exp(made.epsilon))
    rest = runs * (made.delta_open + made.shares.hash + distance * (1 + math.exp(max_epsilon)))
    assert of_tests + rest <= max_delta * (1 + 1e-9)
    assert runs >= 1


def test_distances_of_sampled_noise_add_up_to_a_limit_of_their_own():
    """Each counts (1 + e^max_epsilon) times, and not with the factor of its own plan."""
    each = dataclasses.replace(cost(), distance=10**27)
    rule = BudgetRule.declare(4, 1e-7, cost())
    charged = dataclasses.replace(rule, sampling=DELTA).price(each).sampling
    assert charged / DELTA == pytest.approx(1e-18 * (1 + math.exp(4)), rel=1e-9, abs=0)
    one, less = (dataclasses.replace(rule, sampling=limit) for limit in (charged, charged - 1))
    assert one.allows(one.total(one.price(each)))
    alone = Price(pure_divergence(rule.order, each.epsilon), each.delta, 0)
    assert less.price(each) == one.price(each, one.price(each)) == alone != one.price(each)
    assert not less.allows(less.total(one.price(each))), "of a repair"
    assert runs_that_fit(one, each) > 1, "and further ones cost as much as those of another order"


def test_another_run_costs_renyi_of_randomized_response_and_its_whole_delta():
    rule = BudgetRule.declare(4, 1e-7, cost())
    for other in (cost(mode="hits"), dataclasses.replace(cost(), order="3.5")):
        assert rule.price(other) == Price(pure_divergence(rule.order, other.epsilon), other.delta, 0)
    higher = dataclasses.replace(cost(), order="900")
    assert rule.price(higher).epsilon == cost().divergence, "a divergence of a larger order covers this one"


@pytest.mark.parametrize("order", [1.01, 17.0, 999.0])
@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 3.0])
def test_the_divergence_of_a_pure_run_is_that_of_randomized_response(order, epsilon):
    p = 1 / (1 + math.exp(-epsilon))
    terms = [order * math.log(p) + (1 - order) * math.log1p(-p), order * math.log1p(-p) + (1 - order) * math.log(p)]
    direct = float(np.logaddexp(*terms)) / (order - 1)
    found = pure_divergence(str(Decimal(order)), epsilon_units("epsilon", epsilon)) / EPSILON
    assert found == pytest.approx(direct, rel=1e-3 if epsilon < 1e-3 else 1e-9, abs=1e-12)
    assert found <= min(epsilon, order * epsilon**2 / 2) * (1 + 1e-9) + 1e-15, "Bun and Steinke 2016, Proposition 1.4"
