"""The price of a look where hits have one: nothing, a hit in the zone ``[T, T + d)``, or a name above it is published.

Guarantee: for every integer count, with and without the user's weight, either way, the Renyi divergence of the three
outcomes, less `hit_price` if the outcome is a hit, is at most `zone_price` (docs/purse.md, section 9). Rounded up:
every error of a float is added. What lies above the zone is published and costs nothing besides.

The supremum over all integer counts is a maximum over finitely many, and a bound for all others: the counts far above
both boundaries and far below both. Those between them are computed, however wide the zone is.

Notation as in `look_prices`; m is T less the count of the others, and ``m + d`` is the other boundary.
"""

from __future__ import annotations

import math

import numpy as np

from dp_transforms.accounting.purse.level_prices import INTERVAL_ERRORS, check_spacing, interval_masses
from dp_transforms.accounting.purse.look_prices import (
    ROUNDING,
    SMALLEST_PRICE,
    beyond_reach,
    check_order,
    log_tails,
    outcome_excess,
)
from dp_transforms.checks import check_whole, is_number, shown
from dp_transforms.mechanisms.exponential_power import ExponentialPower

_COARSE = 64  # each so many integers first, to see how far the finite part must go
_GROWTH = 1.2


def zone_price(noise: ExponentialPower, order: float, weight: int, spacing: int, *, hit_price: float = 0.0) -> float:
    """What a look with this weight costs at this order, its hit aside; rounded up, infinite where a float overflows.

    spacing: d, in integers, at least two standard deviations of the noise and the weight. hit_price: what a hit pays.
    Never more than the price of levels, nor less than that of a bit without a zone.
    """
    check_order(order)
    check_whole("weight", weight, 1)
    check_spacing(noise, weight, spacing)
    if not is_number(hit_price) or not 0 <= hit_price < math.inf:
        raise ValueError(f"hit_price must be finite and >= 0, got {shown(hit_price)}.")
    charge = float(hit_price) * (order - 1)
    reach = weight + 2 * noise.scale
    found = SMALLEST_PRICE * (order - 1) / 2
    while True:
        found = max(found, _largest_excess(noise, float(order), weight, spacing, charge, reach, _COARSE))
        # Twice: far above both boundaries each of them adds at most this much.
        if found == math.inf or 2 * beyond_reach(noise, order, weight, reach) <= found:
            break
        reach = math.ceil(reach * _GROWTH)
    if found < math.inf:
        found = max(found, _largest_excess(noise, float(order), weight, spacing, charge, reach, 1))
    return max(SMALLEST_PRICE, math.log1p(found) / (order - 1) * (1 + ROUNDING))


def _largest_excess(
    noise: ExponentialPower, order: float, weight: int, spacing: int, charge: float, reach: int, stride: int
) -> float:
    """The largest ``sum P_o^order Q_o^-lam e^(-charge [hit]) - 1`` for ``weight + 1 - spacing - reach <= m <= reach``.

    One way is enough: the other way at m is this one at ``weight + 1 - spacing - m``, where below and above have
    changed places, and the range is its own mirror image.
    """
    tails = log_tails(noise, reach + spacing + weight + 1)
    middle = len(tails) // 2
    log_masses, masses = interval_masses(noise, spacing, middle)
    first, end = weight + 1 - spacing - reach, reach + 1
    with_user = slice(middle + first - weight, middle + end - weight, stride)
    without = slice(middle + first, middle + end, stride)
    total = outcome_excess(
        log_masses[with_user], log_masses[without], order, charge, INTERVAL_ERRORS, masses[with_user]
    )
    total += outcome_excess(tails[_moved(with_user, spacing)], tails[_moved(without, spacing)], order)
    lower = tails[::-1]  # at -m + 1 of it: Pr[Z < m] = Pr[Z >= 1 - m]
    total += outcome_excess(lower[_moved(with_user, -1)], lower[_moved(without, -1)], order)
    return float(np.max(total))


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by, part.step)
