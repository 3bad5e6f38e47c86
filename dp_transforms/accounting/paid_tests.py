"""A search: with which noise, order, weights and threshold contributions find most for a budget.

No guarantee hangs on it: a plan checks the budget, every price and the threshold. The search reads declared numbers,
never a log, and prices on a coarse grid of the continuous law (docs/guarantee.md, "The noise of contributions"). It
minimises the number of users from which an item is found with 95 % probability at the smallest safe threshold: the
geometric mean of this number over the usual activities, from the least to the largest.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_bounds import MAX_ORDER, Published
from dp_transforms.accounting.price_list import PriceList, make_price_list, order_budget, price_list_of_amounts
from dp_transforms.errors import InputError

SHAPES = (1.0, 1.15, 1.5, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0)
SHARES_OPEN = (0.02, 0.1, 0.3, 0.5, 0.75)  # of delta
_LARGEST_SCALE = 50_000
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


class ChosenTests(NamedTuple):
    """What `choose_tests` found.

    shape, order: of the noise, and of the divergence. budget: that a full user budget stands for. delta_tests,
        delta_open: all tests are (epsilon, delta_tests)-DP, and delta_open pays for items that one user alone holds; 0
        with public items.
    """

    shape: float
    order: float
    budget: float
    delta_tests: float
    delta_open: float


def choose_tests(
    epsilon: float,
    delta: float,
    *,
    usual_tests: tuple[int, int],
    most_tests: int,
    false_name_error: float | None = None,
) -> ChosenTests:
    """The numbers that find most for this budget and activity.

    delta: for tests and open items together; what sampling and hashes need is taken off before.
    usual_tests: most users have between so many contributions in the whole run, the smaller number first. most_tests:
    a user's further ones do not count. false_name_error: None for open items. With public items no threshold has to be
    safe: all of delta goes to the tests, and the threshold is the smallest that noise alone reaches with at most this
    probability.
    """
    search = _Search(epsilon, delta, usual_tests, most_tests, false_name_error)
    best = search.best()
    if best is None:
        raise InputError(
            "epsilon",
            f"= {epsilon:g} with delta = {delta:g} cannot pay for {most_tests} contributions of a user at any order up "
            f"to {MAX_ORDER:g}.",
            "Raise epsilon or delta, or lower most_contributions.",
        )
    delta_tests, delta_open = delta * (1 - best.share_open), delta * best.share_open
    budget = order_budget(best.order, epsilon, delta_tests)
    return ChosenTests(best.shape, best.order, budget, delta_tests, delta_open)


def price_lists(
    chosen: ChosenTests,
    most_tests: int,
    *,
    level_spacing: float,
    amounts: Sequence[tuple[float, tuple[int, ...] | None]],
) -> dict[float, PriceList]:
    """A price list for each shape of the noise, all on one grid.

    level_spacing: of the boundaries of levels, in standard deviations. amounts: shapes, and of each the units for which
    there is a weight; None for those of `make_price_list`.
    """
    scale = max(_scale_for(shape, chosen.order, chosen.budget, most_tests) for shape, _ in amounts)
    found = {}
    for shape, of_shape in amounts:
        noise = ExponentialPower(shape, scale)
        published = Published(noise, chosen.order, math.ceil(level_spacing * noise.standard_deviation))
        if of_shape is None:
            found[shape] = make_price_list(published, chosen.budget, most_tests)
        else:
            found[shape] = price_list_of_amounts(published, chosen.budget, most_tests, of_shape)
    return found


class _Found(NamedTuple):
    """users: the mean logarithm of the users needed."""

    users: float
    shape: float
    order: float
    share_open: float


def _best(found: Iterable[_Found | None]) -> _Found | None:
    return min((each for each in found if each is not None), default=None)


class _Search(NamedTuple):
    """For the numbers that find most. Names as in `choose_tests`."""

    epsilon: float
    delta: float
    usual_tests: tuple[int, int]
    most_tests: int
    false_name_error: float | None

    def best(self) -> _Found | None:
        """None if the budget pays for none. From the best of some shapes and orders, or of all where some are not
        enough."""
        some = np.clip(1 + _ORDERS * 2 * math.log(1 / self.delta) / max(self.epsilon, 1e-9), 1.05, MAX_ORDER)
        orders = sorted(set(some.tolist()))
        start = _best(itertools.starmap(self.of, itertools.product(SHAPES[::_STRIDE], orders[::_STRIDE])))
        if start is None:
            best = _best(itertools.starmap(self.of, itertools.product(SHAPES, orders)))
        else:
            best = self._from(start, orders)
        if best is None:
            return None
        finer = [best.order ** (1 - step / 8) * (best.order * 1.29) ** (step / 8) for step in range(-7, 8)]
        return _best([best, *(self.of(best.shape, order) for order in finer if 1.01 < order <= MAX_ORDER)])

    def _from(self, start: _Found, orders: list[float]) -> _Found | None:
        """To neighbours of this shape and order, while these find more."""
        seen: dict[tuple[int, int], _Found | None] = {}
        here = (SHAPES.index(start.shape), orders.index(start.order))
        while True:
            for row, column in ((here[0] + i, here[1] + j) for i in (0, -1, 1) for j in (0, -1, 1)):
                if (row, column) not in seen and 0 <= row < len(SHAPES) and 0 <= column < len(orders):
                    seen[row, column] = self.of(SHAPES[row], orders[column])
            best = _best(seen.values())
            if best is None or best == seen[here]:
                return best
            here = (SHAPES.index(best.shape), orders.index(best.order))

    def of(self, shape: float, order: float) -> _Found | None:
        """With the best split of delta."""
        shares = SHARES_OPEN if self.false_name_error is None else (0.0,)
        return _best(self._with_share(shape, order, share) for share in shares)

    def _with_share(self, shape: float, order: float, share_open: float) -> _Found | None:
        """The mean logarithm of (T + quantile) / weight."""
        budget = order_budget(order, self.epsilon, self.delta * (1 - share_open))
        if budget <= 0:
            return None
        activities = sorted(set(np.geomspace(*self.usual_tests, _ACTIVITIES).round().tolist()))
        tests, curve = np.array([*activities, self.most_tests]), _curve(shape, order)
        weights = _weights(curve, budget / tests)
        if weights[-1] == -math.inf or weights[0] == -math.inf:
            return None
        found = self._threshold(shape, curve, budget, self.delta * share_open)
        found += float(_quantile(shape, np.array([_FOUND]))[0])
        return _Found(math.log(found) - float(np.mean(weights[:-1])), shape, order, share_open)

    def _threshold(self, shape: float, curve: Floats, budget: float, delta_open: float) -> float:
        """The smallest safe T, in scales."""
        if self.false_name_error is not None:
            return float(_quantile(shape, np.array([self.false_name_error]))[0])
        least = budget / self.most_tests
        smallest = math.exp(float(_weights(curve, np.array([least]))[0]))
        payable = np.flatnonzero((curve <= budget) & (smallest <= _WEIGHTS))
        charged = np.maximum(curve[payable], least)
        threshold = float(np.max(_WEIGHTS[payable] + _quantile(shape, delta_open * charged / budget), initial=0.0))
        return max(threshold, smallest + float(_quantile(shape, np.array([delta_open / self.most_tests]))[0]))


def _weights(curve: Floats, amounts: Floats) -> Floats:
    """Logarithms of the weights that cost these amounts, in scales; -inf below the smallest of the curve."""
    prices = np.log(np.maximum(curve, 1e-300))
    return np.interp(np.log(np.maximum(amounts, 1e-300)), prices, _LOG_WEIGHTS, left=-math.inf)


def _scale_for(shape: float, order: float, budget: float, most_tests: int) -> int:
    """Large enough for the smallest weight to be some tens, or at least 10: rounding it down costs little then."""
    smallest = math.exp(float(_weights(_curve(shape, order), np.array([budget / most_tests]))[0]))
    usual = max(_SCALE_FOR_1000_TESTS, round(_SCALE_FOR_1000_TESTS * math.sqrt(most_tests / 1e4)))
    return min(_LARGEST_SCALE, max(usual, math.ceil(_SMALLEST_WEIGHT / max(smallest, 1e-9))))


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
