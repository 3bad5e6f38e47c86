"""The purse of an order: how much Renyi divergence an (epsilon, delta) buys, and what a spent purse proves.

Guarantee: an interaction whose Renyi divergence of this order is at most B, either way, is (epsilon, delta)-DP with

    delta = e^((order - 1)(B - epsilon)) (1 - 1/order)^order / (order - 1).

Source: Canonne, Kamath, Steinke (2020), Proposition 12; docs/purse.md, section 2. Budgets are rounded down, deltas up.
"""

from __future__ import annotations

import math

from dp_transforms.accounting.composition import check_delta, check_epsilon
from dp_transforms.accounting.purse.look_prices import ROUNDING, check_order
from dp_transforms.checks import is_number, shown


def order_budget(order: float, epsilon: float, delta: float) -> float:
    """The largest divergence of this order that proves (epsilon, delta), rounded down; negative where none does.

    >>> f"{order_budget(17, 2.0, 5e-10):.6f}"
    '0.899175'
    """
    check_order(order)
    check_epsilon(epsilon)
    check_delta(delta)
    loss = (-math.log(delta) + _log_factor(order)) / (order - 1)
    return epsilon - loss - ROUNDING * (epsilon + abs(loss))


def delta_of_budget(order: float, budget: float, epsilon: float) -> float:
    """The delta that a divergence of at most `budget` at this order proves for epsilon, rounded up; at most 1."""
    check_order(order)
    check_epsilon(epsilon)
    if not is_number(budget) or not budget >= 0:
        raise ValueError(f"budget must be >= 0, got {shown(budget)}.")
    exponent = (order - 1) * (budget - epsilon) + _log_factor(order)
    return 1.0 if exponent >= 0 else math.exp(exponent) * (1 + ROUNDING * (2 + (order - 1) * (budget + epsilon)))


def _log_factor(order: float) -> float:
    """``ln((1 - 1/order)^order / (order - 1))``."""
    return order * math.log1p(-1 / order) - math.log(order - 1)
