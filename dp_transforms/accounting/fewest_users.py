"""From how many users on an item is found, where each of them counts only by chance: for plans and comparisons.

No guarantee depends on this: it tells how useful a mechanism is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_DEVIATIONS = 9.0  # beyond so many of a binomial count lies less than 1e-18

Floats = npt.NDArray[np.float64]
Found = Callable[[npt.NDArray[np.int64]], Floats]


def fewest_users(found: Found, share: float, probability: float) -> int:
    """The smallest n such that an item with n users is found with at least this probability.

    found: int64[k] numbers of users that count -> float64[k], with which probability such an item is found; it rises
    beyond `probability`. share: each user counts with this probability, independently of the others.
    """
    low, high = 0, 1
    while _found(found, high, share) < probability:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _found(found, middle, share) < probability else (low, middle)
    return high


def _found(found: Found, users: int, share: float) -> float:
    if share >= 1:
        return float(found(np.array([users]))[0])
    from scipy.special import gammaln

    spread = _DEVIATIONS * math.sqrt(users * share * (1 - share)) + _DEVIATIONS
    counts = np.arange(max(0, math.floor(users * share - spread)), min(users, math.ceil(users * share + spread)) + 1)
    log_mass = gammaln(users + 1) - gammaln(counts + 1) - gammaln(users - counts + 1)
    log_mass += counts * math.log(share) + (users - counts) * math.log1p(-share)
    return float(np.sum(np.exp(log_mass) * found(counts)))
