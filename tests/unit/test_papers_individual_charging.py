"""Individual charging and the monitors: the targets of fractional weights, and accuracy."""

from __future__ import annotations

import decimal
import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog

from dp_transforms.mechanisms.discrete_laplace_law import probability
from dp_transforms.mechanisms.papers.individual_charging import IndividualCharging
from dp_transforms.mechanisms.papers.noise_source import SecretNoise
from dp_transforms.mechanisms.papers.query import LinearQuery
from dp_transforms.mechanisms.papers.threshold_monitor import ThresholdMonitorEvolving
from tests.helpers.threshold_monitors import SMALL, key, top_probability

# ---------------------------------------------------------------------------------------------------------------------
# Targets with weights in (0, 1]
# ---------------------------------------------------------------------------------------------------------------------


def has_target(p: np.ndarray, q: np.ndarray, target: np.ndarray, epsilon: float, probability: float) -> bool:
    """Whether a common part can be taken out such that the rest is a q-target: a linear program in that part."""
    size, factor = len(p), math.exp(epsilon)
    rows, limits = [], []
    for here, there in ((p, q), (q, p)):
        rows += list((factor - 1) * np.eye(size))  # here - C <= e^eps (there - C)
        limits += list(factor * there - here)
        rows.append(target - probability)  # sum of (here - C) over the target >= probability (1 - sum of C)
        limits.append(here @ target - probability)
    bounds = [(0, limit) for limit in np.minimum(p, q)]
    return linprog(np.zeros(size), A_ub=np.array(rows), b_ub=np.array(limits), bounds=bounds).status == 0


def outcomes(count: int, width: int, ratio: float) -> np.ndarray:
    """Below the zone, each value in the zone 0 .. width - 1, above it: probabilities given the exact count."""
    inside = [(1 - ratio) / (1 + ratio) * ratio ** abs(z - count) for z in range(width)]

    def tail(m: int) -> float:  # Pr[Z >= m]
        return ratio**m / (1 + ratio) if m >= 1 else 1 - ratio ** (1 - m) / (1 + ratio)

    return np.array([tail(count + 1), *inside, tail(width - count)])


@pytest.mark.parametrize(
    ("epsilon", "grid", "width"), [(1.0, 1, 2), (0.8, 3, 1), (0.8, 3, 2), (1.5, 4, 6), (0.3, 5, 3)]
)
def test_a_zone_is_a_target_for_every_weight_and_no_larger_one_is(epsilon: float, grid: int, width: int) -> None:
    stream = IndividualCharging(1, hits=1, epsilon_per_query=epsilon, zone_width=width, grid=grid)
    q = stream.target_probability
    assert q == pytest.approx((1 - math.exp(-width * epsilon / grid)) / (math.exp(epsilon) + 1), rel=1e-11)
    target = np.array([0, *[1] * width, 0])
    ratio = math.exp(-epsilon / grid)
    larger = []
    for weight, count in itertools.product(range(1, grid + 1), range(-grid - 3, width + grid + 3)):
        laws = outcomes(count, width, ratio), outcomes(count + weight, width, ratio)
        assert has_target(*laws, target, epsilon, q * (1 - 1e-6)), (weight, count)
        larger.append(has_target(*laws, target, epsilon, q * 1.01))
    assert not all(larger), "where the user tips the sum over an edge, q is all there is"


def test_values_published_from_a_threshold_on_are_a_target_for_every_weight() -> None:
    epsilon, grid, reach = 0.9, 3, 30
    stream = IndividualCharging(1, hits=1, epsilon_per_query=epsilon, grid=grid)
    q = stream.target_probability
    assert q == pytest.approx(1 / (math.exp(epsilon) + 1), rel=1e-11)
    larger = []
    for weight, count in itertools.product((1, 2, 3), (-5, -3, -2, -1, 0, 4)):
        p, r = (outcomes(each, reach, math.exp(-epsilon / grid)) for each in (count, count + weight))
        target = np.array([0, *[1] * (reach + 1)])
        assert has_target(p, r, target, epsilon, q * (1 - 1e-6)), (weight, count)
        larger.append(has_target(p, r, target, epsilon, q * 1.01))
    assert not all(larger)


