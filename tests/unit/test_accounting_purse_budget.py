"""The budget of an order: reference value, dp_accounting, and the exact delta of Gaussian noise."""

from __future__ import annotations

import math

import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.stats import norm

from dp_transforms.accounting.purse.price_list import delta_of_budget, order_budget
from tests.unit.purse_oracle import REFERENCE


def test_reference_budget() -> None:
    found = order_budget(REFERENCE["alpha"], REFERENCE["epsilon"], REFERENCE["delta_looks"])
    assert found == pytest.approx(REFERENCE["budget"], abs=5e-7)


@pytest.mark.parametrize("order", [1.1, 2, 17, 80.5])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-15])
def test_budget_and_delta_are_inverse_and_those_of_dp_accounting(order: float, epsilon: float, delta: float) -> None:
    budget = order_budget(order, epsilon, delta)
    if budget < 0:
        return
    proved = delta_of_budget(order, budget, epsilon)
    assert delta * (1 - 1e-6) < proved < delta * (1 + 1e-8)
    assert delta_of_budget(order, budget * 1.001 + 1e-6, epsilon) > delta
    theirs, _ = rdp_privacy_accountant.compute_delta([order], [budget], epsilon)
    assert proved == pytest.approx(theirs, rel=1e-6)


def test_some_budgets_are_negative() -> None:
    assert order_budget(2, 1.0, 1e-9) < 0


def test_another_order_is_another_budget() -> None:
    """A fault: prices of order 17 paid from the budget of order 18 prove less than was promised."""
    assert delta_of_budget(17, order_budget(18, 2.0, 1e-9), 2.0) > 2e-9


@pytest.mark.parametrize("deviation", [2.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_no_less_than_the_exact_delta_of_gaussian_noise(deviation: float, epsilon: float) -> None:
    """[Balle, Wang 2018]: its divergence at each order is order / (2 deviation^2)."""
    centre = 1 / (2 * deviation)
    exact = norm.cdf(centre - epsilon * deviation) - math.exp(epsilon) * norm.cdf(-centre - epsilon * deviation)
    proved = [delta_of_budget(order, order / (2 * deviation**2), epsilon) for order in (1.5, 3, 6, 12, 25, 36, 50)]
    assert exact < min(proved) < 30 * exact


def test_a_large_budget_at_a_small_order_says_nothing() -> None:
    assert delta_of_budget(1.001, 100.0, 1.0) == 1.0
