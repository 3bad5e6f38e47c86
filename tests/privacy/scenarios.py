"""A scenario: one mechanism on two neighbouring inputs, what it claims, and whether the claim is true.

Each topic has a module in tests/privacy with a table of them: the mechanisms of the papers, which must keep their
claims, and some with too little noise, which must be seen to break theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import pytest

from dp_transforms.papers.noise_source import NoiseSource
from tests.reference.exact_law import exact_law, hockey_stick

Run = Callable[[NoiseSource, bool], Hashable]

_ROUNDING = 1e-9  # of the float sums, relative to delta
_CUTS = 100  # tails of probability `cut` may be misplaced, once for a draw; no scenario has so many draws
_CLEARLY = 1.05, 1e-4  # a broken claim is missed by this factor, and by this much; laws are exact


class Scenario(NamedTuple):
    """run(noise, with_user): the transcript of a whole stream of queries, with or without the one user.

    The transcript must hold all that is published, and the stream may depend on what was published before. private:
    whether the claim (epsilon, delta) is true. cut: see `exact_law`.
    """

    name: str
    epsilon: float
    delta: float
    run: Run
    private: bool = True
    cut: float = 1e-14

    def check(self) -> None:
        laws = [exact_law(lambda noise, world=world: self.run(noise, world), cut=self.cut) for world in (False, True)]
        attained = hockey_stick(*laws, self.epsilon)
        assert _CUTS * self.cut <= _CLEARLY[1] / 10, "a fault could hide in what is cut off"
        if self.private:
            assert attained <= self.delta * (1 + _ROUNDING) + _CUTS * self.cut
        else:
            assert attained > max(_CLEARLY[0] * self.delta, self.delta + _CLEARLY[1])


def broken(name: str, epsilon: float, delta: float, run: Run, cut: float = 1e-14) -> Scenario:
    return Scenario(name, epsilon, delta, run, False, cut)


def each(scenarios: Sequence[Scenario]) -> Any:
    return pytest.mark.parametrize("scenario", scenarios, ids=lambda scenario: scenario.name)
