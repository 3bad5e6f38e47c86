"""Individual charging and the monitors: the targets of fractional weights, and accuracy."""

from __future__ import annotations

import decimal
import math
import random
from fractions import Fraction

import pytest

from dp_transforms.mechanisms.discrete_laplace_law import probability
from dp_transforms.mechanisms.papers.individual_charging import IndividualCharging
from dp_transforms.mechanisms.papers.query import LinearQuery
from dp_transforms.mechanisms.papers.threshold_monitor import ThresholdMonitorEvolving
from tests.helpers.threshold_monitors import SMALL, top_probability

# --- Targets with weights in (0, 1]


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


# --- Accuracy


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
