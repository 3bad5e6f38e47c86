"""What mechanisms of the papers run and draw, written down by a test."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from dp_transforms.papers.noise_source import NoiseSource


@dataclasses.dataclass
class Scripted:
    """A private computation that returns its results one after the other, raises those that are exceptions, and counts
    how often it was run."""

    results: list[Any]
    epsilon: float = 0.5
    delta: float = 0.0
    runs: int = 0

    def run(self, data: Any, noise: NoiseSource) -> Any:
        self.runs += 1
        result = self.results[self.runs - 1]
        if isinstance(result, BaseException):
            raise result
        return result


class Given:
    """Noise that is given, one draw after the other, and then 0; it notes for what it was asked."""

    def __init__(self, *draws: int) -> None:
        self._draws = list(draws)
        self.epsilons: list[float] = []
        self.weights: list[list[int]] = []

    def discrete_laplace(self, epsilon: float) -> int:
        self.epsilons.append(epsilon)
        return self._draws.pop(0) if self._draws else 0

    def choose(self, weights: Sequence[int]) -> int:
        """The next draw as a position; where none is left, the first of the heaviest."""
        self.weights.append(list(weights))
        return self._draws.pop(0) if self._draws else list(weights).index(max(weights))
