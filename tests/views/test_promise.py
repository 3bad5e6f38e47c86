"""The numbers of a promise are never told more private than they are."""

import math

import pytest

from dp_transforms.plan.plan import Plan
from dp_transforms.views.page.promise import Budget, chance, in_three_sentences, not_covered, one_in, up
from dp_transforms.views.page.report_page import plan_facts
from tests.helpers.page_reports import hourly_plan


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 0.0), (0.5, 1e-6), (2.0, 1e-9), (8.0, 0.01), (40.0, 0.1)])
def test_the_bound_on_guesses_is_that_of_the_best_test_and_rounded_up(epsilon, delta):
    """Oracle: a pair of laws that is exactly (epsilon, delta)-DP, guessed by the better of the two at each outcome."""
    inside = (1 - delta) / (1 + math.exp(epsilon))
    first, second = [delta, math.exp(epsilon) * inside, inside, 0.0], [0.0, inside, math.exp(epsilon) * inside, delta]
    assert sum(first) == pytest.approx(1)
    best = sum(max(pair) for pair in zip(first, second, strict=True)) / 2
    said = float(chance(Budget(epsilon, delta, 1)).removesuffix(" %")) / 100
    assert best - 1e-9 <= said <= best + 0.0011


def test_numbers_are_rounded_towards_less_privacy():
    assert up(7.3891) == "7.39"
    assert up(1.0001) == "1.01"
    assert one_in(3e-9) == "1 in 333,333,333"
    assert "more than 1e300" in in_three_sentences(Budget(1e4, 1e-9, 3))[0]
    assert "epsilon of 4 instead of 2" in " ".join(not_covered(Budget(2.0, 1e-9, 3), None))
    plan = Plan.for_hits(epsilon=1.2345642, delta=1.0000004e-9, schedule=hourly_plan().schedule)
    assert "(1.2345642, 1.0000004e-09)-differentially private" in plan.guarantee
    assert "e to the power of 1.2345642" in in_three_sentences(Budget(plan.epsilon, plan.delta, 24))[0]
    facts = dict(plan_facts(plan))
    assert facts["epsilon"].startswith("1.2345642 for each user")
    assert facts["delta"].startswith("1.0000004e-09 (")
    assert chance(Budget(1e-12, 0.0, 24)) == "50.1 %"
