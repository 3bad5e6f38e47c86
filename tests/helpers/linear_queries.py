"""Linear queries at random, and noise that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dp_transforms.papers.query import LinearQuery


class ChosenNoise:
    """Every draw of noise from one function; the first of the heaviest is chosen."""

    def __init__(self, draw: Callable[[float], int] = lambda _: 0) -> None:
        self._draw = draw

    def discrete_laplace(self, epsilon: float) -> int:
        return self._draw(epsilon)

    def bernoulli(self, probability: float) -> bool:
        raise AssertionError("no mechanism of this module tosses a coin")

    def choose(self, weights: Sequence[int]) -> int:
        return list(weights).index(max(weights))


def random_queries(random: np.random.Generator, count: int, universe: int, grid: int = 1) -> list[LinearQuery]:
    """Weights are multiples of 1 / grid."""
    return [LinearQuery(random.integers(0, grid + 1, universe), grid) for _ in range(count)]
