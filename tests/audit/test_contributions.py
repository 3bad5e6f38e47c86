"""The exact audit of contributions, in one round and in several: against oracles, and with planted faults."""

import dataclasses
import math

import numpy as np
import pytest

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.audit.contributions import audit_contributions
from dp_transforms.audit.noise_law import LevelsLaw, NoiseLaw, reach_of_prices
from dp_transforms.plan.plan import Plan
from tests.helpers.audited_names import audited_plan, mechanism_and_claim, plan_in_rounds, plan_with_shapes
from tests.reference import prices as price_oracle
from tests.reference.prices import level_price


@pytest.mark.parametrize(("shape", "scale"), [(1.0, 7), (1.5, 1), (2.5, 400), (3.0, 20), (4.0, 50)])
def test_the_law_of_the_noise_is_that_of_50_digits(shape, scale):
    """By quadrature; also where tails are e^-300 and less."""
    reach = (16 if shape < 2 else 8) * scale
    law = NoiseLaw(shape, scale, reach)
    margins = np.unique(np.array([-3 * scale, -1, 0, 1, 2, scale, 3 * scale, 6 * scale, reach]))
    wanted = [float(price_oracle.mpmath.log(price_oracle.tail(shape, scale, int(m)))) for m in margins]
    assert law.log_tail(margins) == pytest.approx(wanted, rel=1e-12, abs=1e-13)
    low, high = np.array([-2 * scale, -1, 2, 4 * scale]), np.array([1 - scale, 3, 4, 5 * scale])
    masses = [price_oracle.between(shape, scale, *map(int, ends)) for ends in zip(low, high, strict=True)]
    assert np.exp(law.log_mass(low, high)) == pytest.approx([*map(float, masses)], rel=1e-11, abs=0)
    assert law.log_tail(np.array([reach + 1, -reach])).tolist() == [-math.inf, 0.0]


@pytest.mark.parametrize(("shape", "order", "weight"), [(1.0, 5.0, 3), (2.5, 8.0, 6), (3.0, 17.0, 4)])
def test_the_worst_count_is_that_of_all_counts(shape, order, weight):
    """For a bit: of 50 digits, over all counts up to where nothing is left. (3, 17, 0.2) has it at e^-303."""
    scale = 20
    noise = ExponentialPower(shape, scale)
    reach = reach_of_prices(shape, order, weight, scale)
    test = LevelsLaw(NoiseLaw(shape, scale, reach + weight + 1), [0]).worst(weight, order, reach)
    margins = range(-3 * scale, 9 * scale) if shape == 3 else range(-2 * scale, 4 * scale)
    assert test.divergence == pytest.approx(price_oracle.price(shape, scale, order, weight, margins), rel=2e-7)
    spacing = math.ceil(2.5 * noise.standard_deviation)
    distances = [level * spacing for level in range(8)]
    of_levels = LevelsLaw(NoiseLaw(shape, scale, reach + weight + 1), distances).worst(weight, order, reach)
    price = level_price(noise, order, weight, spacing)
    assert test.divergence < of_levels.divergence <= price
    assert of_levels.divergence == pytest.approx(price, rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"forget_after": 0}, {"public": ("a", "b")}])
def test_a_sound_plan_passes_and_its_claims_are_nearly_attained(options):
    plan = audited_plan(**options)
    audit = audit_contributions(*mechanism_and_claim(plan))
    assert audit.violations == ()
    assert 0.9999 < audit.worst_price.ratio <= 1
    assert audit.budget_delta == pytest.approx(plan.shares.paid, rel=1e-6)
    assert audit.most_tests == plan.paid_contributions.most_tests
    if plan.public_item_count:
        assert (audit.lone_delta, audit.lone_tests) == (0.0, 0)
    else:
        assert 0.9 < audit.lone_delta / plan.delta_open <= 1
        assert audit.lone_tests == plan.paid_contributions.most_tests
        assert audit.together_delta <= plan.delta


@pytest.mark.parametrize("most_tests", [20, 3])
def test_a_sound_plan_in_rounds_passes_also_where_a_round_pays_for_one_test(most_tests):
    plan = plan_in_rounds(most_tests)
    audit = audit_contributions(*mechanism_and_claim(plan))
    assert audit.violations == ()
    assert audit.most_tests <= plan.paid_contributions.most_tests
    assert audit.budget_delta == pytest.approx(plan.shares.paid, rel=1e-6)
    assert 0.99 < audit.lone_delta / plan.delta_open <= 1
    of_round_0 = plan.paid_rounds.units[0] // plan.paid_contributions.units[0]
    assert audit.lone_tests == of_round_0, "no later round tests lone items"
    assert audit.together_delta <= plan.delta


