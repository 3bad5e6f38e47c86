"""The choice of a purse's numbers for a budget and a declared activity: shape, order, split of delta, price of a hit.

Guarantee: whatever is chosen, the result is safe: `PurseChoice` recomputes the budget, every price and the threshold.
The search itself uses prices on a coarse grid of the continuous law, and only decides which numbers are good. It reads
declared numbers, never a log (docs/purse.md, section 3).

What is minimised: the number of users from which an item is found with 95 % probability, as a geometric mean over
activities from the first to the last of the usual ones, at the smallest safe threshold.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.composition import check_delta, check_epsilon
from dp_transforms.accounting.purse.look_prices import MAX_ORDER, outcome_excess
from dp_transforms.accounting.purse.open_threshold import smallest_open_threshold
from dp_transforms.accounting.purse.order_budget import order_budget
from dp_transforms.accounting.purse.price_list import MOST_LOOKS, PURSE_UNITS, PriceList, make_price_list
from dp_transforms.checks import check_range, check_whole, shown
from dp_transforms.exponential_power import ExponentialPower

SHAPES = (1.0, 1.5, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0)
SHARES_OPEN = (0.02, 0.1, 0.3, 0.5, 0.75)  # of delta
SHARES_HITS = (0.0, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85)  # of a purse, for the declared hits together
DEFAULT_USUAL_LOOKS = (1, 1000)
DEFAULT_MOST_LOOKS = 3000
SMALLEST_KNOWN_ERROR = 1e-30
_ORDERS = np.geomspace(0.15, 2.5, 12)  # times 2 ln(1/delta) / epsilon, at which half of epsilon goes into conversion
_SCALE_FOR_1000_LOOKS = 10_000
LARGEST_SCALE = 50_000
_SMALLEST_WEIGHT = 10
_ACTIVITIES = 5
_POINTS = np.concatenate([np.linspace(-4, 6, 251), np.linspace(6, 16, 101)[1:]])  # thresholds less counts, in scales
_WEIGHTS = np.geomspace(2e-5, 1.2, 60)  # in scales
_FOUND = 0.05  # probability with which an item at the size sought is missed

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class PurseChoice:
    """The numbers of a run in mode `names`. Build it with `choose_purse`; construction checks that they are safe.

    epsilon, delta_looks, delta_open: the looks are (epsilon, delta_looks)-DP, and delta_open pays for items that one
        user alone holds; 0 where all items are known. prices: with their noise and order. threshold: T of items that
        were not reported before.
    """

    epsilon: float
    delta_looks: float
    delta_open: float
    prices: PriceList
    threshold: int

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta_looks)
        affordable = order_budget(self.prices.order, self.epsilon, self.delta_looks)
        if not self.prices.budget <= affordable:
            raise ValueError(
                f"budget must be at most {affordable:.9g} at order {self.prices.order:g} for these epsilon and "
                f"delta_looks, got {self.prices.budget:.9g}. Use choose_purse."
            )
        check_whole("threshold", self.threshold, 1)
        if self.delta_open:
            safe = smallest_open_threshold(self.prices, self.delta_open)
            if self.threshold < safe:
                raise ValueError(f"threshold must be >= {safe} for this delta_open, got {self.threshold}.")

    @property
    def sampling_delta(self) -> float:
        """What the distance of the sampled noise from its law costs: ``(1 + e^epsilon)`` times it, for every look."""
        return (1 + math.exp(self.epsilon)) * self.prices.most_looks * self.prices.noise.sampling_total_variation


def choose_purse(
    epsilon: float,
    delta: float,
    *,
    usual_looks: tuple[int, int] = DEFAULT_USUAL_LOOKS,
    most_looks: int = DEFAULT_MOST_LOOKS,
    usual_hits: int = 0,
    shapes: Sequence[float] = SHAPES,
    level_spacing: float = 0.0,
    known_error: float | None = None,
) -> PurseChoice:
    """The numbers that find most for this budget and activity.

    delta: for looks and open items together; what sampling and hashes need is taken off before.
    usual_looks: most users have between so many pairs (window, item) over the whole run. most_looks: a user's further
    pairs are dropped. usual_hits: if above 0, a price for hits is considered too, so that a purse lasts for so many
    hits. level_spacing: of the boundaries of levels, in standard deviations; 0 for no levels. known_error: None for an
    open domain. In a known one no threshold has to be safe: all of delta goes to the looks, and the threshold is the
    smallest that noise alone reaches with at most this probability.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    check_whole("most_looks", most_looks, 1, MOST_LOOKS)
    check_whole("usual_hits", usual_hits, 0, MOST_LOOKS)
    if known_error is not None:
        check_range("known_error", known_error, SMALLEST_KNOWN_ERROR, 0.5)
    activities = np.unique(np.geomspace(*check_usual_looks(usual_looks, most_looks), _ACTIVITIES).round())
    shares_hits = [share for share in SHARES_HITS if usual_hits or not share]
    orders = np.clip(1 + _ORDERS * 2 * math.log(1 / delta) / max(epsilon, 1e-9), 1.05, MAX_ORDER)
    best = (math.inf, 0.0, 0.0, 0.0, 0.0)
    for shape, order in itertools.product(shapes, np.unique(orders).tolist()):
        found = _best_split(shape, order, epsilon, delta, activities, most_looks, usual_hits, shares_hits, known_error)
        best = min(best, found)
    if best[0] == math.inf:
        raise ValueError(
            f"epsilon = {epsilon:g} with delta = {delta:g} is too small to pay for most_looks = {most_looks} looks at "
            f"any order up to {MAX_ORDER:g}. Raise epsilon or delta, or lower most_looks."
        )
    _, shape, coarse_order, share_open, share_hits = best
    finer = [coarse_order ** (1 - step / 8) * (coarse_order * 1.29) ** (step / 8) for step in range(-7, 8)]
    for order in finer:
        if 1.01 < order <= MAX_ORDER:
            best = min(
                best,
                _best_split(
                    shape, order, epsilon, delta, activities, most_looks, usual_hits, [share_hits], known_error
                ),
            )
    _, shape, order, share_open, share_hits = best
    budget = order_budget(order, epsilon, delta * (1 - share_open))
    noise = ExponentialPower(shape, _scale(shape, order, budget, most_looks))
    hit_units = math.floor(share_hits * order_budget(order, epsilon, delta) / budget * PURSE_UNITS / max(1, usual_hits))
    spacing = math.ceil(level_spacing * noise.standard_deviation)
    prices = make_price_list(
        noise, order, budget, most_looks, hit_units=hit_units, usual_hits=usual_hits, spacing=spacing
    )
    if known_error is not None:
        return PurseChoice(epsilon, delta, 0.0, prices, noise.smallest_margin(known_error))
    delta_open = delta * share_open
    return PurseChoice(
        epsilon, delta * (1 - share_open), delta_open, prices, smallest_open_threshold(prices, delta_open)
    )


