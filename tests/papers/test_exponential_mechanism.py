"""The exponential mechanism: its weights to the last bit, its epsilon, its accuracy."""

import itertools
import math

import mpmath
import pytest

from dp_transforms.papers.exponential_mechanism import ExponentialMechanism
from tests.reference.exact_law import attained_epsilon, exact_law


@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize(("scores", "epsilon", "sensitivity"), [([0, 3, -5, 3], 0.7, 2), ([10, 0, 40], 1.5, 3)])
def test_weights_are_those_of_the_formula_to_more_than_a_hundred_bits(scores, epsilon, sensitivity, monotonic):
    mechanism = ExponentialMechanism(scores, epsilon, sensitivity, monotonic=monotonic)
    with mpmath.workprec(400):
        rate = mpmath.mpf(epsilon) / (sensitivity if monotonic else 2 * sensitivity)
        exact = [mpmath.exp(rate * score) for score in scores]
        drawn = [mpmath.mpf(weight) / sum(mechanism.weights) for weight in mechanism.weights]
        distance = sum(abs(one - two / sum(exact)) for one, two in zip(drawn, exact, strict=True)) / 2
        assert distance < mpmath.mpf(2) ** -127
    assert mechanism.probabilities == pytest.approx([float(weight) for weight in drawn], rel=1e-15)


@pytest.mark.parametrize("monotonic", [False, True])
def test_epsilon_is_attained_by_the_worst_neighbours_and_never_exceeded(monotonic):
    """All pairs of scores of three candidates that neighbours may have."""
    moves = (0, 1, 2) if monotonic else (-2, -1, 0, 1, 2)
    attained = []
    for base in ([0, 0, 0], [9, 0, 0], [40, 0, 1]):
        for move in itertools.product(moves, repeat=3):
            laws = [
                exact_law(ExponentialMechanism(scores, 1.0, 2, monotonic=monotonic).choose)
                for scores in (base, [b + m for b, m in zip(base, move, strict=True)])
            ]
            attained.append(attained_epsilon(*laws))
    assert 0.95 < max(attained) <= 1 + 1e-12


def test_the_accuracy_is_that_of_the_theorem_and_true():
    for scores, epsilon, beta in itertools.product(([0] * 50 + [30], [5, 4, 3, 2, 1, 0]), (0.5, 2.0), (0.01, 0.3)):
        mechanism = ExponentialMechanism(scores, epsilon, 2)
        lowest = max(scores) - mechanism.accuracy(beta)
        pairs = zip(scores, mechanism.probabilities, strict=True)
        assert sum(probability for score, probability in pairs if score <= lowest) <= beta
    assert ExponentialMechanism([0, 1, 2, 3, 4], 1.0, 1).accuracy(0.1) == pytest.approx(2 * math.log(50))
