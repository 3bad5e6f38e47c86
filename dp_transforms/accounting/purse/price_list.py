"""The price list of a run: the weights that a user may have in a look, and what each costs out of the purse.

Guarantee: if the whole numbers of `units` that a user pays for its looks (and `hit_units` for each of its hits) never
add up to more than `PURSE_UNITS`, all looks together have a Renyi divergence of at most `budget` at this order, also
when weights are chosen adaptively (docs/purse.md, section 2), and also from two lists of one noise, order and budget.
Prices are rounded up to whole units, so adding them up is exact on every machine, and a purse is one 64-bit integer.

A list with hits is for users who have at most `hits` of them and set what these cost aside beforehand (section 9). The
smallest weight costs what is left, divided by `most_looks`, whatever less its price is. So a purse pays for at most
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
from dp_transforms.accounting.purse.zone_prices import zone_price
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
    hit_units: what each hit costs besides; 0 where looks pay for everything.
    hits: of a user at most so many; 0 without a price for hits.
    spacing: distance of the boundaries of levels, in integers; 0 where no levels are published. With hits that of the
        two boundaries: between them is a hit.
    """

    noise: ExponentialPower
    order: float
    budget: float
    weights: tuple[int, ...]
    units: tuple[int, ...]
    hit_units: int = 0
    hits: int = 0
    spacing: int = 0

    def __post_init__(self) -> None:
        _check_terms(self.noise, self.order, self.budget, self.hit_units, self.hits, self.spacing)
        if not self.weights or len(self.weights) != len(self.units):
            raise ValueError(
                f"weights and units must have one length >= 1, got {len(self.weights)} and {len(self.units)}."
            )
        for name, rising in (("weights", self.weights), ("units", self.units)):
            for value in rising:
                check_whole(f"each of {name}", value, 1)
            if any(low >= high for low, high in itertools.pairwise(rising)):
                raise ValueError(f"{name} must rise. Use make_price_list.")
        if self.units[-1] > self.purse:
            raise ValueError(f"the largest weight must cost at most {self.purse} units, what is left for looks.")
        price = _pricing(self.noise, self.order, self.budget, self.hit_units, self.spacing)
        for weight, units in zip(self.weights, self.units, strict=True):
            if units < price(weight):
                raise ValueError(f"weight {weight} costs {price(weight)} units, got {units}. Use make_price_list.")

    @property
    def purse(self) -> int:
        """The units of a full purse that are left for looks when all hits are set aside."""
        return PURSE_UNITS - self.hits * self.hit_units

    @property
    def most_looks(self) -> int:
        """A purse pays for no more looks than this."""
        return self.purse // self.units[0]

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

    def replay_weight(self, looks: int, reserved: int = 0) -> int:
        """The weight of a user with so many looks in the whole run, of which at most `most_looks` count; 0: none.

        reserved: units that the user sets aside for counts.
        """
        purse = self.purse - reserved
        amount = purse // min(check_whole("looks", looks, 1), max(1, purse // self.units[0]))
        return int(self.weights_for(np.array([amount]))[0])

    @functools.cached_property
    def _arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Weights with a leading 0, for an amount below every price; and units."""
        return np.array([0, *self.weights], dtype=np.int64), np.array(self.units, dtype=np.int64)


def replay_weight(prices: PriceList, hit_prices: PriceList | None, looks: int, reserved: int = 0) -> int:
    """The weight of a user with so many looks in the run, on the list that gives it the larger one; 0: none."""
    lists = (prices,) if hit_prices is None else (prices, hit_prices)
    return max(each.replay_weight(looks, reserved) for each in lists)


def hits_from(prices: PriceList, hit_prices: PriceList) -> int:
    """The least number of looks at which a user's replay weight is larger on the list with hits; 0 if at none is."""
    looks = np.arange(1, prices.most_looks + 1)
    alone, with_hits = (each.weights_for(each.purse // looks) for each in (prices, hit_prices))
    larger = np.flatnonzero(with_hits > alone)
    return int(looks[larger[0]]) if len(larger) else 0


def make_price_list(
    noise: ExponentialPower,
    order: float,
    budget: float,
    most_looks: int,
    *,
    fewest_looks: int = 1,
    hit_units: int = 0,
    hits: int = 0,
    counts: int = 0,
    count_units: int = 0,
    spacing: int = 0,
) -> PriceList:
    """The price list for users who pay for `fewest_looks` to `most_looks` looks, and for `hits` hits beside them.

    counts, count_units: a user with n looks sets min(n, counts) * count_units aside for counts (section 10).
    Weights: for 1, 2, ... 32 looks the largest that can pay each from a full purse, then more coarsely; so rounding
    costs a weight at most about 1 % (and one integer).
    """
    _check_terms(noise, order, budget, hit_units, hits, spacing)
    check_whole("most_looks", most_looks, 1, MOST_LOOKS)
    check_whole("fewest_looks", fewest_looks, 1, most_looks)
    price = _pricing(noise, order, budget, hit_units, spacing)
    purse = PURSE_UNITS - hits * hit_units
    listed: dict[int, int] = {}
    largest = max(1, noise.scale // 50)
    least = purse // most_looks
    numbers = _numbers_of_looks(fewest_looks, most_looks)
    amounts = {max(least, (purse - min(number, counts) * count_units) // number) for number in numbers}
    for amount in sorted(amounts, reverse=True):
        largest = _largest_weight(price, amount, largest) if amount > 0 else 0
        if not largest:
            raise ValueError(
                f"a purse for {purse // max(1, amount)} looks leaves too little for each at scale {noise.scale}. Use a "
                "larger scale, fewer looks, or fewer hits."
            )
        listed[largest] = max(price(largest), least)
    weights = tuple(sorted(listed))
    return PriceList(
        noise, order, budget, weights, tuple(listed[weight] for weight in weights), hit_units, hits, spacing
    )


def _numbers_of_looks(fewest: int, most: int) -> list[int]:
    """From the one to the other: each up to 32, and then by the ratio."""
    steps = math.ceil(max(0.0, math.log(most / _EACH)) / math.log(_RATIO))
    finer = np.geomspace(_EACH, most, steps + 1).tolist() if steps else []
    numbers = {*range(1, min(most, _EACH) + 1), *(min(most, math.ceil(n)) for n in finer), fewest, most}
    return sorted(number for number in numbers if number >= fewest)


def _check_terms(noise: ExponentialPower, order: float, budget: float, hit_units: int, hits: int, spacing: int) -> None:
    check_order(order)
    check_positive("budget", budget)
    check_whole("hit_units", hit_units, 0, PURSE_UNITS - 1)
    check_whole("hits", hits, 0)
    check_whole("spacing", spacing, 0)
    if bool(hit_units) != bool(hits):
        raise ValueError(f"hits and hit_units must both be 0 or neither, got {hits} and {hit_units}.")
    if hits * hit_units >= PURSE_UNITS:
        raise ValueError(f"hits = {hits} at {hit_units} units leave nothing of a purse. Use fewer, or a smaller price.")
    if hits and not spacing:
        raise ValueError("spacing must be > 0 where hits have a price: a hit lies between two boundaries.")
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
    if hit_units:
        # A hit's worth, rounded down: what looks pay grows as it falls.
        price = zone_price(noise, order, weight, spacing, hit_price=budget * hit_units / PURSE_UNITS / _MORE)
    elif spacing:
        price = level_price(noise, order, weight, spacing)
    else:
        price = look_price(noise, order, weight)
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
