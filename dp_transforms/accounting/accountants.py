"""What accountants share: their solver, and the shares of delta that noise does not need.

An accountant, `GameAccountant` or another, says what a whole interaction costs for one unit of privacy: it is (epsilon,
delta(epsilon))-DP for every epsilon, and (epsilon(delta), delta)-DP for every delta; epsilon(delta) is infinite where
nothing is proved. Neither number is ever rounded down: the solver returns an argument at which the bound was evaluated
and holds.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import empty_items_total_variation
from dp_transforms.checks import is_number
from dp_transforms.errors import InputError

ROUNDING = 1e-10  # relative; far above the float error of their sums, far below what can be measured
_SMALLEST_LOG = -740.0  # just above the logarithm of the smallest float


def check_delta(delta: float) -> None:
    if not is_number(delta) or not 0 < delta < 1:
        raise InputError(
            "delta", f"must lie strictly between 0 and 1, got {delta!r}.", "Use a small one, such as 1e-9."
        )


def check_epsilon(epsilon: float) -> None:
    if not is_number(epsilon) or not 0 <= epsilon < math.inf:
        raise InputError("epsilon", f"must be finite and >= 0, got {epsilon!r}.")


def running_figure(epsilons: npt.NDArray[np.float64], epsilon: float) -> tuple[float, ...]:
    """The largest so far, with six digits, rounded up but at most `epsilon`. It is published: all workers must publish
    the same, and processors differ in the last digits of exp."""
    up = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)
    largest = np.maximum.accumulate(epsilons).tolist()
    return tuple(min(epsilon, float(up.create_decimal_from_float(each))) for each in largest)


def smallest_safe_argument(
    delta_at: Callable[[float], float],
    delta: float,
    *,
    guess: float,
    lowest: float,
    highest: float,
    tolerance: float = 1e-7,
) -> float:
    """The smallest x in [lowest, highest] with ``delta_at(x) <= delta``, rounded up by a relative `tolerance` or so.

    delta_at must not increase with x. Both of its uses are close to linear after the change of variable to
    ``sqrt(-ln delta)``: in epsilon, and in the noise scale; so a secant finds the root in a few evaluations. The value
    returned is one at which delta_at was evaluated and holds. Raises ValueError if even `highest` does not hold.
    """
    wanted = math.sqrt(-math.log(delta))

    def excess(x: float) -> float:
        """Positive or zero where x is safe."""
        value = delta_at(x)
        log_delta = math.log(value) if value > 0 else _SMALLEST_LOG
        return math.sqrt(max(0.0, -log_delta)) - wanted

    def safe(x: float) -> bool:
        return delta_at(x) <= delta

    at, step = min(max(guess, lowest), highest), 1.1
    if safe(at):
        above = at
        while at > lowest and safe(at):
            above, at, step = at, max(lowest, at / step if at / step > 1e-9 else lowest), step * step
        if safe(at):
            return at
        below = at
    else:
        below = at
        while not safe(at):
            if at >= highest:
                raise ValueError(f"no argument up to {highest:.6g} reaches delta = {delta:.6g}.")
            below, at, step = at, min(highest, max(at * step, 1e-9)), step * step
        above = at
    gain_below, gain_above = excess(below), excess(above)
    if not gain_below < 0 < gain_above:
        return above
    root, step = _root(excess, below, above, tolerance * above, 4 * tolerance), tolerance
    while root < above and not safe(root):
        root, step = root * (1 + step), step * 2
    return min(root, above)


def _root(value: Callable[[float], float], below: float, above: float, tolerance: float, relative: float) -> float:
    """Where it is 0, between two arguments of different signs: Brent's method, step by step as scipy's brentq."""
    before, at, other = below, above, below
    at_before, here, there = value(below), value(above), 0.0
    step_before = step = above - below
    while True:
        if at_before * here < 0:
            other, there = before, at_before
            step_before = step = at - before
        if abs(there) < abs(here):
            before, at, other = at, other, at
            at_before, here, there = here, there, here
        least, half = (tolerance + relative * abs(at)) / 2, (other - at) / 2
        if here == 0 or abs(half) < least:
            return at
        tried = math.inf
        if abs(step_before) > least and abs(here) < abs(at_before):
            if before == other:
                tried = -here * (at - before) / (here - at_before)
            else:
                slope, slope_there = (at_before - here) / (before - at), (there - here) / (other - at)
                tried = -here * (there * slope_there - at_before * slope) / (slope_there * slope * (there - at_before))
        is_short = 2 * abs(tried) < min(abs(step_before), 3 * abs(half) - least)
        step_before, step = (step, tried) if is_short else (half, half)
        before, at_before = at, here
        at += step if abs(step) > least else math.copysign(least, half)
        here = value(at)


def hash_delta(max_users: int, max_items: int) -> float:
    """Another user with the same 64-bit hash, or two items of the run with the same 128-bit hash: of a user's items
    also those that do not count, since labels are read from all of them (docs/guarantee.md, "How delta is
    split for contributions")."""
    return (max_users + max_items**2 / 2.0**64) / 2.0**64


def sampling_delta(epsilon: float, distance_of_draws: float, horizon: int, public_item_count: int) -> float:
    """Both directions of ``P' <= P + d <= e^eps Q + delta + d <= e^eps (Q' + d) + delta + d``.

    d: distance_of_draws, of all draws that one user is part of, from their exact distributions; in a known domain also
    of one draw a window, of the items that nobody holds.
    """
    distance = distance_of_draws
    if public_item_count:
        distance += horizon * empty_items_total_variation(public_item_count)
    return (1 + math.exp(epsilon)) * distance
