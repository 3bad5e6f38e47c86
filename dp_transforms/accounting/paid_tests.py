"""The numbers of tests that users pay for: which noise, order, weights and threshold find most for a budget.

Guarantee: whatever is chosen, the result is safe: `PaidTests` checks the budget, every price and the threshold. The
search alone reads declared numbers, never a log, and prices on a coarse grid of the continuous law (docs/guarantee.md,
"The noise of contributions"). It minimises the number of users from which an item is found with 95 % probability, as a
geometric mean over activities from the first to the last of the usual ones, at the smallest safe threshold.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.composition import check_delta, check_epsilon
from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_bounds import MAX_ORDER
from dp_transforms.accounting.price_list import (
    MOST_LOOKS,
    PriceList,
    make_price_list,
    order_budget,
    smallest_open_threshold,
)
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.checks import check_range, check_whole, shown
from dp_transforms.errors import InputError

DEFAULT_USUAL_LOOKS, DEFAULT_MOST_LOOKS = (1, 1000), 3000
SMALLEST_KNOWN_ERROR = 1e-30
SHAPES = (1.0, 1.15, 1.5, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0)
SHARES_OPEN = (0.02, 0.1, 0.3, 0.5, 0.75)  # of delta
LARGEST_SCALE = 50_000
_ORDERS = np.geomspace(0.15, 2.5, 12)  # times 2 ln(1/delta) / epsilon, at which half of epsilon goes into conversion
_STRIDE = 3  # of shapes and orders that are looked at first
_SCALE_FOR_1000_TESTS = 10_000
_SMALLEST_WEIGHT = 10
_ACTIVITIES = 5
_POINTS = np.concatenate([np.linspace(-4, 6, 251), np.linspace(6, 16, 101)[1:]])  # thresholds less counts, in scales
_WEIGHTS = np.geomspace(2e-5, 1.2, 60)  # in scales
_LOG_WEIGHTS = np.log(_WEIGHTS)
_FOUND = 0.05  # probability with which an item at the size sought is missed

Floats = npt.NDArray[np.float64]


class Terms(NamedTuple):
    """What is searched for. Names as in `choose_tests`."""

    epsilon: float
    delta: float
    usual_looks: tuple[int, int]
    most_looks: int
    known_error: float | None

    @property
    def shares_open(self) -> tuple[float, ...]:
        return SHARES_OPEN if self.known_error is None else (0.0,)


@dataclasses.dataclass(frozen=True, order=True)
class Found:
    """users: the mean logarithm of the users needed."""

    users: float
    shape: float
    order: float
    share_open: float


def best_terms(terms: Terms, shapes: Sequence[float]) -> Found | None:
    """The numbers that find most; None if the budget pays for none. From the best of some shapes and orders, or of all
    where some are not enough."""
    some = np.clip(1 + _ORDERS * 2 * math.log(1 / terms.delta) / max(terms.epsilon, 1e-9), 1.05, MAX_ORDER)
    orders = sorted(set(some.tolist()))
    find = functools.partial(_found, terms)
    start = _best(itertools.starmap(find, itertools.product(shapes[::_STRIDE], orders[::_STRIDE])))
    if start is None:
        best = _best(itertools.starmap(find, itertools.product(shapes, orders)))
    else:
        best = _descend(find, shapes, orders, start)
    if best is None:
        return None
    return _best([best, *(find(best.shape, order) for order in _orders_around(best.order))])


def _descend(
    find: Callable[[float, float], Found | None], shapes: Sequence[float], orders: Sequence[float], start: Found
) -> Found | None:
    """From this shape and order to neighbours, while these find more."""
    seen: dict[tuple[int, int], Found | None] = {}
    here = (shapes.index(start.shape), orders.index(start.order))
    while True:
        around = [(here[0] + i, here[1] + j) for i in (0, -1, 1) for j in (0, -1, 1)]
        for row, column in around:
            if (row, column) not in seen and 0 <= row < len(shapes) and 0 <= column < len(orders):
                seen[row, column] = find(shapes[row], orders[column])
        best = _best(seen.values())
        if best is None or best == seen[here]:
            return best
        here = (shapes.index(best.shape), orders.index(best.order))


def _orders_around(order: float) -> list[float]:
    orders = [order ** (1 - step / 8) * (order * 1.29) ** (step / 8) for step in range(-7, 8)]
    return [order for order in orders if 1.01 < order <= MAX_ORDER]


def _best(found: Iterable[Found | None]) -> Found | None:
    return min((each for each in found if each is not None), default=None)


def _found(terms: Terms, shape: float, order: float) -> Found | None:
    """With the best split of delta."""
    return _best(_found_with(terms, shape, order, share) for share in terms.shares_open)


def _found_with(terms: Terms, shape: float, order: float, share_open: float) -> Found | None:
    """The mean logarithm of (T + quantile) / weight."""
    budget = order_budget(order, terms.epsilon, terms.delta * (1 - share_open))
    if budget <= 0:
        return None
    activities = sorted(set(np.geomspace(*terms.usual_looks, _ACTIVITIES).round().tolist()))
    looks, curve = np.array([*activities, terms.most_looks]), _curve(shape, order)
    weights = _weights(curve, budget / looks)
    if weights[-1] == -math.inf or weights[0] == -math.inf:
        return None
    found = _threshold(terms, shape, curve, budget, terms.delta * share_open)
    found += float(_quantile(shape, np.array([_FOUND]))[0])
    return Found(math.log(found) - float(np.mean(weights[:-1])), shape, order, share_open)


def _weights(curve: Floats, amounts: Floats) -> Floats:
    """Logarithms of the weights that cost these amounts, in scales; -inf below the smallest of the curve."""
    prices = np.log(np.maximum(curve, 1e-300))
    return np.interp(np.log(np.maximum(amounts, 1e-300)), prices, _LOG_WEIGHTS, left=-math.inf)


def _threshold(terms: Terms, shape: float, curve: Floats, budget: float, delta_open: float) -> float:
    """The smallest safe T, in scales."""
    if terms.known_error is not None:
        return float(_quantile(shape, np.array([terms.known_error]))[0])
    least = budget / terms.most_looks
    smallest = math.exp(float(_weights(curve, np.array([least]))[0]))
    payable = np.flatnonzero((curve <= budget) & (smallest <= _WEIGHTS))
    charged = np.maximum(curve[payable], least)
    threshold = float(np.max(_WEIGHTS[payable] + _quantile(shape, delta_open * charged / budget), initial=0.0))
    return max(threshold, smallest + float(_quantile(shape, np.array([delta_open / terms.most_looks]))[0]))


def scale_for(shape: float, order: float, budget: float, most_looks: int) -> int:
    """Large enough for the smallest weight to be some tens, or at least 10: rounding it down costs little then."""
    smallest = math.exp(float(_weights(_curve(shape, order), np.array([budget / most_looks]))[0]))
    usual = max(_SCALE_FOR_1000_TESTS, round(_SCALE_FOR_1000_TESTS * math.sqrt(most_looks / 1e4)))
    return min(LARGEST_SCALE, max(usual, math.ceil(_SMALLEST_WEIGHT / max(smallest, 1e-9))))


@functools.lru_cache(maxsize=4096)
def _curve(shape: float, order: float) -> Floats:
    """Prices of `_WEIGHTS`, about; infinite where they overflow."""
    without, with_user = _grid(shape)
    there, back = (
        sum(_outcome_excess(p, log_p, log_q, order) for (log_p, p), (log_q, _) in zip(*ways, strict=True))
        for ways in ((with_user, without), (without, with_user))
    )
    excess = np.maximum(np.max(there, axis=1), np.max(back, axis=1))
    return np.minimum(np.maximum.accumulate(np.log1p(np.maximum(excess, 0.0)) / (order - 1)), 1e6)


@functools.lru_cache(maxsize=16)
def _grid(shape: float) -> tuple[list[tuple[Floats, Floats]], list[tuple[Floats, Floats]]]:
    """Of both outcomes at `_POINTS`, without a user and with each of `_WEIGHTS`: the logarithm of the probability, and
    itself; float64[weights, points]."""
    noise = ExponentialPower(shape, 1)
    with_user = noise.log_tails_at(_POINTS - _WEIGHTS[:, None])
    without = [np.broadcast_to(tails, with_user[0].shape) for tails in noise.log_tails_at(_POINTS)]
    return [(log, np.exp(log)) for log in without], [(log, np.exp(log)) for log in with_user]


def _outcome_excess(probability: Floats, log_p: Floats, log_q: Floats, order: float) -> Floats:
    """About ``P ((P/Q)^(order - 1) - 1)`` of one outcome; infinite where it overflows."""
    exponent = (order - 1) * (log_p - log_q)
    gained = probability * np.expm1(np.minimum(exponent, 1.0))
    far = exponent > 1
    with np.errstate(over="ignore"):
        gained[far] = np.exp(log_p[far] + exponent[far]) - probability[far]
    return gained


def _quantile(shape: float, tails: Floats) -> Floats:
    """t with ``Pr[X >= t] = tail`` at scale 1, closely. tails: at most 1/2."""
    log_tails, at = _quantiles(shape)
    return np.interp(np.log(tails), log_tails, at)


@functools.lru_cache(maxsize=16)
def _quantiles(shape: float) -> tuple[Floats, Floats]:
    at = np.linspace(230 ** (1 / shape), 0, 8001)
    return ExponentialPower(shape, 1).log_tails_at(at)[0], at


@dataclasses.dataclass(frozen=True)
class PaidTests:
    """Build it with `choose_tests`; construction checks that the numbers are safe.

    epsilon, delta_looks, delta_open: all tests are (epsilon, delta_looks)-DP, and delta_open pays for items that one
        user alone holds; 0 with public items. prices: with their noise and order. threshold: T of items that were not
        named before. open_units: what a user can pay for tests of such items, of a full budget. Theorem:
        docs/guarantee.md, "Theorem of the user budget".
    """

    epsilon: float
    delta_looks: float
    delta_open: float
    prices: PriceList
    threshold: int
    open_units: int = BUDGET_UNITS

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta_looks)
        affordable = order_budget(self.prices.order, self.epsilon, self.delta_looks)
        if not self.prices.budget <= affordable:
            raise ValueError(
                f"budget must be at most {affordable:.9g} at order {self.prices.order:g} for these epsilon and "
                f"delta_looks, got {self.prices.budget:.9g}. Use choose_tests."
            )
        check_whole("threshold", self.threshold, 1)
        if self.delta_open:
            safe = smallest_open_threshold(self.prices, self.delta_open, open_units=self.open_units)
            if self.threshold < safe:
                raise ValueError(f"threshold must be >= {safe} for this delta_open, got {self.threshold}.")


def choose_tests(
    epsilon: float,
    delta: float,
    *,
    usual_looks: tuple[int, int] = DEFAULT_USUAL_LOOKS,
    most_looks: int = DEFAULT_MOST_LOOKS,
    shapes: Sequence[float] = SHAPES,
    level_spacing: float = 0.0,
    known_error: float | None = None,
    amounts: Sequence[int] | None = None,
    open_units: int = BUDGET_UNITS,
) -> PaidTests:
    """The numbers that find most for this budget and activity.

    delta: for tests and open items together; what sampling and hashes need is taken off before.
    usual_looks: most users have between so many contributions in the whole run. most_looks: a user's further ones do
    not count. level_spacing: of the boundaries of levels, in standard deviations; 0 for no levels. known_error: None
    for open items. With public items no threshold has to be safe: all of delta goes to the tests, and the threshold is
    the smallest that noise alone reaches with at most this probability. amounts, open_units: as in `make_price_list`
    and `smallest_open_threshold`.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    check_whole("most_looks", most_looks, 1, MOST_LOOKS)
    if known_error is not None:
        check_range("known_error", known_error, SMALLEST_KNOWN_ERROR, 0.5)
    usual = check_usual_looks(usual_looks, most_looks)
    best = best_terms(Terms(epsilon, delta, usual, most_looks, known_error), shapes)
    if best is None:
        raise InputError(
            "epsilon",
            f"= {epsilon:g} with delta = {delta:g} cannot pay for {most_looks} contributions of a user at any order up "
            f"to {MAX_ORDER:g}.",
            "Raise epsilon or delta, or lower most_contributions.",
        )
    budget = order_budget(best.order, epsilon, delta * (1 - best.share_open))
    noise = ExponentialPower(best.shape, scale_for(best.shape, best.order, budget, most_looks))
    spacing = math.ceil(level_spacing * noise.standard_deviation)
    prices = make_price_list(noise, best.order, budget, most_looks, spacing=spacing, amounts=amounts)
    if known_error is not None:
        return PaidTests(epsilon, delta, 0.0, prices, noise.smallest_margin(known_error))
    delta_open = delta * best.share_open
    threshold = smallest_open_threshold(prices, delta_open, open_units=open_units)
    return PaidTests(epsilon, delta * (1 - best.share_open), delta_open, prices, threshold, open_units)


def check_usual_looks(usual_looks: object, most_looks: int) -> tuple[int, int]:
    """The pair, the smaller one first. Raises ValueError."""
    if not isinstance(usual_looks, tuple) or len(usual_looks) != 2:
        raise InputError("usual_contributions", f"must be a pair such as (1, 1000), got {shown(usual_looks)}.")
    first, last = sorted(check_whole("each of usual_contributions", looks, 1, most_looks) for looks in usual_looks)
    return first, last
