"""Two look-ups in which a plan and the workers of a run must agree: the largest weight that a user can pay for in a
test, and how many users a noisy sum of weights shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]

BUDGET_UNITS = 10**12  # a full user budget
# "At least N users" is said from here on: contributions of fewer users are then far from being stated.
FEWEST_STATED = 5


class PricedWeights(NamedTuple):
    """weights: rising. units: what a test with each costs of a user budget, rising. Both int64[k]."""

    weights: Whole
    units: Whole

    @classmethod
    def of(cls, weights: Sequence[int], units: Sequence[int]) -> PricedWeights:
        return cls(np.array(weights, dtype=np.int64), np.array(units, dtype=np.int64))

    def largest(self, amounts: Whole) -> tuple[Whole, Whole]:
        """The largest weights that cost at most these amounts, and what they cost; 0 and 0 where none does.

        amounts, both results: int64[n].
        """
        index = np.searchsorted(self.units, amounts, side="right")
        return np.concatenate([[0], self.weights])[index], np.concatenate([[0], self.units])[index]


def stated_users(boundaries: Whole, likely_noise: Whole | int, largest_weight: Whole | int) -> Whole:
    """So many users hold an item whose noisy sum reaches the boundary, unless the noise is above likely_noise.

    No user adds more than the largest weight. 0 where it would be fewer than `FEWEST_STATED`. Result: int64[n].
    """
    users = -(-(boundaries - likely_noise) // largest_weight)
    return np.where(users < FEWEST_STATED, 0, users)


def stated_from(users: int, likely_noise: int, largest_weight: int) -> int:
    """The smallest boundary at which `stated_users` says at least so many, which are at least `FEWEST_STATED`."""
    return likely_noise + (users - 1) * largest_weight + 1
