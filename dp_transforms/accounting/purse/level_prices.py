"""The price of a look whose level is published: how many boundaries T, T + d, T + 2d, ... the noisy count passes.

Guarantee: for every integer count, with and without the user's weight, either way, the Renyi divergence of the level is
at most `level_price` (docs/purse.md, section 5). Rounded up. It is the price for boundaries at all ``T + j d``, j any
whole number, of which the published ones are a part, and so a bound for every number of levels; it has the period d in
the count.

A spacing of five standard deviations or more costs next to nothing: few integers are near two boundaries.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.purse.look_prices import (
    ROUNDING,
    SMALLEST_PRICE,
    beyond_reach,
    check_order,
    log_tails,
    look_price,
    outcome_excess,
)
from dp_transforms.checks import check_whole
from dp_transforms.exponential_power import LOG_TAIL_ERROR, ExponentialPower

LEAST_SPACING = 2  # standard deviations: closer boundaries have their price too, but nobody wants to pay it
_INTERVAL_ERRORS = 10.0  # times that of a tail: an interval is a difference of two that are at least 1/5 apart
_SMALLEST_DECAY = math.log(2)

Floats = npt.NDArray[np.float64]


def level_price(noise: ExponentialPower, order: float, weight: int, spacing: int) -> float:
    """What a look with this weight costs at this order when its level is published, rounded up. Never below
    `look_price`.

    spacing: d, in integers, at least two standard deviations of the noise and the weight.
    """
    check_order(order)
    check_whole("weight", weight, 1)
    check_spacing(noise, weight, spacing)
    single = look_price(noise, order, weight)
    if single == math.inf:
        return math.inf
    reach = _reach(noise, order, weight, spacing, (order - 1) * single)
    excess = _largest_excess(noise, order, weight, spacing, reach)
    return max(single, SMALLEST_PRICE, math.log1p(excess) / (order - 1) * (1 + ROUNDING))


def check_spacing(noise: ExponentialPower, weight: int, spacing: int) -> None:
    least = max(weight, math.ceil(LEAST_SPACING * noise.standard_deviation))
    check_whole("spacing", spacing, least)


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
    boundaries = np.arange(-intervals * spacing, intervals * spacing).reshape(2 * intervals, spacing)
    tails = log_tails(noise, (intervals + 1) * spacing + weight)
    middle = len(tails) // 2
    log_p, log_q = (_log_intervals(tails, middle, boundaries - moved) for moved in (weight, 0))
    total = outcome_excess(log_p, log_q, order, errors=_INTERVAL_ERRORS).sum(axis=0)
    last = boundaries[-1]
    last_p, last_q = tails[middle + last - weight], tails[middle + last]
    error = 4 * order * LOG_TAIL_ERROR * np.maximum(1.0, -last_q)
    next_share = tails[middle + last + spacing] - last_q  # logarithm of r
    exponent = order * last_p - (order - 1) * (last_q + np.log1p(-np.exp(next_share))) + error
    return float(np.max(total + 2 * np.exp(exponent)))


def _log_intervals(tails: Floats, middle: int, boundaries: npt.NDArray[np.int64]) -> Floats:
    """Logarithms of the masses between consecutive rows of boundaries, with small relative errors in both tails."""
    lower, upper = boundaries[:-1], boundaries[1:]
    mirrored = lower + upper <= 0  # Pr[lower <= Z < upper] = Pr[Z >= 1 - upper] - Pr[Z >= 1 - lower]: tails below 1/2
    larger = tails[middle + np.where(mirrored, 1 - upper, lower)]
    smaller = tails[middle + np.where(mirrored, 1 - lower, upper)]
    return np.asarray(larger + np.log1p(-np.exp(smaller - larger)))