def _scale(shape: float, order: float, budget: float, most_looks: int) -> int:
    """Large enough for the smallest weight to be some tens, or at least 10: rounding it down costs little then."""
    smallest = math.exp(
        np.interp(
            math.log(budget / most_looks), np.log(np.maximum(_curve(shape, order, 0.0), 1e-300)), np.log(_WEIGHTS)
        )
    )
    usual = max(_SCALE_FOR_1000_LOOKS, round(_SCALE_FOR_1000_LOOKS * math.sqrt(most_looks / 1e4)))
    return min(LARGEST_SCALE, max(usual, math.ceil(_SMALLEST_WEIGHT / smallest)))


def check_usual_looks(usual_looks: object, most_looks: int) -> tuple[int, int]:
    """The pair, the smaller one first. Raises ValueError."""
    if not isinstance(usual_looks, tuple) or len(usual_looks) != 2:
        raise ValueError(f"usual_looks must be a pair such as (1, 1000), got {shown(usual_looks)}.")
    first, last = sorted(check_whole("each of usual_looks", looks, 1, most_looks) for looks in usual_looks)
    return first, last


def _best_split(
    shape: float,
    order: float,
    epsilon: float,
    delta: float,
    activities: Floats,
    most_looks: int,
    hits: int,
    shares_hits: Sequence[float],
    known_error: float | None,
) -> tuple[float, float, float, float, float]:
    """The mean logarithm of the users needed, with shape, order, and shares of delta_open and hits; the least."""
    best = (math.inf, shape, order, 0.0, 0.0)
    whole = order_budget(order, epsilon, delta)  # of which hits have their shares: one curve for all splits of delta
    shares_open = SHARES_OPEN if known_error is None else (0.0,)
    for share_open, share_hits in itertools.product(shares_open, shares_hits):
        budget = order_budget(order, epsilon, delta * (1 - share_open))
        if budget <= 0:
            continue
        curve = _curve(shape, order, hit_price := share_hits * whole / max(1, hits))
        users = _users_needed(
            shape, curve, budget, hit_price, hits, delta * share_open, activities, most_looks, known_error
        )
        best = min(best, (users, shape, order, share_open, share_hits))
    return best


