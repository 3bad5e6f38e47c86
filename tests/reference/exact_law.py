"""Runs a mechanism along every path that its noise can take: the exact law of its transcript.

The mechanism runs unchanged; only its `NoiseSource` is replaced. A draw is not a number but a range of numbers, and
only when the mechanism compares it (or needs its value) does the run branch, so a query that is only compared with a
threshold has two branches and not hundreds. The mechanism is run again for every path (depth first, replaying the
choices made so far), so it must be a function of its noise.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from dp_transforms.papers.noise_source import NoiseSource

Law = dict[Hashable, float]
_END = 2**62  # in the place of infinity


def exact_law(run: Callable[[NoiseSource], Hashable], *, cut: float = 1e-14) -> Law:
    """Probability of each transcript. Where a value is needed, tails of probability `cut` count as their edge."""
    law: Law = {}
    waiting: list[list[int]] = [[]]
    while waiting:
        path = _Path(waiting.pop(), cut)
        transcript = run(path)
        law[transcript] = law.get(transcript, 0.0) + path.probability()
        # Where the path went beyond the choices it was given, it took the first one; the others are still to do.
        for depth in range(len(path.given), len(path.taken)):
            waiting.extend([*path.taken[:depth], other] for other in path.alternatives[depth])
    assert abs(sum(law.values()) - 1) < 1e-9, "the paths must cover everything"
    return law


def hockey_stick(p: Law, q: Law, epsilon: float) -> float:
    """The smallest delta at this epsilon, for both directions: ``max over S of P(S) - e^eps Q(S)``, and reversed."""
    return hockey_sticks(p, q, [epsilon])[0]


def hockey_sticks(p: Law, q: Law, epsilons: Sequence[float]) -> list[float]:
    """The same at each epsilon."""
    transcripts = [*{**p, **q}]
    first, second = (np.array([law.get(transcript, 0.0) for transcript in transcripts]) for law in (p, q))
    pairs = [(first - math.exp(epsilon) * second, second - math.exp(epsilon) * first) for epsilon in epsilons]
    return [max(float(np.maximum(excess, 0).sum()) for excess in pair) for pair in pairs]


def attained_epsilon(p: Law, q: Law) -> float:
    """The smallest epsilon with delta = 0."""
    ratios = [
        abs(math.log(p.get(transcript, 0.0) / q[transcript])) if p.get(transcript) and q.get(transcript) else math.inf
        for transcript in {**p, **q}
    ]
    return max(ratios)


class _Path:
    """One run. given: choices to replay. taken: all choices made. alternatives: what else was possible at each."""

    def __init__(self, given: list[int], cut: float) -> None:
        self.given = given
        self.taken: list[int] = []
        self.alternatives: list[list[int]] = []
        self._cut = cut
        self._draws: list[tuple[float, int, int]] = []  # epsilon, lowest, highest value still possible
        self._weight = 1.0

    def branch(self, possible: Sequence[int]) -> int:
        """One of these choices: the one to replay, or the first."""
        assert possible, "no branch is possible"
        depth = len(self.taken)
        if depth < len(self.given):
            choice = self.given[depth]
            self.alternatives.append([])
        else:
            choice = possible[0]
            self.alternatives.append(list(possible[1:]))
        self.taken.append(choice)
        return choice

    def probability(self) -> float:
        return self._weight * math.prod(_between(*draw) for draw in self._draws)

    def discrete_laplace(self, epsilon: float) -> Noisy:
        self._draws.append((epsilon, -_END, _END))
        return Noisy(self, len(self._draws) - 1, 0)

    def bernoulli(self, probability: float) -> bool:
        choice = self.branch([c for c, weight in ((1, probability), (0, 1 - probability)) if weight > 0])
        self._weight *= probability if choice else 1 - probability
        return bool(choice)

    def choose(self, weights: Sequence[int]) -> int:
        choice = self.branch([position for position, weight in enumerate(weights) if weight])
        self._weight *= weights[choice] / sum(weights)
        return choice

    def at_least(self, draw: int, bound: int) -> bool:
        epsilon, low, high = self._draws[draw]
        if bound <= low or bound > high:
            return bound <= low
        if self.branch([1, 0]):
            self._draws[draw] = (epsilon, bound, high)
            return True
        self._draws[draw] = (epsilon, low, bound - 1)
        return False

    def value(self, draw: int) -> int:
        epsilon, low, high = self._draws[draw]
        if low == high:
            return low
        reach = math.ceil(-math.log(self._cut) / epsilon)
        first, last = max(low, -reach), min(high, reach)
        if first > last:  # the whole range is a tail
            return low if low > 0 else high
        value = self.branch([*range(first, last + 1)])
        self._draws[draw] = (epsilon, low if value == first else value, high if value == last else value)
        return value


@dataclasses.dataclass(frozen=True, eq=False)
class Noisy:
    """``draw + offset``: an integer that is not known further than the mechanism has asked."""

    path: Any
    draw: Any
    offset: int

    def __int__(self) -> int:
        return self.path.value(self.draw) + self.offset

    __index__ = __int__

    def __hash__(self) -> int:
        raise TypeError("a transcript must hold int(value), not the noise itself")

    def __add__(self, other: Any) -> Noisy:
        return Noisy(self.path, self.draw, self.offset + int(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Noisy:
        return Noisy(self.path, self.draw, self.offset - int(other))

    def __ge__(self, other: Any) -> bool:
        return self.path.at_least(self.draw, math.ceil(_number(other)) - self.offset)

    def __gt__(self, other: Any) -> bool:
        return self.path.at_least(self.draw, math.floor(_number(other)) + 1 - self.offset)

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def __eq__(self, other: object) -> bool:
        return int(self) == _number(other)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, Noisy) else value


@functools.lru_cache(1 << 16)  # most paths share most of their ranges
def _between(epsilon: float, low: int, high: int) -> float:
    """``Pr[low <= Z <= high]``, with all digits."""
    a = math.exp(-epsilon)
    if low > 0:
        rest = math.exp(-epsilon * (high - low + 1)) if high < _END else 0.0
        return math.exp(-epsilon * low) * (1 - rest) / (1 + a)
    if high < 0:
        return _between(epsilon, -high, -low)
    below = math.exp(-epsilon * (1 - low)) / (1 + a) if low > -_END else 0.0
    above = math.exp(-epsilon * (high + 1)) / (1 + a) if high < _END else 0.0
    return 1 - below - above
