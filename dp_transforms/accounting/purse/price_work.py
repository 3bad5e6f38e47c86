"""How much work the prices of a list are, bounded before any of them is computed: a plan file may be hostile.

A price looks at each integer up to a reach on both sides of the threshold, and at some intervals between levels beyond
it. The reach is known without looking: where the certificate (docs/purse.md, sections 2 and 5) bounds all that is
further away. So the work is bounded by the number of weights, times the reach of the largest, which is the longest.
That of hits is no longer, with or without a price for them.

The bounds of `price_bounds` spare a plan most of this work, but not a forged one: they are sure of no weight that costs
exactly its price. A thousand of these, at scale 50,000 with spacing 200,000, would take 47 s to check.
"""

from __future__ import annotations

from collections.abc import Sequence

from dp_transforms.accounting.purse.level_prices import check_spacing, level_reach
from dp_transforms.accounting.purse.look_prices import check_order
from dp_transforms.checks import check_whole
from dp_transforms.mechanisms.exponential_power import ExponentialPower

MOST_WORK = 1_000_000_000  # integers: some ten seconds. The default plan has 65 million


def price_work(noise: ExponentialPower, order: float, weights: Sequence[int], spacing: int) -> int:
    """About how many integers the prices of these weights look at, at most. Raises ValueError for what has no price."""
    check_order(order)
    largest = max((check_whole("each of weights", weight, 1) for weight in weights), default=1)
    check_spacing(noise, 1, spacing)
    return len(weights) * 2 * (level_reach(noise, order, min(largest, spacing), spacing) + 3 * spacing)


def check_price_work(noise: ExponentialPower, order: float, weights: Sequence[int], spacing: int) -> None:
    """Raises ValueError for a list whose prices would take minutes."""
    work = price_work(noise, order, weights, spacing)
    if work > MOST_WORK:
        raise ValueError(
            f"weights, scale, order and spacing make {work:.2g} steps to check the prices, more than {MOST_WORK:.2g}. "
            "No plan of ReleasePlan.calibrate takes so many: write one with `shh plan --output`."
        )