def with_few_weights_first(plan):
    """The first round has no weight for many tests. All others have."""
    paid = plan.paid_contributions
    dear = len([units for units in paid.units if 3 * units <= plan.paid_rounds.units[0]])
    fewer = dataclasses.replace(paid, usual_tests=(1, 2), weights=paid.weights[dear:], units=paid.units[dear:])
    return Plan.from_json(dataclasses.replace(plan, contributions=fewer).to_json())


@pytest.mark.parametrize("changed", [lambda plan: plan, with_few_weights_first])
def test_a_sound_plan_with_a_price_list_for_each_round_passes(changed):
    plan = changed(plan_with_shapes())
    mechanism, claim = mechanism_and_claim(plan)
    assert len(mechanism.later) == len(plan.units_of_rounds) - 1
    audit = audit_contributions(mechanism, claim)
    assert audit.violations == ()
    assert audit.prices == sum(len(prices.weights) for prices in plan.prices_of_rounds)
    assert plan.units_of_rounds[0] // plan.paid_contributions.units[0] == audit.lone_tests
    assert plan.paid_contributions.most_tests <= claim.most_tests == 200


# ---------------------------------------------------------------------------------------------------------------------
# Planted faults: each is found by one check, and where that is weakened the test of the fault fails
# ---------------------------------------------------------------------------------------------------------------------

PRICE, BUDGET, MOST = "but its price is", "a full budget of", "a user budget pays for"
ALONE, TOGETHER = "holds alone", "together they come to"


def price_of_a_smaller_weight(mechanism, claim):
    """Each weight costs what the one before it should, and the first what it should."""
    first, *rest = mechanism.units
    return dataclasses.replace(mechanism, units=(first, first + 1, *rest[:-1])), claim


def narrow_levels(mechanism, claim):
    """Three standard deviations apart, with the prices of five and a half."""
    return dataclasses.replace(mechanism, spacing=mechanism.spacing * 3 // 5), claim


def no_floor(mechanism, claim):
    """A weight of half the smallest, at its own price: a budget pays for four times as many tests, and the plan says
    so, but the threshold is the old one."""
    noise, weight = ExponentialPower(mechanism.shape, mechanism.scale), mechanism.weights[0] // 2
    price = level_price(noise, claim.order, weight, mechanism.spacing)
    units = math.ceil(price / claim.budget * BUDGET_UNITS * (1 + 1e-9))
    weights, prices = (weight, *mechanism.weights), (units, *mechanism.units)
    found = dataclasses.replace(mechanism, weights=weights, units=prices)
    return found, dataclasses.replace(claim, most_tests=found.most_tests)


def more_tests_than_declared(mechanism, claim):
    return mechanism, dataclasses.replace(claim, most_tests=claim.most_tests - 1)


def lower_threshold(by):
    return lambda mechanism, claim: (dataclasses.replace(mechanism, threshold=mechanism.threshold - by), claim)


def rounds_that_cost(*shares):
    budgets = tuple(int(share * BUDGET_UNITS) for share in shares)
    return lambda mechanism, claim: (dataclasses.replace(mechanism, budgets=budgets), claim)


def in_round(number, fault):
    """In the price list of a later round, which is audited beside the first one."""

    def planted(mechanism, claim):
        later, claim = fault(mechanism.later[number - 1], claim)
        return dataclasses.replace(mechanism, later=(later,)), claim

    return planted


@pytest.mark.parametrize(
    ("make", "fault", "found_by"),
    [
        (audited_plan, price_of_a_smaller_weight, {PRICE}),
        (audited_plan, narrow_levels, {PRICE}),
        (audited_plan, no_floor, {ALONE, TOGETHER}),
        (audited_plan, more_tests_than_declared, {MOST}),
        (audited_plan, lower_threshold(12), {ALONE}),
        (plan_in_rounds, lower_threshold(600), {ALONE}),
        (plan_in_rounds, rounds_that_cost(0.1, 0.2, 0.3, 0.5), {BUDGET, MOST}),
        (plan_in_rounds, rounds_that_cost(0.3, 0.1, 0.1, 0.5), {ALONE}),
        (plan_with_shapes, in_round(3, price_of_a_smaller_weight), {PRICE}),
        (plan_with_shapes, in_round(3, narrow_levels), {PRICE}),
        (plan_with_shapes, in_round(3, rounds_that_cost(1)), {BUDGET, MOST}),
    ],
)
def test_a_planted_fault_is_found_by_its_check(make, fault, found_by):
    violations = " ".join(audit_contributions(*fault(*mechanism_and_claim(make()))).violations)
    assert (
        found_by
        <= {check for check in (PRICE, BUDGET, MOST, ALONE, TOGETHER) if check in violations}
        <= found_by | {TOGETHER}
    )
