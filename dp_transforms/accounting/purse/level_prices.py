"""The price of a look whose level is published: how many boundaries T, T + d, T + 2d, ... the noisy count passes.

Guarantee: for every integer count, with and without the user's weight, either way, the Renyi divergence of the level is
at most `level_price` (docs/purse.md, section 5). Rounded up. It is the price for boundaries at all ``T + j d``, j any
whole number, of which the published ones are a part, and so a bound for every number of levels; it has the period d in
the count.

A spacing of five standard deviations or more costs next to nothing: few integers are near two boundaries.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.purse.look_prices import (
    ROUNDING,
    SMALLEST_PRICE,
    beyond_reach,
    check_order,
    coarse_excess,
    log_tails,
    outcome_excess,
)
from dp_transforms.checks import check_whole, shown
from dp_transforms.mechanisms.exponential_power import LOG_TAIL_ERROR, ExponentialPower

LEAST_SPACING = 2  # standard deviations: closer boundaries have their price too, but nobody wants to pay it
MOST_SPACING = 1000  # standard deviations: beyond, a price takes long and is the same
INTERVAL_ERRORS = 10.0  # times that of a tail: an interval is a difference of two that are at least 1/5 apart
_SMALLEST_DECAY = math.log(2)

Floats = npt.NDArray[np.float64]


def level_price(noise: ExponentialPower, order: float, weight: int, spacing: int) -> float:
    """What a look with this weight costs at this order when its level is published, rounded up.

    A level tells no less than its bit, so this is a bound for the bit too.

    spacing: d, in integers, at least two standard deviations of the noise and the weight.
    """
    check_order(order)
    check_whole("weight", weight, 1)
    check_spacing(noise, weight, spacing)
    # What this adds up grows with the intervals, so a coarse look for their number is enough.
    found = coarse_excess(noise, order, weight)
    if found == math.inf:
        return math.inf
    excess = _largest_excess(noise, order, weight, spacing, _reach(noise, order, weight, spacing, found))
    return max(SMALLEST_PRICE, math.log1p(excess) / (order - 1) * (1 + ROUNDING))


def level_reach(noise: ExponentialPower, order: float, weight: int, spacing: int) -> int:
    """`level_price` looks at no integer further away than this, but for one or two intervals. O(1) for each tenth."""
    return _reach(noise, order, weight, spacing, SMALLEST_PRICE * (order - 1) / 2)


def check_spacing(noise: ExponentialPower, weight: int, spacing: int) -> None:
    least = max(weight, math.ceil(LEAST_SPACING * noise.standard_deviation))
    check_whole("spacing", spacing, least)
    if spacing > max(least, MOST_SPACING * noise.standard_deviation):
        raise ValueError(
            f"spacing must be at most {MOST_SPACING} standard deviations of the noise, got {shown(spacing)}."
        )


def _reach(noise: ExponentialPower, order: float, weight: int, spacing: int, found: float) -> int:
    """Boundaries from here on add little, and each next one at most half as much."""
    reach = weight + 2 * noise.scale
    while beyond_reach(noise, order, weight, reach) > 1e-6 * found or _decay(noise, order, weight, spacing, reach) < (
        _SMALLEST_DECAY
    ):
        reach = math.ceil(reach * 1.1)
    return reach


def _decay(noise: ExponentialPower, order: float, weight: int, spacing: int, reach: int) -> float:
    """For m >= reach ``ln(P (P/Q)^lam)`` falls by at least this much from one boundary to the next.

    Its slope is ``lam H(t) - order H(t - weight) <= -H(t - weight) (order - lam R)`` with R the largest ratio of
    hazards from here on.
    """
    lowest, _ = noise.hazard_bounds(reach - weight)
    ratio = noise.hazard_bounds(reach)[1] / lowest
    return spacing / noise.scale * lowest * (order - (order - 1) * ratio)


def _largest_excess(noise: ExponentialPower, order: float, weight: int, spacing: int, reach: int) -> float:
    """A bound on ``sum P_o^order Q_o^-lam - 1`` over intervals ``m + j spacing <= value < m + (j + 1) spacing``, all m.

    Intervals below the smallest boundary used have ``P <= Q``, and their part of the sum is negative. Those above the
    largest, with tails P and Q there, have together at most ``P (P/Q)^lam (1 - r)^-lam`` times 1 + 1/2 + 1/4 + ...,
    r the ratio of the next tail to this one.
    """
    intervals = math.ceil(reach / spacing) + 1  # on each side of 0
    tails = log_tails(noise, (intervals + 1) * spacing + weight)
    log_masses, masses = interval_masses(noise, spacing, len(tails) // 2)
    middle = len(tails) // 2
    total = np.zeros(spacing)
    for row in range(-intervals, intervals - 1):
        here = slice(middle + row * spacing, middle + (row + 1) * spacing)
        there = slice(here.start - weight, here.stop - weight)
        total += outcome_excess(
            log_masses[there], log_masses[here], order, errors=INTERVAL_ERRORS, probability=masses[there]
        )
    last = slice(middle + (intervals - 1) * spacing, middle + intervals * spacing)
    last_p, last_q = tails[last.start - weight : last.stop - weight], tails[last]
    error = 4 * order * LOG_TAIL_ERROR * np.maximum(1.0, -last_q)
    next_share = tails[last.start + spacing : last.stop + spacing] - last_q  # logarithm of r
    exponent = order * last_p - (order - 1) * (last_q + np.log1p(-np.exp(next_share))) + error
    with np.errstate(over="ignore"):
        return float(np.max(total + 2 * np.exp(exponent)))


@functools.lru_cache(maxsize=1)
def interval_masses(noise: ExponentialPower, spacing: int, size: int) -> tuple[Floats, Floats]:
    """The masses ``Pr[m <= Z < m + spacing]`` for m = -size .. size - spacing, as logarithms and as they are.

    Small relative errors in both tails: ``Pr[lower <= Z < upper] = Pr[Z >= 1 - upper] - Pr[Z >= 1 - lower]``, the form
    with tails below 1/2. The first entry, which no caller reads, is too small.
    """
    tails = log_tails(noise, size)
    lower = np.arange(-size, size - spacing + 1)
    upper = lower + spacing
    mirrored = lower + upper <= 0
    larger = tails[size + np.where(mirrored, 1 - upper, lower)]
    smaller = tails[size + np.where(mirrored, np.minimum(1 - lower, size), upper)]
    log_masses = np.asarray(larger + np.log1p(-np.exp(smaller - larger)))
    return log_masses, np.exp(log_masses)
