"""Random plans with noise and prices of their own in each round: what they claim, by independent arithmetic of 50
digits."""

import itertools
import random

import mpmath
import pytest

from dp_transforms import Plan, WindowSchedule
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from tests.reference.prices import between, excess, tail, tail_of

SCHEDULE = WindowSchedule.fixed("2026-01-01", "2026-01-15", 3600)


def random_plan(seed):
    draws = random.Random(seed)
    first = draws.choice([1, 3, 10, 100])
    return Plan.for_contributions(
        epsilon=draws.uniform(0.3, 4),
        delta=10 ** -draws.uniform(5, 11),
        schedule=SCHEDULE,
        usual_contributions=(first, first * draws.choice([10, 100])),
        most_contributions=draws.choice([1000, 3000, 10_000]),
    )


def price_at(prices, weight, margin):
    """The divergence of a test with levels, for the count of the others that is so far below the first boundary."""
    law = prices.noise.shape, prices.noise.scale
    bounds = [margin + step * prices.spacing for step in range(-2, 4)]

    def world(moved):
        cells = [between(*law, low - moved, high - moved) for low, high in itertools.pairwise(bounds)]
        return [tail(*law, 1 - bounds[0] + moved), *cells, tail(*law, bounds[-1] - moved)]

    with_user, without = world(weight), world(0)
    ways = (with_user, without), (without, with_user)
    return max(mpmath.log1p(excess(*pair, prices.order)) / (prices.order - 1) for pair in ways)


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.nightly)])
def test_what_a_plan_in_rounds_claims_holds_by_independent_arithmetic(seed):
    plan = random_plan(seed)
    paid, units, lists = plan.paid_contributions, plan.paid_rounds.units, plan.prices_of_rounds
    with mpmath.workdps(50):
        assert sum(units) <= BUDGET_UNITS
        assert {(prices.order, prices.budget) for prices in lists} == {(paid.order, paid.budget)}
        lam = mpmath.mpf(paid.order) - 1
        proved = (
            mpmath.exp(lam * (mpmath.mpf(paid.budget) - plan.epsilon)) * (1 - 1 / mpmath.mpf(paid.order)) ** paid.order
        )
        assert proved / lam <= plan.shares.paid
        assert sum(filter(None, vars(plan.shares).values())) <= plan.delta
        for prices in {prices.noise.shape: prices for prices in lists}.values():
            for place in (0, len(prices.weights) // 2, len(prices.weights) - 1):
                weight, claimed = prices.weights[place], mpmath.mpf(paid.budget) * prices.units[place] / BUDGET_UNITS
                reach = prices.noise.scale * 4
                worst = max(price_at(prices, weight, margin) for margin in range(-reach // 4, reach, reach // 24))
                assert 0.5 * claimed < worst <= claimed
        first = lists[0]
        for weight, cost in list(zip(first.weights, first.units, strict=True))[:: len(first.weights) // 8]:
            if cost <= units[0]:
                lone = tail_of(first.noise, plan.threshold - weight)
                assert lone <= plan.delta_open * mpmath.mpf(cost) / units[0]
