"""The weights of a stream: each user spends its purse at its own pace, without knowing its future.

A rule of a user's own events and of declared numbers. It is public, and no privacy hangs on it: `purses` checks that
each look can be paid before it counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.priced_weights import PricedWeights
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import FEWEST_BESIDE, SECOND_LOOKS, SECOND_PART, most_of_second_look

Whole = npt.NDArray[np.int64]

_PATIENCE = 16  # a user is expected to go on for at most so many times as long as it has been there
MOST_LOOKS = 2**32 - 1  # that one purse pays for; times a number of windows they stay below 2^63
_DAY_SECONDS = 86_400


class Chosen(NamedTuple):
    """For u users. weights, units: of each of their looks in a window, and what one costs. payable: how many of their
    looks are paid; the other ones do not count. All int64[u]."""

    weights: Whole
    units: Whole
    payable: Whole


class Pace:
    """Chooses the weights of a window, in whole numbers."""

    def __init__(self, plan: Plan) -> None:
        looks = plan.paid_looks
        if looks.most_looks > MOST_LOOKS:
            raise ValueError(
                f"a purse must pay for at most {MOST_LOOKS:,} looks, got {looks.most_looks:,}. Make"
                " a plan for fewer looks of a user."
            )
        self._listed = looks.listed
        self._horizon = plan.schedule.horizon
        self._most_of_second = 0 if plan.rounds is None else most_of_second_look(plan.rounds)
        a_day = -(-_DAY_SECONDS // plan.schedule.slide_seconds)
        self._least_seen = min(a_day, max(1, self._horizon // _PATIENCE))

    def choose(self, looks: Whole, left: Whole, looks_before: Whole, first_windows: Whole, window: int) -> Chosen:
        """looks: of each user in this window, at least 1. left: units in its purse. looks_before: paid in the windows
        before. first_windows: where it paid its first look; this one if it has paid none. All int64[u].
        window: the last one of those that are paid together.

        A purse is spread over the looks of this window and those that are expected later: in each window as many as in
        those so far, this one included, counted over at least a day, or a sixteenth of the run if that is
        shorter; in the last window none. But nobody is expected to have more than sixteen times as many as so far:
        many users go soon, and what they leave buys nothing. A user gets the largest weight that costs no more than its
        share, and at least the smallest one of the list.
        """
        spread = self._spread(looks, left, looks_before, first_windows, window)
        weights, units = _largest_or_smallest(self._listed, left // spread)
        return Chosen(weights, units, np.minimum(looks, left // units))

    def choose_with_second(
        self, looks: Whole, second: Whole, left: Whole, parts_before: Whole, first_windows: Whole, window: int
    ) -> tuple[Chosen, Chosen]:
        """The same in the last round of looks, in which a user has second looks, too, at pairs that are named already.
        What is spent now is split by `amounts_with_second`; a second look costs at most `most_of_second_look`.

        looks, second: of each user in this window, together at least 1. parts_before: looks that were paid before, in
        parts of `SECOND_LOOKS`. Other arguments as of `choose`.
        """
        spread = self._spread(looks * SECOND_LOOKS + second, left, parts_before, first_windows, window)
        paid_now = left // spread * (looks * SECOND_LOOKS + second)
        amounts, of_second = amounts_with_second(paid_now, looks, second, self._most_of_second)
        weights, units = _largest_or_smallest(self._listed, amounts)
        payable = np.minimum(looks, left // units)
        again, units_again = _largest_or_smallest(self._listed, of_second)
        payable_again = np.minimum(second, (left - payable * units) // units_again)
        return Chosen(weights, units, payable), Chosen(again, units_again, payable_again)

    def _spread(self, looks: Whole, left: Whole, looks_before: Whole, first_windows: Whole, window: int) -> Whole:
        """Over how many looks what is left is spread, at least 1."""
        windows_left = self._horizon - 1 - window
        windows_so_far = np.maximum(window - first_windows + 1, self._least_seen)
        # More looks than a purse can pay for change nothing, and would not fit into 63 bits.
        looks_so_far = np.minimum(looks_before + looks, MOST_LOOKS)
        expected = looks_so_far * windows_left // (windows_so_far + windows_left // _PATIENCE)
        # If there are more looks than units, the share is 0, however many more.
        spread: Whole = np.minimum(expected, left) + looks
        return spread


def amounts_with_second(paid: Whole, looks: Whole, second: Whole, most_of_second: int) -> tuple[Whole, Whole]:
    """What one look and one second look may cost, of units that are paid for all of them. Second looks get all if there
    are no others."""
    fewest: Whole = np.where(looks > 0, np.maximum(FEWEST_BESIDE, second * SECOND_PART), np.maximum(second, 1))
    of_second: Whole = np.minimum(paid // fewest, most_of_second)
    of_look: Whole = (paid - of_second * second) // np.maximum(looks, 1)
    return of_look, of_second


def _largest_or_smallest(listed: PricedWeights, shares: Whole) -> tuple[Whole, Whole]:
    """The largest weights that cost at most these shares, and at least the smallest one; and what they cost."""
    return listed.largest(np.maximum(shares, listed.units[0]))
