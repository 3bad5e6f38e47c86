"""The price of a look: the largest Renyi divergence that one user's weight can make in one published bit.

Guarantee: with ``count + noise >= threshold`` published, for every integer count, with and without a user's weight,
either way, the Renyi divergence of this order is at most `look_price`. With a hit price h > 0 the same holds of the
divergence less h for each published hit (docs/purse.md, section 2). Rounded up: every error of a float is added.

The supremum over all integer counts is a maximum over finitely many and two bounds for all others, proved in
docs/purse.md, section 2: the finite part grows until the bounds are below its maximum. For a large order or light tails
the maximum can be where the tail is e^-300: a fixed cut would miss it.

Notation: ``P = Pr[Z >= m - weight]``, the bit with the user, ``Q = Pr[Z >= m]`` without; m is the threshold less the
count of the others; ``lam = order - 1``.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from dp_transforms.checks import check_range, check_whole, is_number, shown
from dp_transforms.mechanisms.exponential_power import LOG_TAIL_ERROR, ExponentialPower

MAX_ORDER = 1000.0
SMALLEST_PRICE = 1e-12  # no price is below; of a look that its hit price pays for already, and of sums of floats
ROUNDING = 1e-12  # relative; of logarithms of sums
_COARSE = 64  # each so many integers first, to see how far the finite part must go
_GROWTH = 1.2
_LARGEST_EXPONENT = 700.0  # above it a float overflows: the price is infinite

Floats = npt.NDArray[np.float64]


def look_price(noise: ExponentialPower, order: float, weight: int, *, hit_price: float = 0.0) -> float:
    """What a look with this weight costs at this order, rounded up; infinite from about ``700 / (order - 1)`` on.

    weight: in integers, like the scale of the noise. hit_price: what a published hit pays besides. Without it the
    price does not fall with the weight.
    """
    check_order(order)
    check_whole("weight", weight, 1)
    if not is_number(hit_price) or not 0 <= hit_price < math.inf:
        raise ValueError(f"hit_price must be finite and >= 0, got {shown(hit_price)}.")
    excess = _largest_excess(noise, float(order), weight, float(hit_price))
    return max(SMALLEST_PRICE, math.log1p(excess) / (order - 1) * (1 + ROUNDING))


def check_order(order: float) -> None:
    check_range("order", order, 1.0, MAX_ORDER)
    if order == 1:
        raise ValueError("order must be > 1, got 1.")


def coarse_excess(noise: ExponentialPower, order: float, weight: int) -> float:
    """`look_price` as an excess, over each 64th count alone, so no bound; infinite where it overflows."""
    return _coarse_search(noise, order, weight, 0.0)[1]


def _largest_excess(noise: ExponentialPower, order: float, weight: int, hit_price: float) -> float:
    """A bound on ``sum P_o^order Q_o^-lam e^(-lam h [hit]) - 1`` for all m, both ways; at least about lam 1e-12."""
    reach, coarse = _coarse_search(noise, order, weight, hit_price)
    return coarse if coarse == math.inf else max(coarse, _maximum(noise, order, weight, hit_price, reach, 1))


def _coarse_search(noise: ExponentialPower, order: float, weight: int, hit_price: float) -> tuple[int, float]:
    """A reach beyond which no excess is larger than the largest found up to there, and that one."""
    smallest = SMALLEST_PRICE * (order - 1) / 2
    reach = weight + 2 * noise.scale
    coarse = max(smallest, _maximum(noise, order, weight, hit_price, reach, _COARSE))
    while coarse < math.inf and beyond_reach(noise, order, weight, reach) > coarse:
        reach = math.ceil(reach * _GROWTH)
        coarse = max(coarse, _maximum(noise, order, weight, hit_price, reach, _COARSE))
    return reach, coarse


def _maximum(noise: ExponentialPower, order: float, weight: int, hit_price: float, reach: int, stride: int) -> float:
    """The largest excess for ``weight + 1 - reach <= m <= reach``, both ways. The range is its own mirror image.

    Without a hit price one way is enough: m and ``weight + 1 - m`` exchange the worlds, since
    ``1 - Pr[Z >= m] = Pr[Z >= 1 - m]``.
    """
    tails = log_tails(noise, reach)
    middle = len(tails) // 2  # of m = 0
    first, end = weight + 1 - reach, reach + 1
    hit_with = tails[middle + first - weight : middle + end - weight : stride]
    hit_without = tails[middle + first : middle + end : stride]
    miss_with = tails[middle + 1 + weight - first : middle + 1 + weight - end : -stride]
    miss_without = tails[middle + 1 - first : middle + 1 - end : -stride]
    charge = hit_price * (order - 1)
    ways = [((hit_with, hit_without), (miss_with, miss_without))]
    if hit_price:
        ways.append(((hit_without, hit_with), (miss_without, miss_with)))
    largest = 0.0
    for hit, miss in ways:
        total = outcome_excess(*hit, order, charge) + outcome_excess(*miss, order, 0.0)
        largest = max(largest, float(np.max(total)))
    return largest


def outcome_excess(
    log_p: Floats,
    log_q: Floats,
    order: float,
    charge: float = 0.0,
    errors: float = 1.0,
    probability: Floats | None = None,
) -> Floats:
    """``P ((P/Q)^lam e^-charge - 1)`` of one outcome, rounded up; infinite where it overflows.

    The excess of a look is the sum over its outcomes, since their P add up to 1. log_p, log_q: with errors of at most
    ``errors * LOG_TAIL_ERROR * max(1, |value|)`` each. probability: P, where the caller has it.
    """
    exponent = (order - 1) * (log_p - log_q) - charge
    probability = np.exp(log_p) if probability is None else probability
    gained = probability * np.expm1(np.minimum(exponent, 1.0))
    far = exponent > 1
    with np.errstate(over="ignore"):
        gained[far] = np.exp(log_p[far] + exponent[far]) - probability[far]
    # A relative error of P, and lam times those of P and Q in the ratio: 2 order errors of P ratio, and one of P.
    error = 2.2 * order * errors * LOG_TAIL_ERROR * np.maximum(1.0, -np.minimum(log_p, log_q))
    return np.asarray(gained + error * (gained + 3 * probability))


def beyond_reach(noise: ExponentialPower, order: float, weight: int, reach: int) -> float:
    """A bound on the excess for all m above `reach` or below ``weight + 1 - reach``, whatever the hit price.

    docs/purse.md, section 2: from where ``H(t) <= order / lam * H(t - weight)`` on, ``P (P/Q)^lam`` falls; at the other
    side 1 - Q rises. Infinite before that.
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


def log_tails(noise: ExponentialPower, reach: int) -> Floats:
    """``ln Pr[Z >= m]`` for m from ``-n`` to n, with m = 0 in the middle and n at least `reach`."""
    return _log_tails(noise, noise.scale << (max(1, math.ceil(reach / noise.scale)) - 1).bit_length())


@functools.lru_cache(maxsize=8)  # sizes of one law; the largest has 16 units of scale or little more
def _log_tails(noise: ExponentialPower, size: int) -> Floats:
    known = _log_tails(noise, size // 2)[size // 2 + 1 :] if size > noise.scale else np.zeros(0)
    above = np.concatenate([known, noise.log_upper_tail(np.arange(len(known) + 1, size + 2))])
    tails = np.concatenate([np.log1p(-np.exp(above[::-1])), above[:-1]])  # Pr[Z >= m] = 1 - Pr[Z >= 1 - m]
    tails.flags.writeable = False
    return tails
