"""A plan file that would take minutes to check is refused before any price is computed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dp_transforms.accounting.purse import look_prices
from dp_transforms.accounting.purse.look_prices import level_price, zone_price
from dp_transforms.accounting.purse.price_list import MOST_WORK, price_work
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.plan.plan import Plan
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.plan_files import changed_plan

MANY = {"looks.weights": list(range(1, 1001)), "looks.units": [10**12 // 20 + n for n in range(1000)]}
HIGH = {"threshold": 10**7, "known.threshold": 10**7, "shares.sampling": 1e-15}
WIDE = {**HIGH, "looks.scale": 50_000, "looks.spacing": 200_000}
FEW = {"looks.weights": list(range(50_000, 50_100)), "looks.units": MANY["looks.units"][:100]}


@pytest.mark.parametrize(
    "changes",
    [
        {**MANY, **WIDE},
        {**MANY, **WIDE, "looks.spacing": 20_000_000},  # 800 standard deviations
        {**WIDE, "looks.order": 1000.0, "looks.shape": 4.0, **FEW},
        {**WIDE, "looks.order": 1000.0, "looks.shape": 1.0, **MANY},
    ],
)
def test_a_forged_plan_is_refused_at_once(changes: dict[str, Any]) -> None:
    """Its prices would take minutes."""
    text = changed_plan(small_looks_plan(), changes)
    started = time.process_time()
    with pytest.raises(ValueError, match=r"steps to check the prices, more than 1e\+09\. No plan of Plan"):
        Plan.from_json(text)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(("epsilon", "most_looks"), [(2.0, 20), (0.2, 20), (40.0, 3000)])
def test_plans_of_calibrate_are_far_below_the_limit(epsilon: float, most_looks: int) -> None:
    plan = small_looks_plan().calibrate(
        epsilon=epsilon,
        delta=1e-6,
        schedule=small_looks_plan().schedule,
        usual_looks=(1, most_looks),
        most_looks=most_looks,
        max_users=1000,
        max_items=1000,
    )
    assert plan.looks is not None
    assert (
        price_work(plan.looks.noise, plan.paid_looks.order, plan.paid_looks.weights, plan.paid_looks.spacing)
        < MOST_WORK / 5
    )


def cheap_hits(noise: ExponentialPower, order: float, weight: int, spacing: int) -> float:
    return zone_price(noise, order, weight, spacing, hit_price=0.1)


@pytest.mark.parametrize(
    ("shape", "order", "weight"), [(1.0, 3.0, 150), (2.5, 17.0, 40), (4.0, 40.0, 10), (3.0, 1.1, 190)]
)
@pytest.mark.parametrize(("price", "scale"), [(level_price, 211), (zone_price, 223), (cheap_hits, 227)])
def test_no_price_looks_further_than_the_work_says(
    price: Callable[..., float], scale: int, shape: float, order: float, weight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All integers that a price reads are tails of one table: how far it is asked for. Of levels, and of hits."""
    noise = ExponentialPower(shape, scale)  # of no other test: nothing is remembered
    spacing = int(np.ceil(5.5 * noise.standard_deviation))
    asked = []
    real = look_prices.log_tails

    def watched(law: ExponentialPower, reach: int) -> Any:
        asked.append(reach)
        return real(law, reach)

    monkeypatch.setattr(look_prices, "log_tails", watched)
    price(noise, order, weight, spacing)
    # Tables are made for up to twice as far.
    assert max(asked) <= price_work(noise, order, [weight], spacing) + 2 * weight
