"""What an adaptive adversary attains against small plans with hits is at most what they claim; faults are seen."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from dp_transforms.accounting.purse.look_prices import SMALLEST_PRICE, zone_price
from dp_transforms.accounting.purse.open_threshold import smallest_open_threshold
from dp_transforms.accounting.purse.price_list import PriceList, make_price_list, order_budget
from dp_transforms.accounting.purse.purse_choice import PurseChoice
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from tests.unit import purse_oracle

# The best adaptive adversary of a few looks of one user on the two price lists, from docs/guarantee.md, "Looks and
# hits in one purse" alone.
#
# It chooses counts, weights, and when the user joins the hits list, by what was published so far; the user pays as
# the section says. What it attains is the largest ``P(S) - e^epsilon Q(S)`` of any set of transcripts. The value is
# convex in the likelihood ratio so far, so that chords between points of a grid are above it, by less than one in a
# thousand here.


Floats = npt.NDArray[np.float64]
BELOW, HIT, ABOVE = range(3)
_LOG_RATIOS = np.concatenate([np.linspace(-30, -4, 105)[:-1], np.linspace(-4, 3, 1401)])
RATIOS = np.exp(_LOG_RATIOS)


@dataclasses.dataclass(frozen=True)
class HitsGame:
    """What can be published and what it costs.

    outcomes: of each weight, the probabilities of below, hit and above with the user and without, for each count:
        float64[2, 3, counts]. looks_list, hits_list: weight to units. purse: units. hits: J. hit_units: for each of
        them, set aside when the user joins. never_excluded: a fault.
    """

    outcomes: Mapping[int, Floats]
    looks_list: Mapping[int, int]
    hits_list: Mapping[int, int]
    purse: int
    hits: int
    hit_units: int
    epsilon: float
    never_excluded: bool = False

    def delta(self, looks: int, *, removed: bool = False) -> float:
        """What the adversary attains with at most so many looks. removed: P is the world without the user."""

        @functools.cache
        def value(looks: int, left: int, hits: int | None) -> Floats:
            """Per unit of P, for each of `RATIOS` so far. hits: left; None before the user joins."""
            best = np.maximum(0.0, 1 - math.exp(self.epsilon) * RATIOS)
            if not looks or hits == 0:
                return best
            if hits is None and left >= self.hits * self.hit_units:
                best = np.maximum(best, value(looks, left - self.hits * self.hit_units, self.hits))
            for weight, units in (self.looks_list if hits is None else self.hits_list).items():
                if units <= left:
                    then = [value(looks - 1, left - units, self._after(hits, outcome)) for outcome in range(3)]
                    best = np.maximum(best, _one_look(self.outcomes[weight], then, removed=removed))
            return best

        return float(np.interp(1.0, RATIOS, value(looks, self.purse, None)))

    def _after(self, hits: int | None, outcome: int) -> int | None:
        return hits if hits is None or outcome != HIT or self.never_excluded else hits - 1


def _one_look(outcomes: Floats, then: Sequence[Floats], *, removed: bool) -> Floats:
    """The largest value over all counts."""
    p, q = outcomes[::-1] if removed else outcomes
    best = np.zeros(len(RATIOS))
    for count in range(p.shape[1]):
        total = np.zeros(len(RATIOS))
        for outcome in range(3):
            if p[outcome, count] > 0:
                ratios = RATIOS * (q[outcome, count] / p[outcome, count])
                total += p[outcome, count] * np.interp(ratios, RATIOS, then[outcome], left=1.0)
        best = np.maximum(best, total)
    return best


EPSILON, DELTA = 1.0, 1e-4
LOOKS = 3
MANY_LOOKS = 12
LAWS = [(1.0, 20, 14.0), (2.0, 24, 14.0), (2.5, 28, 13.0)]


def spacing_of(noise: ExponentialPower) -> int:
    return math.ceil(3 * noise.standard_deviation)


@functools.cache
def lists(
    shape: float, scale: int, order: float, hits: int, share: float, looks: int = LOOKS
) -> tuple[PriceList, PriceList]:
    """share: of the purse, for all hits."""
    noise = ExponentialPower(shape, scale)
    terms = (noise, order, order_budget(order, EPSILON, DELTA), looks)
    hit_units = math.floor(share * PURSE_UNITS / hits)
    return (
        make_price_list(*terms, spacing=spacing_of(noise)),
        make_price_list(*terms, hit_units=hit_units, hits=hits, spacing=spacing_of(noise)),
    )


@functools.cache
def outcomes(shape: float, scale: int, weight: int) -> np.ndarray:
    """Of counts from 3 scales below both boundaries to 3 scales above, 12 a scale: float64[2, 3, counts]."""
    spacing = spacing_of(ExponentialPower(shape, scale))
    margins = range(-3 * scale - spacing, 3 * scale + 1, max(1, scale // 12))
    worlds = []
    for moved in (weight, 0):
        found = [
            (
                purse_oracle.tail(shape, scale, 1 - m + moved),
                purse_oracle.between(shape, scale, m - moved, m - moved + spacing),
                purse_oracle.tail(shape, scale, m + spacing - moved),
            )
            for m in margins
        ]
        worlds.append(np.array(found, dtype=np.float64).T)
    return np.array(worlds)


def game_of(prices: PriceList, hit_prices: PriceList, times: int = 1, **changes: object) -> HitsGame:
    """times: a fault, looks of so many times the weight that is paid for."""
    noise = prices.noise
    options = {
        "outcomes": {w: outcomes(noise.shape, noise.scale, times * w) for w in {*prices.weights, *hit_prices.weights}},
        "looks_list": dict(zip(prices.weights, prices.units, strict=True)),
        "hits_list": dict(zip(hit_prices.weights, hit_prices.units, strict=True)),
        "purse": PURSE_UNITS,
        "hits": hit_prices.hits,
        "hit_units": hit_prices.hit_units,
        "epsilon": EPSILON,
    }
    return HitsGame(**{**options, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("shape", "scale", "order"), LAWS)
@pytest.mark.parametrize(("hits", "share"), [(1, 0.3), (1, 0.8), (2, 0.6)])
@pytest.mark.parametrize("removed", [False, True])
def test_no_adaptive_adversary_gets_more_than_delta(
    shape: float, scale: int, order: float, hits: int, share: float, removed: bool
) -> None:
    game = game_of(*lists(shape, scale, order, hits, share))
    attained = game.delta(LOOKS, removed=removed)
    assert attained <= DELTA
    assert shape == 1 or attained > DELTA * 0.02, "else the inequality would say little"


def test_joining_later_or_never_gets_no_more_than_the_claim_either() -> None:
    prices, hit_prices = lists(2.5, 28, 13.0, 1, 0.3)
    never = game_of(prices, hit_prices, hits_list={}).delta(LOOKS)
    at_once = game_of(prices, hit_prices, looks_list={}).delta(LOOKS)
    assert 0 < max(never, at_once) <= game_of(prices, hit_prices).delta(LOOKS) * (1 + 1e-9) <= DELTA


# ---------------------------------------------------------------------------------------------------------------------
# Planted faults
# ---------------------------------------------------------------------------------------------------------------------


def many_looks(weight: int | None = None, **changes: object) -> HitsGame:
    """A purse of which 80 % are for one hit, and the rest for 12 looks of one weight. weight: another one than fits."""
    prices, hit_prices = lists(2.0, 60, 14.0, 1, 0.8, MANY_LOOKS)
    weight = weight or hit_prices.weights[0]
    table = {weight: outcomes(2.0, 60, weight)}
    listed = {"looks_list": {}, "hits_list": {weight: hit_prices.units[0]}, "outcomes": table}
    return game_of(prices, hit_prices, **{**listed, **changes})


def test_many_looks_and_one_hit_are_within_the_claim() -> None:
    assert many_looks().delta(MANY_LOOKS + 1) == many_looks().delta(MANY_LOOKS) <= DELTA


def test_hits_that_are_not_charged_are_seen() -> None:
    """The faults: nothing is set aside for hits, so that looks have all of the purse, and nobody is excluded."""
    assert many_looks(hit_units=0, never_excluded=True).delta(5 * MANY_LOOKS) > DELTA


@pytest.mark.parametrize("times", [2])
def test_weights_of_more_than_their_price_are_seen(times: int) -> None:
    prices, hit_prices = lists(2.5, 28, 13.0, 1, 0.3)
    assert game_of(prices, hit_prices, times=times).delta(LOOKS) > DELTA


@pytest.mark.parametrize("removed", [False, True])
def test_a_price_that_forgets_the_free_name_above_is_seen(removed: bool) -> None:
    """The fault: in the world with the user, above is priced as if it paid what a hit pays, and it is free."""
    prices, hit_prices = lists(2.0, 60, 14.0, 1, 0.8, MANY_LOOKS)
    paid = hit_prices.units[0] / PURSE_UNITS * prices.budget
    weight = max(w for w in range(1, 20) if one_way_price(hit_prices, w) <= paid)
    hit_price = hit_prices.hit_units / PURSE_UNITS * prices.budget
    assert zone_price(hit_prices.noise, 14.0, weight, prices.spacing, hit_price=hit_price) > 5 * paid
    assert many_looks(weight).delta(MANY_LOOKS, removed=removed) > DELTA


def one_way_price(prices: PriceList, weight: int) -> float:
    """Of the first boundary alone: hit and above together, both charged, in the world with the user."""
    lam = prices.order - 1
    worth = math.exp(-lam * prices.hit_units / PURSE_UNITS * prices.budget)
    noise, largest = prices.noise, 0.0
    for m in range(-4 * noise.scale, 4 * noise.scale):
        (hit_p, miss_p), (hit_q, miss_q) = (
            [float(p) for p in purse_oracle.bit(noise.shape, noise.scale, m - moved)] for moved in (weight, 0)
        )
        total = hit_p * (hit_p / hit_q) ** lam * worth + miss_p * (miss_p / miss_q) ** lam
        largest = max(largest, total - 1)
    return math.log1p(largest) / lam


def test_without_a_floor_free_looks_give_lone_items_away() -> None:
    """Laplace noise and a large price of a hit: small weights cost nothing, and each look may name a lone item."""
    noise = ExponentialPower(1.0, 1000)
    terms = (noise, 17.0, order_budget(17.0, 2.0, 5e-10), 50)
    prices = make_price_list(*terms, spacing=20_000)
    listed = make_price_list(*terms, hit_units=PURSE_UNITS // 4, hits=3, spacing=20_000)
    threshold = smallest_open_threshold(prices, 5e-10, listed)
    weight = 35
    price = zone_price(noise, 17.0, weight, 20_000, hit_price=listed.hit_units / PURSE_UNITS * prices.budget)
    assert SMALLEST_PRICE <= price < 1e-7 * prices.budget
    units = math.ceil(price / prices.budget * PURSE_UNITS * (1 + 1e-6))
    no_floor = dataclasses.replace(listed, weights=(weight, *listed.weights), units=(units, *listed.units))
    in_one_look = float(purse_oracle.tail(1.0, 1000, threshold - weight))
    assert no_floor.most_looks * in_one_look > 1000 * 5e-10, "what so many looks at lone items give away"
    assert smallest_open_threshold(prices, 5e-10, no_floor) > threshold * 1.3
    with pytest.raises(ValueError, match="a purse must pay for at most 50 looks on either list"):
        PurseChoice(2.0, 5e-10, 5e-10, prices, threshold, no_floor)
