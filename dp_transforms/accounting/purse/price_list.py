"""The price list of a run: the weights that a user may have in a look, and what each costs out of the purse.

Guarantee: if the whole numbers of `units` that a user pays for its looks (and `hit_units` for each of its hits) never
add up to more than `PURSE_UNITS`, all looks together have a Renyi divergence of at most `budget` at this order, also
when weights are chosen adaptively (docs/purse.md, section 2). Prices are rounded up to whole units, so adding them up
is exact on every machine, and a purse is one 64-bit integer.

The smallest weight costs `PURSE_UNITS // most_looks`, whatever less its price is. So a purse pays for at most
`most_looks` looks, and the smallest threshold of an open domain is finite (section 4).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.purse.level_prices import check_spacing, level_price
from dp_transforms.accounting.purse.look_prices import check_order, look_price
from dp_transforms.checks import check_positive, check_range, check_whole
from dp_transforms.exponential_power import ExponentialPower

PURSE_UNITS = 10**12  # a full purse
MOST_LOOKS = 10**7
_EACH = 32  # up to so many looks each number has its own weight, beyond it weights rise by the ratio
_RATIO = 1.02  # of amounts; weights go with their root or less, so that rounding down costs at most about 1 %
_MORE = 1 + 1e-9  # before rounding up: above the error of a product of floats


@dataclasses.dataclass(frozen=True)
class PriceList:
    """What looks cost at one order. Build it with `make_price_list`; construction computes every price again.

    noise, order, budget: the law, the order, and the Renyi divergence that a full purse stands for.
    weights: whole numbers, rising. units: what a look with each costs, rising, at most PURSE_UNITS.
    hit_units: what each published hit costs besides; 0 where looks pay for everything.
    spacing: distance of the boundaries of levels, in integers; 0 where no levels are published.
    """

    noise: ExponentialPower
    order: float
    budget: float
    weights: tuple[int, ...]
    units: tuple[int, ...]
    hit_units: int = 0
    spacing: int = 0

    def __post_init__(self) -> None:
        _check_terms(self.noise, self.order, self.budget, self.hit_units, self.spacing)
        if not self.weights or len(self.weights) != len(self.units):
            raise ValueError(
                f"weights and units must have one length >= 1, got {len(self.weights)} and {len(self.units)}."
            )
        for name, rising in (("weights", self.weights), ("units", self.units)):
            for value in rising:
                check_whole(f"each of {name}", value, 1)
            if any(low >= high for low, high in itertools.pairwise(rising)):
                raise ValueError(f"{name} must rise. Use make_price_list.")
        if self.units[-1] + self.hit_units > PURSE_UNITS:
            raise ValueError(f"the largest weight must cost at most {PURSE_UNITS} units, its hit included.")
        price = _pricing(self.noise, self.order, self.budget, self.hit_units, self.spacing)
        for weight, units in zip(self.weights, self.units, strict=True):
            if units < price(weight):
                raise ValueError(f"weight {weight} costs {price(weight)} units, got {units}. Use make_price_list.")

    @property
    def most_looks(self) -> int:
        """A purse pays for no more looks than this."""
        return PURSE_UNITS // self.units[0]

    def weights_for(self, amounts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The largest weights that cost at most these amounts, 0 where none does. amounts, result: int64[n]."""
        weights, units = self._arrays
        return weights[np.searchsorted(units, amounts, side="right")]

    def units_of(self, weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What looks with these weights cost: each 0 (nothing) or a weight of the list. weights, result: int64[n]."""
        listed, units = self._arrays
        index = np.searchsorted(listed, weights)
        if np.any(listed[np.minimum(index, len(listed) - 1)] != weights):
            raise ValueError("weights must be 0 or weights of the price list.")
        return np.concatenate([[0], units])[index]

    def replay_weight(self, looks: int, hits: int = 0, *, reserved: int = 0) -> int:
        """The weight of a user with so many looks in the whole run, of which at most `most_looks` count.

        hits: for how many hits its purse is to last as well; 0 where none does. reserved: units that pay for other
        things than looks and hits.
        """
        hits = min(check_whole("looks", looks, 1), check_whole("hits", hits, 0))
        left = PURSE_UNITS - hits * self.hit_units - check_whole("reserved", reserved, 0)
        amount = left // min(looks, max(1, left // self.units[0]))
        return int(self.weights_for(np.array([amount]))[0])

    @functools.cached_property
    def _arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Weights with a leading 0, for an amount below every price; and units."""
        return np.array([0, *self.weights], dtype=np.int64), np.array(self.units, dtype=np.int64)


def make_price_list(
    noise: ExponentialPower,
    order: float,
    budget: float,
    most_looks: int,
    *,
    hit_units: int = 0,
    usual_hits: int = 0,
    spacing: int = 0,
) -> PriceList:
    """The price list for users who pay for up to `most_looks` looks, and for up to `usual_hits` hits beside them.

    Weights: for 1, 2, ... 32 looks the largest that can pay each from a full purse, then more coarsely; so rounding
    costs a weight at most about 1 % (and one integer).
    """
    _check_terms(noise, order, budget, hit_units, spacing)
    check_whole("most_looks", most_looks, 1, MOST_LOOKS)
    check_whole("usual_hits", usual_hits, 1 if hit_units else 0, MOST_LOOKS)
    price = _pricing(noise, order, budget, hit_units, spacing)
    steps = math.ceil(max(0.0, math.log(most_looks / _EACH)) / math.log(_RATIO))
    finer = np.geomspace(_EACH, most_looks, steps + 1).tolist() if steps else []
    looks = sorted({*range(1, min(most_looks, _EACH) + 1), *(min(most_looks, math.ceil(n)) for n in finer), most_looks})
    listed: dict[int, int] = {}
    largest = max(1, noise.scale // 50)
    least = (PURSE_UNITS - min(usual_hits, most_looks) * hit_units) // most_looks
    for number in looks:
        amount = (PURSE_UNITS - min(usual_hits, number) * hit_units) // number
        largest = _largest_weight(price, amount, largest) if amount > 0 else 0
        if not largest:
            raise ValueError(
                f"a purse for {number} looks leaves too little for each at scale {noise.scale}. Use a larger scale, "
                "fewer looks, or fewer hits."
            )
        listed[largest] = max(price(largest), least)
    weights = tuple(sorted(listed))
    return PriceList(noise, order, budget, weights, tuple(listed[weight] for weight in weights), hit_units, spacing)


def _check_terms(noise: ExponentialPower, order: float, budget: float, hit_units: int, spacing: int) -> None:
    check_order(order)
    check_positive("budget", budget)
    check_whole("hit_units", hit_units, 0, PURSE_UNITS - 1)
    check_whole("spacing", spacing, 0)
    if hit_units and spacing:
        raise ValueError("spacing must be 0 where hits have a price: levels with a hit price have no certificate yet.")
    if spacing:
        check_spacing(noise, 1, spacing)
    check_range("budget * (order - 1)", budget * (order - 1), 0, 500)


def _pricing(
    noise: ExponentialPower, order: float, budget: float, hit_units: int, spacing: int
) -> Callable[[int], int]:
    return functools.partial(_units, noise, order, budget, hit_units, spacing)


@functools.lru_cache(maxsize=20_000)
def _units(noise: ExponentialPower, order: float, budget: float, hit_units: int, spacing: int, weight: int) -> int:
    """The price of a look in units, rounded up; more than PURSE_UNITS where a purse cannot pay it."""
    if spacing and weight > spacing:
        return PURSE_UNITS + 1  # it would pass two boundaries at once
    if spacing:
        price = level_price(noise, order, weight, spacing)
    else:
        # A hit's worth, rounded down: what looks pay grows as it falls.
        price = look_price(noise, order, weight, hit_price=budget * hit_units / PURSE_UNITS / _MORE)
    share = price / budget * _MORE
    return math.ceil(share * PURSE_UNITS) if share <= 1 else PURSE_UNITS + 1


def _largest_weight(price: Callable[[int], int], amount: int, start: int) -> int:
    """A weight with a price of at most `amount`, the largest up to 0.1 % of the amount; 0 where none has. Prices rise.

    start: a weight at which to begin. From there by powers, prices being close to one near each weight, and by halves
    where that takes long.
    """
    low, high = 0, 0  # the largest known to be payable, the smallest known not to be; 0: not known
    weight, power = max(1, start), 2.0
    last: tuple[int, int] | None = None
    for attempt in itertools.count():
        cost = price(weight)
        if cost <= amount:
            low = weight
        else:
            high = weight
        if (high and high - low <= 1) or (low and amount * 0.999 <= price(low)):
            return low
        if last and last[0] != weight and min(cost, last[1]) < PURSE_UNITS and cost != last[1]:
            power = min(40.0, max(1.0, math.log(cost / last[1]) / math.log(weight / last[0])))
        last = (weight, cost)
        weight = math.floor(weight * (amount * 0.9998 / cost) ** (1 / power)) if attempt < 12 else (low + high) // 2
        weight = max(low + 1, min(weight, high - 1 if high else weight))
    raise AssertionError("unreachable")
