"""Private computations with targets: what target charging runs ([CL23] sections 2.1 and 2.6).

A computation is charged only when its result lies in its target, a set of results that is a *q-target* ([CL23]
Definition 2.1): for two neighbouring data sets, up to a part of the distribution that both share, the rest is
epsilon-DP and lies in the target with probability at least q. The larger q, the less a hit costs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable
from typing import Any, Protocol

from dp_transforms.mechanisms.between_thresholds import BetweenThresholds
from dp_transforms.mechanisms.discrete_laplace_law import ROUNDING, not_prior_probability
from dp_transforms.mechanisms.papers.noise_source import NoiseSource
from dp_transforms.mechanisms.papers.query import Query, epsilon_per_unit, units_up


class PrivateComputation(Protocol):
    """An (epsilon, delta)-DP function of the data. What `run` returns may be published; it is never None.

    `run` must be pure and total: no state but its arguments, and no exception that depends on the data. Target charging
    charges an exception as the most that the call could have cost.
    """

    @property
    def epsilon(self) -> float: ...

    @property
    def delta(self) -> float: ...

    def run(self, data: Any, noise: NoiseSource) -> Any: ...


class Target(Protocol):
    """A set of results of a computation, fixed before it is run."""

    def hit(self, result: Any) -> bool: ...

    def published(self, result: Any) -> Any:
        """What is published: the result, or one and the same object for all results that are equal for the target.

        Equal results may look different (1 and 1.0), and only what they have in common is free of charge.
        """
        ...

    def probability(self, computation: PrivateComputation) -> float:
        """A q for which this set is a q-target of the computation, with its epsilon and delta."""
        ...


@dataclasses.dataclass(frozen=True)
class NotPrior:
    """All results but one, the prior: a ``1/(e^epsilon + 1)``-target of every computation ([CL23] Lemma C.1).

    Pay only for change: for each call, choose as prior the result that is expected, such as the answer on older data.

    >>> NotPrior(prior=7).hit(7), NotPrior(prior=7).hit(8)
    (False, True)
    """

    prior: Hashable

    def hit(self, result: Any) -> bool:
        return not bool(result == self.prior)

    def published(self, result: Any) -> Any:
        return result if self.hit(result) else self.prior

    def probability(self, computation: PrivateComputation) -> float:
        return not_prior_probability(computation.epsilon)


@dataclasses.dataclass(frozen=True)
class OwnTarget:
    """The target of one computation: the results equal to `outcome`, a `q`-target of this computation and no other."""

    computation: PrivateComputation
    outcome: Hashable
    q: float

    def hit(self, result: Any) -> bool:
        return bool(result == self.outcome)

    def published(self, result: Any) -> Any:
        return self.outcome if self.hit(result) else result

    def probability(self, computation: PrivateComputation) -> float:
        if computation != self.computation:
            raise ValueError(f"{self.outcome!r} is the target of another computation. Use the target of this one.")
        return self.q


@dataclasses.dataclass(frozen=True)
class NoisyAnswer:
    """The answer to a query with discrete Laplace noise, in units of ``1 / grid``.

    Guarantee: epsilon-DP. Condition: one user changes the answer by at most `query.sensitivity` units.

    >>> from dp_transforms.mechanisms.papers.noise_source import SecretNoise
    >>> from dp_transforms.mechanisms.papers.query import LinearQuery
    >>> 900 < NoisyAnswer(LinearQuery([1, 0]), epsilon=1.0).run([1000, 5], SecretNoise()) < 1100
    True
    """

    query: Query
    epsilon: float
    delta: float = dataclasses.field(default=0.0, init=False)

    def __post_init__(self) -> None:
        epsilon_per_unit(self.epsilon, self.query.sensitivity)

    def run(self, data: Any, noise: NoiseSource) -> int:
        return int(
            self.query.answer(data) + noise.discrete_laplace(epsilon_per_unit(self.epsilon, self.query.sensitivity))
        )


@dataclasses.dataclass(frozen=True)
class NoisyTest:
    """A private test: whether the answer with discrete Laplace noise reaches a threshold.

    Guarantee: epsilon-DP. "Yes" is a ``1/(e^epsilon + 1)``-target, and so is "no" (`NotPrior` of the other one; use
    both with `MultiTargetCharging` where it is not known which will be rare). Condition: as for `NoisyAnswer`. Source:
    [CL23] section 2.1. threshold: a number, rounded up to a multiple of 1 / grid.

    >>> from dp_transforms.mechanisms.papers.noise_source import SecretNoise
    >>> from dp_transforms.mechanisms.papers.query import LinearQuery
    >>> NoisyTest(LinearQuery([1, 0]), threshold=500, epsilon=1.0).run([1000, 5], SecretNoise())
    True
    """

    query: Query
    threshold: float
    epsilon: float
    delta: float = dataclasses.field(default=0.0, init=False)

    def __post_init__(self) -> None:
        units_up(self.threshold, self.query.grid)
        epsilon_per_unit(self.epsilon, self.query.sensitivity)

    @property
    def target(self) -> Target:
        """The answer "yes"."""
        return NotPrior(False)

    def run(self, data: Any, noise: NoiseSource) -> bool:
        noisy = self.query.answer(data) + noise.discrete_laplace(epsilon_per_unit(self.epsilon, self.query.sensitivity))
        return bool(noisy >= units_up(self.threshold, self.query.grid))


@dataclasses.dataclass(frozen=True)
class NoisyZoneTest:
    """Whether the noisy answer lies ``below``, ``between`` or ``above`` two thresholds; only ``between`` is charged.

    Guarantee: epsilon-DP, and ``between`` is a q-target, ``q = (1 - e^(-W epsilon / sensitivity)) / (e^epsilon + 1)``
    for a zone of W units. Condition: as for `NoisyAnswer`. Source: [CL23] Lemma G.1; for whole units, and for a user
    who moves the answer by several of them, docs/mixed_charging.md section 5.

    threshold: the lower one, a number, rounded up. zone_width: a number > 0, rounded up to a multiple of 1 / grid.

    >>> from dp_transforms.mechanisms.papers.noise_source import SecretNoise
    >>> from dp_transforms.mechanisms.papers.query import LinearQuery
    >>> NoisyZoneTest(LinearQuery([1, 0]), 500, zone_width=4, epsilon=1.0).run([1000, 5], SecretNoise())
    'above'
    """

    query: Query
    threshold: float
    zone_width: float
    epsilon: float
    delta: float = dataclasses.field(default=0.0, init=False)

    def __post_init__(self) -> None:
        units_up(self.threshold, self.query.grid)
        if not units_up(self.zone_width, self.query.grid) >= 1:
            raise ValueError(f"zone_width must be > 0, got {self.zone_width!r}.")
        epsilon_per_unit(self.epsilon, self.query.sensitivity)

    @property
    def target(self) -> Target:
        """The answer "between"."""
        units = units_up(self.zone_width, self.query.grid)
        share = -math.expm1(-units * epsilon_per_unit(self.epsilon, self.query.sensitivity))
        return OwnTarget(self, "between", share * not_prior_probability(self.epsilon) * (1 - ROUNDING))

    def run(self, data: Any, noise: NoiseSource) -> str:
        grid = self.query.grid
        rule = BetweenThresholds(units_up(self.threshold, grid), units_up(self.zone_width, grid))
        release = rule(
            self.query.answer(data) + noise.discrete_laplace(epsilon_per_unit(self.epsilon, self.query.sensitivity))
        )
        return "below" if release is None or release.zone is None else release.zone
