"""The price list of a run: the weights that a user may have in a test, and what each costs of a user budget; the
smallest safe threshold of items that nobody named before; and what stated sizes allow for noise.

Guarantees, also when weights are chosen adaptively:

- If the whole numbers of `units` that a user pays for its tests never add up to more than `BUDGET_UNITS`, all tests
  together have a Renyi divergence of at most `budget` at this order (docs/guarantee.md, "Theorem of the user budget").
  Prices are rounded up to whole units, so adding them up is exact, and a user budget is one 64-bit integer.
- An item that nobody else holds is named in any test of a user's whole life with a probability of at most delta_open,
  from `smallest_open_threshold` on ("Lone items"). The smallest weight is charged a `most_tests`-th of a user budget,
  even where its price is lower; so no user has more tests, and this threshold is finite.
- An interaction whose divergence of an order is at most B, either way, is (epsilon, delta)-DP with

      delta = e^((order - 1)(B - epsilon)) (1 - 1/order)^order / (order - 1)

  (`order_budget`; Canonne, Kamath, Steinke (2020), Proposition 12). Budgets are rounded down, deltas up.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import smallest_whole
from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_bounds import (
    ROUNDING,
    SMALLEST_PRICE,
    Published,
    check_published,
    log_tails,
    price_bounds,
    within,
)
from dp_transforms.accounting.priced_weights import BUDGET_UNITS, FEWEST_STATED, PricedWeights
from dp_transforms.checks import check_positive, check_range, check_whole

_EACH = 32  # up to so many tests each number has its own weight, beyond it weights rise by the ratio
_RATIO = 1.02  # of amounts; weights go with their root or less, so that rounding down costs at most about 1 %
_SOME_WEIGHTS = 60  # with prices between which others are guessed at first
_GUESSES = 3  # by powers, before halves
_FEW_WEIGHTS = 12  # among which the smallest of some is found
_LOWER, _LESS = 4e-4, 4e-4  # of an amount, so that most weights cost no more; and of a weight that does
_MORE = 1 + 1e-9  # before rounding up: above the error of a few products of floats
_SAFE = 1 - 1e-9  # of a share of delta: above the float error of the product
_DEVIATIONS = 9.0  # beyond so many of a binomial count lies less than 1e-18

Floats = npt.NDArray[np.float64]


def order_budget(order: float, epsilon: float, delta: float) -> float:
    """The largest divergence of this order that proves (epsilon, delta), rounded down; negative where none does.

    >>> f"{order_budget(17, 2.0, 5e-10):.6f}"
    '0.899175'
    """
    loss = conversion_loss(order, delta)
    return epsilon - loss - ROUNDING * (epsilon + abs(loss))


def conversion_loss(order: float, delta: float) -> float:
    """What epsilon is above a divergence of this order, at this delta."""
    return (order * math.log1p(-1 / order) - math.log(order - 1) - math.log(delta)) / (order - 1)


@dataclasses.dataclass(frozen=True)
class PriceList:
    """What tests cost at one order. `make_price_list` makes it; `check_prices` judges one that was read.

    noise, order, budget: the law, the order, and the Renyi divergence that a full user budget stands for.
    weights: whole numbers, rising. units: what a test with each costs, rising, at most BUDGET_UNITS.
    spacing: distance of the boundaries of levels, in integers.
    """

    noise: ExponentialPower
    order: float
    budget: float
    weights: tuple[int, ...]
    units: tuple[int, ...]
    spacing: int

    @property
    def published(self) -> Published:
        return Published(self.noise, self.order, self.spacing)

    @property
    def most_tests(self) -> int:
        """A user budget pays for no more tests than this."""
        return BUDGET_UNITS // self.units[0]

    def replay_weight(self, tests: int, reserved: int = 0) -> int:
        """The weight of a user with so many tests in the whole run, of which at most `most_tests` count; 0: none.

        reserved: units of a user budget that are not for these tests.
        """
        left = BUDGET_UNITS - reserved
        amount = left // min(check_whole("contributions", tests, 1), max(1, left // self.units[0]))
        return int(self.listed.largest(np.array([amount]))[0][0])

    @functools.cached_property
    def listed(self) -> PricedWeights:
        """`weights` and `units`, as the workers of a run look them up."""
        return PricedWeights.of(self.weights, self.units)


def check_prices(prices: PriceList) -> None:
    """Raises ValueError unless each weight costs at most its units: every price is bounded again."""
    enough = _enough(prices)
    if not np.all(enough):
        place = int(np.argmin(enough))
        raise ValueError(
            f"weight {prices.weights[place]} costs more than its {prices.units[place]} units. Use make_price_list."
        )


@functools.lru_cache(maxsize=16)  # a plan that was made is read again
def _enough(prices: PriceList) -> npt.NDArray[np.bool_]:
    """Whether each weight certainly costs at most its units."""
    _check_terms(prices.published, prices.budget)
    paid = np.array(prices.units) * (prices.budget / BUDGET_UNITS / _MORE)
    return within(prices.published, np.array(prices.weights), paid)


def make_price_list(published: Published, budget: float, most_tests: int) -> PriceList:
    """The price list for users who pay for up to `most_tests` tests.

    Weights: for 1, 2, ... 32 tests the largest that a full budget can pay for each, then more coarsely; so
    rounding costs a weight at most about 1 % (and one integer).
    """
    _check_terms(published, budget)
    least = BUDGET_UNITS // most_tests
    amounts = (BUDGET_UNITS // number for number in _numbers_of_tests(most_tests))
    paid = np.array(sorted({max(least, amount) for amount in amounts}, reverse=True))
    largest, units = _largest_weights(published, budget, paid)
    if not np.all(largest):
        raise _too_little(published, int(paid[int(np.argmin(largest))]))
    listed = dict(zip(largest.tolist(), np.maximum(units, least).tolist(), strict=True))
    weights = tuple(sorted(listed))
    units_of_each = tuple(listed[weight] for weight in weights)
    return PriceList(published.noise, published.order, budget, weights, units_of_each, published.spacing)


def price_list_of_amounts(published: Published, budget: float, most_tests: int, amounts: Iterable[int]) -> PriceList:
    """A price list with a weight for each of these amounts of units, in a quarter of the time: weights are between
    those of which the price is known, and about 0.1 % and an integer or two below the largest. Each is checked."""
    _check_terms(published, budget)
    least = BUDGET_UNITS // most_tests
    paid = np.array(sorted({max(least, amount) for amount in amounts}))
    weights, less = _weights_between(published, budget, paid), _LESS
    while np.all(weights):
        listed, first = np.unique(weights, return_index=True)  # of amounts that buy one weight, the smallest
        units = tuple(paid[first].tolist())
        prices = PriceList(published.noise, published.order, budget, tuple(listed.tolist()), units, published.spacing)
        if np.all(enough := _enough(prices)):
            return prices
        dear = np.isin(weights, listed[~enough])
        weights = np.minimum.accumulate(np.where(dear, weights * (1 - less), weights)[::-1])[::-1].astype(np.int64)
        less *= 2
    raise _too_little(published, int(paid[int(np.argmin(weights))]))


def _too_little(published: Published, paid: int) -> ValueError:
    return ValueError(
        f"a user budget for {BUDGET_UNITS // max(1, paid)} tests leaves too little for each at scale"
        f" {published.noise.scale}. Use a larger scale, or fewer tests."
    )


def _weights_between(published: Published, budget: float, amounts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each amount a weight with a price of a little less, by cubic polynomials through the prices of some."""
    scarce, most = (float(amount) / BUDGET_UNITS * budget for amount in (amounts.min(), amounts.max()))

    def prices_of(weights: npt.NDArray[np.int64]) -> Floats:
        return np.maximum.accumulate(
            price_bounds(published, weights, least=max(SMALLEST_PRICE, scarce / 2), most=2 * most)
        )

    largest = published.noise.scale
    while prices_of(np.array([largest]))[0] <= most and largest < published.spacing:
        largest *= 2
    few = np.unique(np.geomspace(1, largest, _FEW_WEIGHTS).astype(np.int64))
    smallest = few[max(0, int(np.searchsorted(prices_of(few), scarce)) - 1)]
    weights = np.unique(np.geomspace(smallest, largest, _SOME_WEIGHTS).astype(np.int64))
    prices, first = np.unique(prices_of(weights), return_index=True)
    is_known = np.isfinite(prices)
    xs, ys = np.log(prices[is_known]), np.log(weights[first[is_known]])
    if len(xs) < 2:
        return np.full(len(amounts), weights[0])
    at, slopes = np.clip(np.log(amounts / BUDGET_UNITS * budget) - _LOWER, xs[0], xs[-1]), np.gradient(ys, xs)
    k = np.maximum(np.searchsorted(xs, at) - 1, 0)
    width = xs[k + 1] - xs[k]
    t = (at - xs[k]) / width
    low, high = (1 + 2 * t) * ys[k] + t * width * slopes[k], (3 - 2 * t) * ys[k + 1] - (1 - t) * width * slopes[k + 1]
    found: npt.NDArray[np.int64] = np.floor(np.exp((1 - t) ** 2 * low + t**2 * high)).astype(np.int64)
    return found


