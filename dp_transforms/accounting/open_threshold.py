"""The smallest safe threshold of an open domain, when weights are chosen adaptively and paid from a purse.

And what stated sizes must allow for noise, by the same argument. Guarantee: an item that nobody else holds is named, in
any look of a user's whole life, with a probability of at most delta_open, whichever weights of the price list the
user's looks have (docs/guarantee.md, "Proposition (lone items)").

From how many users on an item is found (`fewest_users`, `found_from`) tells how useful a mechanism is: no guarantee
depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.composition import check_delta, log_factorials
from dp_transforms.accounting.discrete_laplace_law import smallest_whole
from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_bounds import log_tails
from dp_transforms.accounting.price_list import PriceList
from dp_transforms.accounting.priced_weights import BUDGET_UNITS, FEWEST_STATED
from dp_transforms.checks import check_range

_DEVIATIONS = 9.0  # beyond so many of a binomial count lies less than 1e-18

Floats = npt.NDArray[np.float64]
Found = Callable[[npt.NDArray[np.int64]], Floats]
_SAFE = 1 - 1e-9  # of a share of delta: above the float error of the product
_ROUNDING = 1e-12  # relative, of a logarithm of a tail


def fewest_users(found: Found, share: float, probability: float) -> int:
    """The smallest n such that an item with n users is found with at least this probability.

    found: int64[k] numbers of users that count -> float64[k], with which probability such an item is found; it rises
    beyond `probability`. share: each user counts with this probability, independently of the others.
    """
    return smallest_whole(lambda users: _found(found, users, share) >= probability, 0, 1)


def _found(found: Found, users: int, share: float) -> float:
    if share >= 1:
        return float(found(np.array([users]))[0])
    spread = _DEVIATIONS * math.sqrt(users * share * (1 - share)) + _DEVIATIONS
    counts = np.arange(max(0, math.floor(users * share - spread)), min(users, math.ceil(users * share + spread)) + 1)
    log_mass = math.lgamma(users + 1) - log_factorials(counts) - log_factorials(users - counts)
    log_mass += counts * math.log(share) + (users - counts) * math.log1p(-share)
    return float(np.sum(np.exp(log_mass) * found(counts)))


def smallest_open_threshold(prices: PriceList, delta_open: float, *, open_units: int = BUDGET_UNITS) -> int:
    """The smallest T with ``Pr[Z >= T - w] <= delta_open * units(w) / open_units`` for every weight w of the list.

    open_units: what a user can pay for looks at open items. A weight that costs more has none of these looks. The
    shares of all looks add up to at most 1. With the smallest weight in each of `most_looks` looks the bound is met, so
    that no smaller T is safe where that weight binds, as it nearly always does.
    """
    check_delta(delta_open)
    noise = prices.noise
    units = np.array([units for units in prices.units if units <= open_units])
    shares = np.log(units / open_units * delta_open * _SAFE)
    reach = noise.smallest_margin(math.exp(float(shares.min()))) + 1
    tails = log_tails(noise, reach)
    tails = tails[len(tails) // 2 + 1 :]  # of m = 1, 2, ...
    margins = 1 + np.searchsorted(-tails * (1 - _ROUNDING), -shares)
    return int(np.max(np.array(prices.weights[: len(units)]) + margins))


def smallest_size_margin(prices: PriceList, size_error: float, users: int, most_unheld: int) -> int:
    """The smallest z at which at most `size_error` of all sizes that a run states are too large, on average.

    A stated N of at least k + 1 = `FEWEST_STATED` is too large only if ``Z > z + k (W - w)``, with w the largest weight
    in the sum and W that of the plan: its user pays for it. Where nobody adds anything, only if ``Z > z + k W``.
    users: of the run, at most. most_unheld: sums of 0 that are drawn, on average (docs/guarantee.md, "Sizes").
    """
    looks = BUDGET_UNITS / np.array(prices.units)
    return size_margin(prices.noise, np.array(prices.weights), looks, size_error, users, most_unheld)


def size_margin(
    noise: ExponentialPower,
    weights: npt.NDArray[np.int64],
    looks: Floats,
    size_error: float,
    users: int,
    most_unheld: int,
) -> int:
    """The same for these weights alone, of each of which a user can pay so many looks, and no more with others."""
    check_range("size_error", size_error, 0.0, 1.0)
    largest, others = int(weights.max()), FEWEST_STATED - 1
    below = others * (largest - weights)

    def is_enough(z: int) -> bool:
        of_one = np.exp(noise.log_upper_tail(z + 1 + below)) * looks
        of_nobody = most_unheld * noise.upper_tail(z + 1 + others * largest)
        return bool(users * of_one.max() + of_nobody <= size_error * _SAFE)

    return smallest_whole(is_enough, -1, noise.scale)


def found_from(
    prices: PriceList,
    threshold: int,
    looks: int,
    probability: float = 0.95,
    *,
    reserved: int = 0,
) -> int:
    """From how many users on an item is found in a window with this probability, if each has so many looks in the run.

    Of more looks than a purse pays for, a random choice counts. probability: at least 1/2. reserved: units of a purse
    that are not for these looks.
    """
    check_range("probability", probability, 0.5, 1 - 1e-12)
    weight = prices.replay_weight(looks, reserved)
    most_looks = (BUDGET_UNITS - reserved) // prices.units[0]
    if looks > most_looks:

        def found(users: npt.NDArray[np.int64]) -> Floats:
            return np.exp(prices.noise.log_upper_tail(threshold - users * weight))

        return fewest_users(found, most_looks / looks, probability)
    # Pr[Z >= T - N w] >= probability where Pr[Z >= 1 - (T - N w)] <= 1 - probability.
    return math.ceil((threshold + prices.noise.smallest_margin(1 - probability) - 1) / weight)
