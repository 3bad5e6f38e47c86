"""Prices of looks with hits: the definition with 50 digits, the reference, limits, the bound for all counts, faults."""

from __future__ import annotations

import functools
import math

import mpmath
import pytest

from dp_transforms.accounting.purse.look_prices import SMALLEST_PRICE, beyond_reach, level_price, look_price, zone_price
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from tests.unit import purse_oracle
from tests.unit.purse_oracle import REFERENCE

SCALE = 10_000
HITS = [
    (entry["p"], entry["alpha"], round(float(weight) * SCALE), price)
    for entry in REFERENCE["prices"]
    for weight, price in entry["look_price_with_hit_price_0.1"].items()
]
SMALL = [(1.0, 6, 2.0, 1), (1.5, 5, 9.0, 2), (2.0, 6, 17.0, 1), (2.5, 7, 4.0, 3), (3.0, 6, 17.0, 1), (4.0, 9, 1.5, 4)]


def spacing_of(noise: ExponentialPower, deviations: float) -> int:
    return math.ceil(deviations * noise.standard_deviation)


@functools.cache
def outcomes(shape: float, scale: int, margin: int, spacing: int) -> list[mpmath.mpf]:
    """Below, hit, above."""
    return [
        purse_oracle.tail(shape, scale, 1 - margin),
        purse_oracle.between(shape, scale, margin, margin + spacing),
        purse_oracle.tail(shape, scale, margin + spacing),
    ]


def excess(
    first: list[mpmath.mpf], second: list[mpmath.mpf], order: float, hit_price: float, charged: tuple[int, ...] = (1,)
) -> mpmath.mpf:
    with mpmath.workdps(purse_oracle.DIGITS):
        lam = mpmath.mpf(order) - 1
        worth = [mpmath.exp(-lam * mpmath.mpf(hit_price)) if o in charged else 1 for o in range(3)]
        return mpmath.fsum(p * (p / q) ** lam * c for p, q, c in zip(first, second, worth, strict=True)) - 1


def exact_price(
    shape: float, scale: int, order: float, weight: int, spacing: int, hit_price: float, charged: tuple[int, ...] = (1,)
) -> float:
    """Over all counts to 12 scales on both sides of both boundaries."""
    largest = mpmath.mpf(0)
    for margin in range(-12 * scale - spacing, 12 * scale):
        worlds = [outcomes(shape, scale, margin - moved, spacing) for moved in (weight, 0)]
        for first, second in (worlds, worlds[::-1]):
            largest = max(largest, excess(first, second, order, hit_price, charged))
    return float(mpmath.log1p(largest) / (order - 1))


@pytest.mark.parametrize(("shape", "scale", "order", "weight"), SMALL)
@pytest.mark.parametrize("deviations", [2, 5.5])
def test_prices_are_those_of_the_definition(
    shape: float, scale: int, order: float, weight: int, deviations: float
) -> None:
    """With 50 digits, both ways, counts below, between and above the boundaries; rounded up, by less than 1e-8."""
    noise = ExponentialPower(shape, scale)
    spacing = max(weight, spacing_of(noise, deviations))
    for hit_price in (0.0, 0.02, 0.5):
        found = zone_price(noise, order, weight, spacing, hit_price=hit_price)
        exact = exact_price(shape, scale, order, weight, spacing, hit_price)
        assert exact <= found <= max(exact * (1 + 1e-8), 3 * SMALLEST_PRICE)


@pytest.mark.parametrize(("shape", "order", "weight", "price"), HITS)
def test_far_boundaries_cost_what_the_reference_says(shape: float, order: float, weight: int, price: float) -> None:
    """Beyond the far one a hit is on the other side, which is the other direction of the reference."""
    noise = ExponentialPower(shape, SCALE)
    found = zone_price(noise, order, weight, 20 * SCALE, hit_price=0.1)
    assert found == (pytest.approx(price, rel=1e-5) if price else pytest.approx(0, abs=1e-8))
    assert found >= look_price(noise, order, weight, hit_price=0.1) * (1 - 1e-9)


@pytest.mark.parametrize("shape", [1.0, 2.0, 2.5, 3.5])
def test_between_the_price_of_a_bit_and_the_price_of_levels(shape: float) -> None:
    noise = ExponentialPower(shape, 1000)
    for weight in (5, 30, 120):
        for deviations in (2, 3, 5.5):
            spacing = spacing_of(noise, deviations)
            alone = zone_price(noise, 17.0, weight, spacing)
            assert look_price(noise, 17.0, weight) * (1 - 1e-9) <= alone
            assert alone <= level_price(noise, 17.0, weight, spacing) * (1 + 1e-9)
            with_hits = [zone_price(noise, 17.0, weight, spacing, hit_price=hit) for hit in (0.0, 0.01, 0.1, 1.0)]
            assert with_hits == sorted(with_hits, reverse=True)


def test_small_weights_are_free_with_laplace_noise_and_a_large_price_of_a_hit() -> None:
    """Target charging: below a weight of some 0.042 scales at order 17, beyond what the far boundary adds."""
    noise = ExponentialPower(1.0, 1000)
    free, not_free = (zone_price(noise, 17.0, weight, 20_000, hit_price=1.0) for weight in (41, 43))
    assert free < 1e-8
    assert not_free > 1e-4


@pytest.mark.parametrize(("shape", "scale", "order", "weight"), SMALL)
def test_the_bound_beyond_the_reach_holds(shape: float, scale: int, order: float, weight: int) -> None:
    """For counts far above both boundaries and far below both, both ways, whatever a hit pays."""
    noise, finite = ExponentialPower(shape, scale), 0
    spacing = max(weight, spacing_of(noise, 2))
    for reach in range(weight + 1, 9 * scale, 3):
        bound = 2 * beyond_reach(noise, order, weight, reach)
        if bound == math.inf:
            continue
        finite += 1
        lowest = weight + 1 - spacing - reach
        for margin in (reach + 1, reach + 2, reach + scale, lowest - 1, lowest - 2, lowest - scale):
            worlds = [outcomes(shape, scale, margin - moved, spacing) for moved in (weight, 0)]
            for hit_price in (0.0, 0.3):
                assert excess(*worlds, order, hit_price) <= bound
                assert excess(*worlds[::-1], order, hit_price) <= bound
    assert finite > 3


# --- Planted faults


def test_prices_beyond_floats_are_infinite() -> None:
    assert zone_price(ExponentialPower(4.0, 100), 900.0, 80, 300, hit_price=0.1) == math.inf
