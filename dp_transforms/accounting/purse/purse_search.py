"""The search for a purse's numbers: shape, order, split of delta, hits and their price, for a declared activity.

No guarantee hangs on it: prices on a coarse grid of the continuous law decide which numbers are good, and `PurseChoice`
computes all of them again. It reads declared numbers, never a log (docs/guarantee.md, "The noise of looks").

What is minimised: the number of users from which an item is found with 95 % probability, as a geometric mean over
activities from the first to the last of the usual ones, at the smallest safe threshold.

Users with hits no longer count after their last one. Where looks alone are a choice too, it is taken that `HIT_SHARE`
of all looks are hits, more of one user's than of another's (as an exponential law has it); a user counts in its looks
until its hits are used up, and for those in which it does not count more users are needed in proportion. Where only one
number of hits is asked for, it is taken to be enough.
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

from dp_transforms.accounting.purse.look_prices import MAX_ORDER, outcome_excess
from dp_transforms.accounting.purse.price_list import order_budget
from dp_transforms.mechanisms.exponential_power import ExponentialPower

SHAPES = (1.0, 1.15, 1.5, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0)
SHARES_OPEN = (0.02, 0.1, 0.3, 0.5, 0.75)  # of delta
HIT_PRICES = (0.002, 0.004, 0.007, 0.012, 0.02, 0.035, 0.06, 0.1, 0.17, 0.28)  # of what all of delta buys, each hit
HIT_SHARE = 0.1  # of looks; 3 % to 20 % on the two real logs of the benchmarks, the most where all users are active
LEAST_GAIN = 0.03  # in users needed; for less, nobody shall be excluded
LARGEST_SCALE = 50_000
_LARGEST_SHARE_OF_HITS = 0.9  # of a purse
_ORDERS = np.geomspace(0.15, 2.5, 12)  # times 2 ln(1/delta) / epsilon, at which half of epsilon goes into conversion
_STRIDE = 3  # of shapes and orders that are looked at first
_SCALE_FOR_1000_LOOKS = 10_000
_SMALLEST_WEIGHT = 10
_ACTIVITIES = 5
_POINTS = np.concatenate([np.linspace(-4, 6, 251), np.linspace(6, 16, 101)[1:]])  # thresholds less counts, in scales
_WEIGHTS = np.geomspace(2e-5, 1.2, 60)  # in scales
_LOG_WEIGHTS = np.log(_WEIGHTS)
_FOUND = 0.05  # probability with which an item at the size sought is missed

Floats = npt.NDArray[np.float64]


class Terms(NamedTuple):
    """What is searched for. Names as in `choose_purse`; hit_share: of looks that are hits, 0 where all can be paid."""

    epsilon: float
    delta: float
    usual_looks: tuple[int, int]
    most_looks: int
    known_error: float | None
    hit_share: float = 0.0

    @property
    def activities(self) -> Floats:
        return _activities(self.usual_looks)

    @property
    def shares_open(self) -> tuple[float, ...]:
        return SHARES_OPEN if self.known_error is None else (0.0,)


@functools.lru_cache(maxsize=16)
def _activities(usual_looks: tuple[int, int]) -> Floats:
    return np.unique(np.geomspace(*usual_looks, _ACTIVITIES).round())


@functools.lru_cache(maxsize=16)
def _grid(most_looks: int) -> Floats:
    return np.geomspace(1, most_looks, 60)


@dataclasses.dataclass(frozen=True, order=True)
class Found:
    """users: the mean logarithm of the users needed. hit_price: a divergence; 0 without hits. fewest_looks: with fewer
    looks nobody pays for hits."""

    users: float
    shape: float
    order: float
    share_open: float
    hits: int = 0
    hit_price: float = 0.0
    fewest_looks: int = 1


def best_terms(terms: Terms, shapes: Sequence[float], hits: Sequence[int]) -> Found | None:
    """The numbers that find most, with one of these numbers of hits; None if the budget pays for none.

    Looks alone unless hits find more by `LEAST_GAIN`; where both may be chosen.
    """
    some = np.clip(1 + _ORDERS * 2 * math.log(1 / terms.delta) / max(terms.epsilon, 1e-9), 1.05, MAX_ORDER)
    orders = np.unique(some).tolist()
    alone = _looks_alone(terms, tuple(shapes), tuple(orders))
    if alone is None:
        return None
    terms = terms._replace(hit_share=HIT_SHARE if len(hits) > 1 else 0.0)
    listed = [number for number in hits if number]
    if 0 in hits:
        # With hits the best shape and order are hardly others. Where they find less there, they find no more elsewhere.
        here = _with_hits(terms, alone.shape, alone.order, listed)
        if here is None or here.users > alone.users:
            return _finer(terms, alone)
    if not listed:
        return _finer(terms, alone) if 0 in hits else None
    with_hits = _descend(functools.partial(_with_hits, terms, hits=listed), shapes, orders, alone)
    if with_hits is not None and (0 not in hits or with_hits.users < alone.users - math.log1p(LEAST_GAIN)):
        return _finer_with_hits(terms, with_hits)
    return _finer(terms, alone) if 0 in hits else None


def _with_looks_alone(terms: Terms, shape: float, order: float) -> Found | None:
    return _best(_found(terms, shape, order, share, 0, 0.0) for share in terms.shares_open)


def _with_hits(terms: Terms, shape: float, order: float, hits: Sequence[int]) -> Found | None:
    whole = order_budget(order, terms.epsilon, terms.delta)  # of which hits have their shares: one curve for all splits
    return _best(
        _found(terms, shape, order, share_open, number, share * whole)
        for share in HIT_PRICES
        for number in hits
        for share_open in terms.shares_open
        if number * share <= _LARGEST_SHARE_OF_HITS
    )


@functools.lru_cache(maxsize=16)  # a comparison asks again, with other hits
def _looks_alone(terms: Terms, shapes: tuple[float, ...], orders: tuple[float, ...]) -> Found | None:
    """The best of all shapes and orders: from the best of some of them, or of all where some are not enough."""
    find = functools.partial(_with_looks_alone, terms)
    start = _best(itertools.starmap(find, itertools.product(shapes[::_STRIDE], orders[::_STRIDE])))
    if start is None:
        return _best(itertools.starmap(find, itertools.product(shapes, orders)))
    return _descend(find, shapes, orders, start)


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


def _finer(terms: Terms, best: Found) -> Found:
    """Orders between the neighbours of the grid."""
    found = [_with_looks_alone(terms, best.shape, order) for order in _orders_around(best.order)]
    return _best([best, *found]) or best


def _finer_with_hits(terms: Terms, best: Found) -> Found:
    """Orders and prices of a hit between the neighbours of the grid."""
    found = [
        _found(terms, best.shape, order, best.share_open, best.hits, best.hit_price * factor)
        for order in _orders_around(best.order)[1::2]
        for factor in (0.75, 0.87, 1.0, 1.15, 1.32)
    ]
    return _best([best, *found]) or best


def _orders_around(order: float) -> list[float]:
    orders = [order ** (1 - step / 8) * (order * 1.29) ** (step / 8) for step in range(-7, 8)]
    return [order for order in orders if 1.01 < order <= MAX_ORDER]


def _best(found: Iterable[Found | None]) -> Found | None:
    return min((each for each in found if each is not None), default=None)


def _found(terms: Terms, shape: float, order: float, share_open: float, hits: int, hit_price: float) -> Found | None:
    """The mean logarithm of (T + quantile) / weight, for holders on the list that is better for them."""
    budget = order_budget(order, terms.epsilon, terms.delta * (1 - share_open))
    purse = budget - hits * hit_price
    if purse <= 0:
        return None
    looks = np.append(terms.activities, terms.most_looks)
    delta_open = terms.delta * share_open
    curve = _curve(shape, order, 0.0)
    weights = _weights(curve, budget / looks)
    if weights[-1] == -math.inf or weights[0] == -math.inf:
        return None
    threshold = _threshold(terms, shape, curve, budget, 1, delta_open)
    fewest = 1
    if hits:
        curve = _curve(shape, order, hit_price)
        grid = _grid(terms.most_looks)
        larger = np.flatnonzero(_weights(curve, purse / grid) > _weights(_curve(shape, order, 0.0), budget / grid))
        if not len(larger):
            return None
        fewest = max(hits, math.floor(grid[larger[0]] / 3))
        with_hits = _weights(curve, purse / looks)
        counted = _share_counted(hits / (terms.hit_share * looks)) if terms.hit_share else np.ones(len(looks))
        weights = np.where(with_hits > weights, with_hits + np.log(counted), weights)
        threshold = max(threshold, _threshold(terms, shape, curve, purse, fewest, delta_open))
    found = threshold + float(_quantile(shape, np.array([_FOUND]))[0])
    users = math.log(found) - float(np.mean(weights[:-1]))
    return Found(users, shape, order, share_open, hits, hit_price, fewest)


def _share_counted(hits: Floats) -> Floats:
    """``E[min(1, hits / X)]``, X exponential with mean 1. hits: that a user may have, over those it would have."""
    from scipy.special import exp1

    return np.asarray(-np.expm1(-hits) + hits * exp1(hits))


def _weights(curve: Floats, amounts: Floats) -> Floats:
    """Logarithms of the weights that cost these amounts, in scales; -inf below the smallest of the curve."""
    prices = np.log(np.maximum(curve, 1e-300))
    return np.interp(np.log(np.maximum(amounts, 1e-300)), prices, _LOG_WEIGHTS, left=-math.inf)


def _threshold(terms: Terms, shape: float, curve: Floats, purse: float, fewest_looks: int, delta_open: float) -> float:
    """The smallest safe T of one price list, in scales."""
    if terms.known_error is not None:
        return float(_quantile(shape, np.array([terms.known_error]))[0])
    least = purse / terms.most_looks
    smallest = math.exp(float(_weights(curve, np.array([least]))[0]))
    payable = np.flatnonzero((curve <= purse / fewest_looks) & (smallest <= _WEIGHTS))
    charged = np.maximum(curve[payable], least)
    threshold = float(np.max(_WEIGHTS[payable] + _quantile(shape, delta_open * charged / purse), initial=0.0))
    return max(threshold, smallest + float(_quantile(shape, np.array([delta_open / terms.most_looks]))[0]))


def scale_for(shape: float, order: float, budget: float, most_looks: int) -> int:
    """Large enough for the smallest weight to be some tens, or at least 10: rounding it down costs little then."""
    smallest = math.exp(float(_weights(_curve(shape, order, 0.0), np.array([budget / most_looks]))[0]))
    usual = max(_SCALE_FOR_1000_LOOKS, round(_SCALE_FOR_1000_LOOKS * math.sqrt(most_looks / 1e4)))
    return min(LARGEST_SCALE, max(usual, math.ceil(_SMALLEST_WEIGHT / max(smallest, 1e-9))))


@functools.lru_cache(maxsize=4096)
def _curve(shape: float, order: float, hit_price: float) -> Floats:
    """Prices of `_WEIGHTS` on a coarse grid of the continuous law; infinite where they overflow."""
    (upper, _), (with_upper, _) = _tails(shape)
    (p_upper, _), (p_with_upper, _) = _probabilities(shape)
    missed_there, missed_back = _missed(shape, order)
    charge = hit_price * (order - 1)
    there = outcome_excess(with_upper, upper, order, charge, probability=p_with_upper) + missed_there
    back = outcome_excess(upper, with_upper, order, charge, probability=p_upper) + missed_back
    excess = np.maximum(np.max(there, axis=1), np.max(back, axis=1))
    return np.minimum(np.maximum.accumulate(np.log1p(np.maximum(excess, 0.0)) / (order - 1)), 1e6)


@functools.lru_cache(maxsize=4)  # one for all hit prices
def _missed(shape: float, order: float) -> tuple[Floats, Floats]:
    """Excesses of the outcome that is not a hit, either way."""
    (_, lower), (_, with_lower) = _tails(shape)
    (_, p_lower), (_, p_with_lower) = _probabilities(shape)
    there = outcome_excess(with_lower, lower, order, probability=p_with_lower)
    return there, outcome_excess(lower, with_lower, order, probability=p_lower)


@functools.lru_cache(maxsize=16)
def _tails(shape: float) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Logarithms of both tails at `_POINTS`, and at `_POINTS` less each of `_WEIGHTS`: float64[weights, points]."""
    noise = ExponentialPower(shape, 1)
    with_user = noise.log_tails_at(_POINTS - _WEIGHTS[:, None])
    upper, lower = (np.broadcast_to(tails, with_user[0].shape) for tails in noise.log_tails_at(_POINTS))
    return (upper, lower), with_user


@functools.lru_cache(maxsize=16)
def _probabilities(shape: float) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """The tails of `_tails` themselves."""
    without, with_user = _tails(shape)
    return (np.exp(without[0]), np.exp(without[1])), (np.exp(with_user[0]), np.exp(with_user[1]))


def _quantile(shape: float, tails: Floats) -> Floats:
    """t with ``Pr[X >= t] = tail`` at scale 1. tails: at most 1/2."""
    from scipy.special import gammainccinv

    return np.asarray(gammainccinv(1 / shape, np.minimum(2 * tails, 1.0)) ** (1 / shape))
