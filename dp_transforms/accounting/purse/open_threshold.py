"""The smallest safe threshold of an open domain, when weights are chosen adaptively and paid from a purse.

Guarantee: an item that nobody else holds is named, in any look of a user's whole life, with a probability of at most
delta_open, whichever weights of the price list the user's looks have (docs/purse.md, section 4).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.composition import check_delta
from dp_transforms.accounting.fewest_users import Floats, fewest_users
from dp_transforms.accounting.purse.look_prices import log_tails
from dp_transforms.accounting.purse.price_list import PURSE_UNITS, PriceList
from dp_transforms.checks import check_range

_SAFE = 1 - 1e-9  # of a share of delta: above the float error of the product
_ROUNDING = 1e-12  # relative, of a logarithm of a tail


def smallest_open_threshold(prices: PriceList, delta_open: float) -> int:
    """The smallest T with ``Pr[Z >= T - w] <= delta_open * units(w) / PURSE_UNITS`` for every weight w of the list.

    The shares of all looks add up to at most 1. With the smallest weight in each of `most_looks` looks the bound is
    met, so that no smaller T is safe where that weight binds, as it nearly always does.
    """
    check_delta(delta_open)
    noise = prices.noise
    shares = np.log(np.array(prices.units) / PURSE_UNITS * delta_open * _SAFE)
    reach = noise.smallest_margin(math.exp(float(shares.min()))) + 1
    tails = log_tails(noise, reach)
    tails = tails[len(tails) // 2 + 1 :]  # of m = 1, 2, ...
    margins = 1 + np.searchsorted(-tails * (1 - _ROUNDING), -shares)
    return int(np.max(np.array(prices.weights) + margins))


def found_from(
    prices: PriceList, threshold: int, looks: int, probability: float = 0.95, *, hits: int = 0, reserved: int = 0
) -> int:
    """From how many users on an item is found in a window with this probability, if each has so many looks in the run.

    Of more looks than a purse pays for, a random choice counts. probability: at least 1/2. hits: so many of these looks
    are hits that each user pays for; ValueError where no purse lasts for them. reserved: units that each user needs for
    other things.
    """
    check_range("probability", probability, 0.5, 1 - 1e-12)
    weight = prices.replay_weight(looks, hits, reserved=reserved)
    if not weight:
        raise ValueError(f"hits = {hits} leave nothing for {looks} looks. Use fewer, or a smaller price of a hit.")
    most_looks = (PURSE_UNITS - reserved) // prices.units[0]
    if looks > most_looks:

        def found(users: npt.NDArray[np.int64]) -> Floats:
            return np.exp(prices.noise.log_upper_tail(threshold - users * weight))

        return fewest_users(found, most_looks / looks, probability)
    # Pr[Z >= T - N w] >= probability where Pr[Z >= 1 - (T - N w)] <= 1 - probability.
    return math.ceil((threshold + prices.noise.smallest_margin(1 - probability) - 1) / weight)