@pytest.mark.parametrize("grid", [1, 3, 7, 1024, 999_983])
@pytest.mark.parametrize("zone", [None, 1, 5])
def test_epsilon_per_unit_and_q_are_rounded_down(grid: int, zone: int | None) -> None:
    """Against 50 digits. A q or an epsilon that is too large by one unit in the last place is found."""
    generator = random.Random(f"{grid} {zone}")
    with decimal.localcontext(decimal.Context(prec=50)):
        for _ in range(40):
            epsilon = 10 ** generator.uniform(-1, 1)
            noise = _Recorded()
            stream = IndividualCharging(1, hits=1, epsilon_per_query=epsilon, zone_width=zone, grid=grid, noise=noise)
            stream.ask(LinearQuery([0], grid), 10**6)
            (per_unit,) = noise.epsilons
            assert (
                Fraction(per_unit) * grid <= Fraction(epsilon) < Fraction(per_unit) * grid * (1 + Fraction(1, 10**15))
            )
            q = 1 / (decimal.Decimal(epsilon).exp() + 1)
            if zone is not None:
                q *= 1 - (-zone * decimal.Decimal(per_unit)).exp()
            assert q * (1 - decimal.Decimal("2e-12")) < decimal.Decimal(stream.target_probability) < q


class _Recorded:
    def __init__(self) -> None:
        self.epsilons: list[float] = []

    def discrete_laplace(self, epsilon: float) -> int:
        self.epsilons.append(epsilon)
        return 0


def test_the_test_of_targets_sees_one_that_is_too_large() -> None:
    laws = outcomes(-1, 2, math.exp(-1)), outcomes(0, 2, math.exp(-1))
    q = (1 - math.exp(-2)) / (math.e + 1)
    assert has_target(*laws, np.array([0, 1, 1, 0]), 1.0, q * 0.999)
    assert not has_target(*laws, np.array([0, 1, 1, 0]), 1.0, q * 1.001)


# ---------------------------------------------------------------------------------------------------------------------
# Accuracy
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "beta", "grid"), [(1, 0.1, 1), (100, 0.01, 1), (7, 0.3, 4)])
def test_accuracy_is_the_smallest_alpha_that_the_exact_tails_allow(queries: int, beta: float, grid: int) -> None:
    threshold = 10.1
    monitor = ThresholdMonitorEvolving(1, hits=1, threshold=threshold, grid=grid, **SMALL)
    in_units = math.ceil(threshold * grid)
    alpha = (monitor.accuracy(queries, beta) - (in_units / grid - threshold)) * grid
    assert alpha == pytest.approx(round(alpha), abs=1e-9)

    def errs(units: int) -> float:  # the likelier error of one query, at the count nearest to being right
        return max(top_probability(units + 1), 1 - top_probability(-units))

    assert errs(round(alpha)) <= beta / queries < errs(round(alpha) - 1)


@pytest.mark.parametrize(
    ("queries", "beta", "epsilon", "grid"), [(1, 0.9, 0.5, 1), (50, 0.01, 0.5, 1), (9, 0.1, 2.0, 4)]
)
def test_accuracy_of_individual_charging_is_the_smallest_alpha(
    queries: int, beta: float, epsilon: float, grid: int
) -> None:
    stream = IndividualCharging(1, hits=1, epsilon_per_query=epsilon, grid=grid)
    units = round(stream.accuracy(queries, beta) * grid)

    def errs(alpha: int) -> float:  # Pr[|Z| > alpha]
        return 1 - math.fsum(probability(epsilon / grid, z) for z in range(-alpha, alpha + 1))

    assert errs(units) <= beta / queries * (1 + 1e-9)
    assert errs(units - 1) > beta / queries
    for wrong in ((0, 0.1), (2**60 + 1, 0.1), (1, 0.0), (1, math.nan), (True, 0.1)):
        with pytest.raises(ValueError, match=r"(queries|beta) must"):
            stream.accuracy(*wrong)


def test_accuracy_holds_for_random_streams() -> None:
    """Errors in 300 runs of 10 queries at beta = 0.1; the chance of 60 runs or more with one is below 2e-7."""
    noise = SecretNoise(key(1))
    alpha = ThresholdMonitorEvolving(400, hits=50, threshold=200, noise=noise, **SMALL).accuracy(10, 0.1)
    wrong = 0
    for _ in range(300):
        monitor = ThresholdMonitorEvolving(400, hits=50, threshold=200, noise=noise, **SMALL)
        errors = 0
        for step in range(10):
            count = int(200 + (alpha + 1) * (-1) ** step)
            errors += monitor.ask(LinearQuery(np.arange(400) < count)) != (count > 200)
        wrong += errors > 0
    assert 1 <= wrong < 60


@pytest.mark.parametrize("kind", [np.float32, Fraction])
def test_accuracy_takes_every_type_of_number(kind: type) -> None:
    monitor = ThresholdMonitorEvolving(1, hits=1, threshold=0, **SMALL)
    assert monitor.accuracy(3, kind(0.125)) == monitor.accuracy(3, 0.125)
