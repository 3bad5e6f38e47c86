"""The harness itself: laws that can be written down by hand."""

from __future__ import annotations

import math

import pytest

from dp_transforms.papers.noise_source import NoiseSource
from tests.helpers.branching import attained_epsilon, exact_law, hockey_stick


def _two_tests(noise: NoiseSource, count: int = 3, epsilon: float = 0.7) -> tuple[bool, bool, bool]:
    """Two noisy counts, the first compared with a noisy threshold, the second with a fixed one."""
    threshold = 4 + noise.discrete_laplace(epsilon)
    first = count + noise.discrete_laplace(epsilon) >= threshold
    second = count + noise.discrete_laplace(epsilon) > 2
    return bool(first), bool(second), noise.bernoulli(0.25)


def _probability(epsilon: float, value: int) -> float:
    return math.tanh(epsilon / 2) * math.exp(-epsilon * abs(value))


def test_the_exact_law_is_that_of_sums_over_all_values() -> None:
    law = exact_law(_two_tests)
    reach = range(-70, 71)
    first = sum(_probability(0.7, r) * _probability(0.7, z) for r in reach for z in reach if 3 + z >= 4 + r)
    second = sum(_probability(0.7, z) for z in reach if 3 + z > 2)
    for (one, two, three), probability in law.items():
        expected = (first if one else 1 - first) * (second if two else 1 - second) * (0.25 if three else 0.75)
        assert probability == pytest.approx(expected, rel=1e-12)
    assert len(law) == 8


def test_a_released_value_attains_its_epsilon_and_no_more() -> None:
    p, q = (exact_law(lambda noise, c=count: int(c + noise.discrete_laplace(1.5))) for count in (2, 3))
    inside = [{k: v for k, v in law.items() if -10 < k < 10} for law in (p, q)]
    assert attained_epsilon(*inside) == pytest.approx(1.5)
    assert hockey_stick(p, q, 1.5) < 1e-12 < 0.1 < hockey_stick(p, q, 1.0)


def test_choices_are_weighed() -> None:
    law = exact_law(lambda noise: noise.choose([1, 0, 3]))
    assert law == {0: 0.25, 2: 0.75}
