"""A scenario: one mechanism on two neighbouring inputs, what it claims, and whether the claim is true.

Each topic has a module ``scenarios_<topic>.py`` with a list ``SCENARIOS``: the product's mechanisms, which must keep
their claims, and known-broken variants, which must be seen to break theirs. `test_scenarios.py` asserts all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable

from dp_transforms.papers.noise_source import NoiseSource
from tests.helpers.branching import exact_law, hockey_stick


@dataclasses.dataclass(frozen=True)
class Scenario:
    """run(noise, with_user): the transcript of a whole stream of queries, with or without the one user.

    The transcript must hold all that is published, and the stream may depend on what was published before. private:
    whether the claim (epsilon, delta) is true. source: what is run, and where the claim or the fault comes from.
    cut: see `exact_law`.
    """

    name: str
    source: str
    epsilon: float
    delta: float
    run: Callable[[NoiseSource, bool], Hashable]
    private: bool = True
    cut: float = 1e-14

    def attained_delta(self) -> float:
        """The smallest delta with which the claimed epsilon holds for this pair, in both directions; exact."""
        laws = [exact_law(lambda noise, world=world: self.run(noise, world), cut=self.cut) for world in (False, True)]
        return hockey_stick(*laws, self.epsilon)