def _users_needed(
    shape: float,
    curve: Floats,
    budget: float,
    hit_price: float,
    hits: int,
    delta_open: float,
    activities: Floats,
    most_looks: int,
    known_error: float | None,
) -> float:
    """Mean logarithm of (T + quantile) / weight. curve: prices of `_WEIGHTS`, rising."""
    paid_hits = np.minimum(hits, np.append(activities, most_looks))
    amounts = (budget - hit_price * paid_hits) / np.append(activities, most_looks)
    weights = np.interp(
        np.log(np.maximum(amounts, 1e-300)),
        np.log(np.maximum(curve, 1e-300)),
        np.log(_WEIGHTS),
        left=-math.inf,
    )
    smallest = math.exp(weights[-1])
    if not smallest or weights[0] == -math.inf:
        return math.inf
    if known_error is not None:
        threshold = float(_quantile(shape, np.array([known_error]))[0])
    else:
        payable = np.flatnonzero((curve <= budget) & (smallest <= _WEIGHTS))
        charged = np.maximum(curve[payable], amounts[-1])
        threshold = float(np.max(_WEIGHTS[payable] + _quantile(shape, delta_open * charged / budget), initial=0.0))
        threshold = max(threshold, smallest + float(_quantile(shape, np.array([delta_open / most_looks]))[0]))
    found = threshold + float(_quantile(shape, np.array([_FOUND]))[0])
    return math.log(found) - float(np.mean(weights[:-1]))


@functools.lru_cache(maxsize=4096)
def _curve(shape: float, order: float, hit_price: float) -> Floats:
    """Prices of `_WEIGHTS` on a coarse grid of the continuous law; infinite where they overflow."""
    upper, lower = _tails(shape, 0.0)
    with_upper, with_lower = _tails(shape, 1.0)
    charge = hit_price * (order - 1)
    there = outcome_excess(with_upper, upper, order, charge) + outcome_excess(with_lower, lower, order)
    back = outcome_excess(upper, with_upper, order, charge) + outcome_excess(lower, with_lower, order)
    excess = np.maximum(np.max(there, axis=1), np.max(back, axis=1))
    return np.minimum(np.maximum.accumulate(np.log1p(np.maximum(excess, 0.0)) / (order - 1)), 1e6)


@functools.lru_cache(maxsize=32)
def _tails(shape: float, moved: float) -> tuple[Floats, Floats]:
    """Logarithms of both tails at `_POINTS` less that many times each of `_WEIGHTS`: float64[weights, points]."""
    noise = ExponentialPower(shape, 1)
    points = _POINTS - moved * _WEIGHTS[:, None]
    return noise.log_upper_tail_at(points), noise.log_upper_tail_at(-points)


def _quantile(shape: float, tails: Floats) -> Floats:
    """t with ``Pr[X >= t] = tail`` at scale 1. tails: at most 1/2."""
    from scipy.special import gammainccinv

    return np.asarray(gammainccinv(1 / shape, np.minimum(2 * tails, 1.0)) ** (1 / shape))
