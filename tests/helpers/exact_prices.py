"""The exact price of a test, an oracle for the bounds that users are charged by: the largest Renyi divergence that one
user's weight can make in what is published of an item.

Guarantee, for every integer count, with and without a user's weight, either way; prices are rounded up, every error of
a float is added:

- `look_price`: ``count + noise >= threshold`` is published, one bit. The divergence of this order is at most the price.
- `level_price`: a level is published, how many boundaries T, T + d, T + 2d, ... the noisy count passes ("Levels").
  It is the price for boundaries at all ``T + j d``, j any whole number, of which the published ones are a part, and so
  a bound for every number of levels; it has the period d in the count. A spacing of five standard deviations or more
  costs next to nothing: few integers are near two boundaries.

It looks at each integer: the supremum over all counts is a maximum over finitely many and two bounds for all others
(docs/proofs.md, "Prices: facts and certificate"); the finite part grows until the bounds are below its maximum. For
a large order or light tails the maximum can be where the tail is e^-300: a fixed cut would miss it.

Notation: ``P = Pr[Z >= m - weight]``, the bit with the user, ``Q = Pr[Z >= m]`` without; m is the threshold less the
count of the others; ``lam = order - 1``.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.exponential_power import LOG_TAIL_ERROR, ExponentialPower
from dp_transforms.accounting.price_bounds import ROUNDING, SMALLEST_PRICE, log_tails
from dp_transforms.checks import check_range, check_whole

_COARSE = 64  # each so many integers first, to see how far the finite part must go
_GROWTH = 1.2
_LARGEST_EXPONENT = 700.0  # above it a float overflows: the price is infinite

Floats = npt.NDArray[np.float64]
INTERVAL_ERRORS = 10.0  # times that of a tail: an interval is a difference of two that are at least 1/5 apart
_SMALLEST_DECAY = math.log(2)


def look_price(noise: ExponentialPower, order: float, weight: int) -> float:
    """What a look with this weight costs at this order, rounded up; infinite from about ``700 / (order - 1)`` on.

    weight: in integers, like the scale of the noise. The price does not fall with it.
    """
    check_range("order", order, 1.0, 1000.0)
    check_whole("weight", weight, 1)
    order = float(order)
    reach, coarse = _coarse_search(noise, order, weight)
    largest = coarse if coarse == math.inf else max(coarse, _bit_excess(noise, order, weight, reach, 1))
    return _price(largest, order)


def _price(excess: float, order: float) -> float:
    """The divergence of an excess, rounded up."""
    return max(SMALLEST_PRICE, math.log1p(excess) / (order - 1) * (1 + ROUNDING))


def _coarse_search(noise: ExponentialPower, order: float, weight: int) -> tuple[int, float]:
    """A reach beyond which no excess of a bit is larger than the largest found up to there, and that one; at least
    about lam 1e-12."""
    reach, found = weight + 2 * noise.scale, SMALLEST_PRICE * (order - 1) / 2
    while True:
        found = max(found, _bit_excess(noise, order, weight, reach, _COARSE))
        if found == math.inf or beyond_reach(noise, order, weight, reach) <= found:
            return reach, found
        reach = math.ceil(reach * _GROWTH)


def _bit_excess(noise: ExponentialPower, order: float, weight: int, reach: int, stride: int) -> float:
    """The largest ``sum P_o^order Q_o^-lam - 1`` of each so many m in ``weight + 1 - reach <= m <= reach``, both ways.

    The range is its own mirror image, and one way is enough: m and ``weight + 1 - m`` exchange the worlds, since
    ``1 - Pr[Z >= m] = Pr[Z >= 1 - m]``.
    """
    tails = log_tails(noise, reach)
    middle = len(tails) // 2  # of m = 0
    first, end = weight + 1 - reach, reach + 1
    hit_with = tails[middle + first - weight : middle + end - weight : stride]
    hit_without = tails[middle + first : middle + end : stride]
    miss_with = tails[middle + 1 + weight - first : middle + 1 + weight - end : -stride]
    miss_without = tails[middle + 1 - first : middle + 1 - end : -stride]
    total = outcome_excess(hit_with, hit_without, order) + outcome_excess(miss_with, miss_without, order)
    return max(0.0, float(np.max(total)))


def outcome_excess(
    log_p: Floats, log_q: Floats, order: float, errors: float = 1.0, probability: Floats | None = None
) -> Floats:
    """``P ((P/Q)^lam - 1)`` of one outcome, rounded up; infinite where it overflows.

    The excess of a look is the sum over its outcomes, since their P add up to 1. log_p, log_q: with errors of at most
    ``errors * LOG_TAIL_ERROR * max(1, |value|)`` each. probability: P, where the caller has it.
    """
    exponent = (order - 1) * (log_p - log_q)
    probability = np.exp(log_p) if probability is None else probability
    gained = probability * np.expm1(np.minimum(exponent, 1.0))
    far = exponent > 1
    with np.errstate(over="ignore"):
        gained[far] = np.exp(log_p[far] + exponent[far]) - probability[far]
    # A relative error of P, and lam times those of P and Q in the ratio: 2 order errors of P ratio, and one of P.
    error = 2.2 * order * errors * LOG_TAIL_ERROR * np.maximum(1.0, -np.minimum(log_p, log_q))
    return np.asarray(gained + error * (gained + 3 * probability))


def beyond_reach(noise: ExponentialPower, order: float, weight: int, reach: int) -> float:
    """A bound on the excess for all m above `reach` or below ``weight + 1 - reach``.

    docs/proofs.md, "Prices: facts and certificate": from where ``H(t) <= order / lam * H(t - weight)`` on,
    ``P (P/Q)^lam`` falls; at the other side 1 - Q rises. Infinite before that.
    """
    lam = order - 1
    if reach <= weight:
        return math.inf
    if noise.hazard_bounds(reach)[1] > order / lam * noise.hazard_bounds(reach - weight)[0] * (1 - 1e-9):
        # Laplace noise: the hazard is the same everywhere, and its two bounds differ by rounding only.
        return math.inf
    log_p, log_q = noise.log_upper_tail(np.array([reach - weight, reach]))
    if log_p > -math.log(2 * order):
        return math.inf
    error = 2 * order * LOG_TAIL_ERROR * max(1.0, -log_q)
    exponent = order * log_p - lam * log_q + error
    if exponent > _LARGEST_EXPONENT:
        return math.inf
    other = math.expm1(-lam * math.log1p(-math.exp(log_p + error)))
    return max(math.exp(exponent), other) * (1 + ROUNDING)


def level_price(noise: ExponentialPower, order: float, weight: int, spacing: int) -> float:
    """What a look with this weight costs at this order when its level is published, rounded up.

    A level tells no less than its bit, so this is a bound for the bit too.

    spacing: d, in integers, at least two standard deviations of the noise and the weight.
    """
    check_range("order", order, 1.0, 1000.0)
    check_whole("weight", weight, 1)
    # What this adds up grows with the intervals, so a coarse look for their number is enough.
    _, found = _coarse_search(noise, order, weight)
    if found == math.inf:
        return math.inf
    excess = _level_excess(noise, order, weight, spacing, _reach(noise, order, weight, spacing, found))
    return _price(excess, order)


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


def _level_excess(noise: ExponentialPower, order: float, weight: int, spacing: int, reach: int) -> float:
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