def _numbers_of_tests(most: int) -> list[int]:
    """Up to this one: each up to 32, and then by the ratio."""
    steps = math.ceil(max(0.0, math.log(most / _EACH)) / math.log(_RATIO))
    finer = np.geomspace(_EACH, most, steps + 1).tolist() if steps else []
    return sorted({*range(1, min(most, _EACH) + 1), *(min(most, math.ceil(n)) for n in finer), most})


def _check_terms(published: Published, budget: float) -> None:
    check_published(published)
    check_positive("budget", budget)
    check_range("budget * (order - 1)", budget * (published.order - 1), 0, 500)


def _largest_weights(
    published: Published, budget: float, amounts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each amount a weight with a price of at most that, the largest up to 0.1 % of it, or 0; and its price.

    From the prices of some weights by interpolation, then by squares, prices being close to them, and by halves.
    """

    def units_of(weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        scarce, most = (float(amount) / BUDGET_UNITS * budget for amount in (amounts.min(), amounts.max()))
        share = price_bounds(published, weights, least=max(SMALLEST_PRICE, scarce / 2), most=most) / budget * _MORE
        return np.asarray(np.ceil(np.where(share <= 1, share, 2) * BUDGET_UNITS), dtype=np.int64)

    weights = _some_weights(published, units_of, int(amounts.max()))
    costs = np.maximum.accumulate(units_of(weights))
    guess = np.exp(np.interp(np.log(np.maximum(amounts, 1)), np.log(costs), np.log(weights))).astype(np.int64)
    low, low_cost = np.zeros(len(amounts), dtype=np.int64), np.ones(len(amounts), dtype=np.int64)
    high = np.full(len(amounts), np.iinfo(np.int64).max // 4)  # the smallest known not to be payable
    at = np.arange(len(amounts))  # those that are not done
    attempt = 0
    while True:
        cost = units_of(guess)
        payable = cost <= amounts[at]
        low[at[payable]], low_cost[at[payable]] = guess[payable], cost[payable]
        high[at[~payable]] = guess[~payable]
        done = (high[at] - low[at] <= 1) | ((low[at] > 0) & (amounts[at] * 0.999 <= low_cost[at]))
        at, guess, cost = at[~done], guess[~done], cost[~done]
        if not len(at):
            return low, low_cost
        halves = (low[at] + np.minimum(high[at], 4 * low[at] + 4)) // 2
        closer = guess * np.sqrt(amounts[at] * 0.9998 / cost)
        guess = np.clip(closer.astype(np.int64) if attempt < _GUESSES else halves, low[at] + 1, high[at] - 1)
        attempt += 1


def _some_weights(
    published: Published, units_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]], most: int
) -> npt.NDArray[np.int64]:
    """From 1 to one that costs more than the largest amount, or is as large as any may be."""
    largest = published.noise.scale
    while units_of(np.array([largest]))[0] <= most and largest < published.spacing:
        largest *= 2
    return np.array(sorted(set(np.geomspace(1, largest, _SOME_WEIGHTS).astype(np.int64).tolist())))


def smallest_open_threshold(prices: PriceList, delta_open: float, *, open_units: int = BUDGET_UNITS) -> int:
    """The smallest T with ``Pr[Z >= T - w] <= delta_open * units(w) / open_units`` for every weight w of the list.

    open_units: what a user can pay for tests of open items. A weight that costs more has none of these tests. The
    shares of all tests add up to at most 1. With the smallest weight in each of `most_tests` tests the bound is met, so
    that no smaller T is safe where that weight binds, as it nearly always does.
    """
    noise = prices.noise
    units = np.array([units for units in prices.units if units <= open_units])
    shares = np.log(units / open_units * delta_open * _SAFE)
    reach = noise.smallest_margin(math.exp(float(shares.min()))) + 1
    tails = log_tails(noise, reach)
    tails = tails[len(tails) // 2 + 1 :]  # of m = 1, 2, ...
    margins = 1 + np.searchsorted(-tails * (1 - ROUNDING), -shares)
    return int(np.max(np.array(prices.weights[: len(units)]) + margins))


def smallest_size_margin(
    prices: PriceList, size_error: float, users: int, most_unheld: int, paid: int = BUDGET_UNITS
) -> int:
    """The smallest z at which at most `size_error` of all sizes that a run states are too large, on average.

    A stated N of at least k + 1 = `FEWEST_STATED` is too large only if ``Z > z + k (W - w)``, with w the largest weight
    in the sum and W that of the plan: its user pays for it. Where nobody adds anything, only if ``Z > z + k W``.
    users: of the run, at most. most_unheld: sums of 0 that are drawn, on average (docs/guarantee.md, "Sizes").
    paid: what a user can pay for these tests; no weight that costs more is among them.
    """
    noise, weights, units = prices.noise, np.array(prices.weights), np.array(prices.units)
    weights, tests = weights[units <= paid], paid / units[units <= paid]
    largest, others = int(weights.max()), FEWEST_STATED - 1
    below = others * (largest - weights)

    def is_enough(z: int) -> bool:
        of_one = np.exp(noise.log_upper_tail(z + 1 + below)) * tests
        of_nobody = most_unheld * noise.upper_tail(z + 1 + others * largest)
        return bool(users * of_one.max() + of_nobody <= size_error * _SAFE)

    return smallest_whole(is_enough, -1, noise.scale)


def found_from(
    prices: PriceList, threshold: int, contributions: int, probability: float = 0.95, *, reserved: int = 0
) -> int:
    """From how many users on an item is found in a window with this probability, if each has so many contributions in
    the run; of more than a user budget pays for, a random choice counts. No guarantee depends on it.

    probability: at least 1/2. reserved: units of a user budget that are not for these tests.
    """
    check_range("probability", probability, 0.5, 1 - 1e-12)
    weight = prices.replay_weight(contributions, reserved)
    share = (BUDGET_UNITS - reserved) // prices.units[0] / contributions
    if share < 1:
        return smallest_whole(lambda users: _found(prices, threshold, weight, users, share) >= probability, 0, 1)
    # Pr[Z >= T - N w] >= probability where Pr[Z >= 1 - (T - N w)] <= 1 - probability.
    return math.ceil((threshold + prices.noise.smallest_margin(1 - probability) - 1) / weight)


_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


def _found(prices: PriceList, threshold: int, weight: int, users: int, share: float) -> float:
    """With which probability an item of so many users is found, each of whom counts with the probability `share`."""
    spread = _DEVIATIONS * math.sqrt(users * share * (1 - share)) + _DEVIATIONS
    counts = np.arange(max(0, math.floor(users * share - spread)), min(users, math.ceil(users * share + spread)) + 1)
    log_mass = math.lgamma(users + 1) - _log_gamma(counts + 1.0) - _log_gamma(users - counts + 1.0)
    log_mass += counts * math.log(share) + (users - counts) * math.log1p(-share)
    return float(np.sum(np.exp(log_mass + prices.noise.log_upper_tail(threshold - counts * weight))))
