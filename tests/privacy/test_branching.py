"""The harness itself: laws that can be written down by hand."""

from __future__ import annotations

import math

import pytest

from dp_transforms.mechanisms.papers.noise_source import NoiseSource, SecretNoise
from tests.helpers.branching import attained_epsilon, exact_law, hockey_stick, sampled_law


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


def test_the_sampled_law_agrees_with_the_exact_one() -> None:
    runs = 200_000
    exact, sampled = exact_law(_two_tests), sampled_law(_two_tests, runs, SecretNoise(b"a key of a test." * 2))
    assert set(exact) == set(sampled)
    for transcript, probability in exact.items():
        # Six standard deviations for 8 outcomes: false alarm below 2e-8.
        assert abs(sampled[transcript] / runs - probability) < 6 * math.sqrt(probability / runs)


def _draws_what_it_needs(noise: NoiseSource) -> tuple[bool, bool, int]:
    """The second draw depends on the first, in kind or in scale."""
    first = noise.discrete_laplace(0.5) >= 1
    second = noise.discrete_laplace(3.0 if first else 0.2) >= 2
    third = noise.bernoulli(0.125) if second else noise.discrete_laplace(2.0) >= 0
    return bool(first), bool(second), int(third)


def test_paths_that_draw_different_things_keep_them_apart() -> None:
    runs = 200_000
    law = exact_law(_draws_what_it_needs)
    sampled = sampled_law(_draws_what_it_needs, runs, SecretNoise(b"a key of a test." * 2))
    for transcript, probability in law.items():
        # Six standard deviations for 8 outcomes: false alarm below 2e-8.
        assert abs(sampled[transcript] / runs - probability) < 6 * math.sqrt(probability / runs)
    assert law[True, True, 1] == pytest.approx(_tail(0.5, 1) * _tail(3.0, 2) * 0.125)


def _tail(epsilon: float, margin: int) -> float:
    return math.exp(-epsilon * margin) / (1 + math.exp(-epsilon))


def test_a_released_value_attains_its_epsilon_and_no_more() -> None:
    p, q = (exact_law(lambda noise, c=count: int(c + noise.discrete_laplace(1.5))) for count in (2, 3))
    inside = [{k: v for k, v in law.items() if -10 < k < 10} for law in (p, q)]
    assert attained_epsilon(*inside) == pytest.approx(1.5)
    assert hockey_stick(p, q, 1.5) < 1e-12 < 0.1 < hockey_stick(p, q, 1.0)


def test_choices_are_weighed() -> None:
    law = exact_law(lambda noise: noise.choose([1, 0, 3]))
    assert law == {0: 0.25, 2: 0.75}
    counts = sampled_law(lambda noise: noise.choose([1, 0, 3]), 10_000, SecretNoise(b"a key of a test." * 2))
    assert set(counts) == {0, 2}
    assert abs(counts[0] - 2500) < 300  # 7 standard deviations
