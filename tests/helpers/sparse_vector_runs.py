"""What the tests of sparse vector ask, and noise that is always 0."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from dp_transforms.mechanisms.papers.noise_source import NoiseSource
from dp_transforms.mechanisms.papers.query import RealQuery

KEY = bytes(range(32))


class Silent:
    """Draws 0 and notes what was asked for."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def discrete_laplace(self, epsilon: float) -> int:
        self.asked.append(epsilon)
        return 0

    def bernoulli(self, probability: float) -> bool:
        raise AssertionError("these mechanisms toss no coins")

    def choose(self, weights: Sequence[int]) -> int:
        raise AssertionError("these mechanisms choose nothing")


@dataclasses.dataclass
class Fixed:
    """A query of one's own: anything with these names will do. asked: how often."""

    units: int
    grid: int = 1
    sensitivity: int = 1
    asked: int = 0

    def answer(self, data: Any) -> int:
        self.asked += 1
        return self.units


def value_query(answer: float, grid: int = 1) -> RealQuery:
    """A query with one answer for all data."""
    return RealQuery(lambda data: answer, grid)


def ask_all(make: Callable[[NoiseSource], Any], answers: Sequence[int]) -> Callable[[NoiseSource], Hashable]:
    """A run for `exact_law`: all that is published until the mechanism halts."""

    def run(noise: NoiseSource) -> Hashable:
        mechanism = make(noise)
        published = []
        for answer in answers:
            if not mechanism.halted:
                published.append(mechanism.ask(value_query(answer)))
        return tuple(published)

    return run
