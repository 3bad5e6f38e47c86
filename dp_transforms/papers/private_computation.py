"""Private computations with targets: what target charging runs ([CL23] sections 2.1 and 2.6).

A computation is charged only when its result lies in its target, a set of results that is a *q-target* ([CL23]
Definition 2.1): for two neighbouring data sets, up to a part of the distribution that both share, the rest is
epsilon-DP and lies in the target with probability at least q. The larger q, the less a hit costs.

Classifiers pay only where they are unsure ([CL23] section 2.7, appendices E and F): `BoundaryWrapper` needs the
probabilities of all outcomes, which a `FiniteMechanism` has; `TwoRuns` needs only the computation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from dp_transforms.accounting.discrete_laplace_law import ROUNDING, not_prior_probability
from dp_transforms.checks import check_positive, is_number, shown
from dp_transforms.errors import InputError
from dp_transforms.papers.exponential_mechanism import ExponentialMechanism
from dp_transforms.papers.noise_source import NoiseSource
from dp_transforms.papers.query import Query, epsilon_per_unit, units_up

BOUNDARY = "boundary"


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


def check_probability(value: object) -> None:
    """Of a target. Raises InputError unless it is a number in (0, 1]."""
    if not is_number(value) or not 0 < value <= 1:  # type: ignore[operator]
        raise InputError("target_probability", f"must lie in (0, 1], got {shown(value)}.")


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


def _noisy(query: Query, epsilon: float, data: Any, noise: NoiseSource) -> int:
    """The answer with the noise of this epsilon, in units. Not published: only what is made of it."""
    return query.answer(data) + noise.discrete_laplace(epsilon_per_unit(epsilon, query.sensitivity))


@dataclasses.dataclass(frozen=True)
class NoisyAnswer:
    """The answer to a query with discrete Laplace noise, in units of ``1 / grid``.

    Guarantee: epsilon-DP. Condition: one user changes the answer by at most `query.sensitivity` units.

    >>> from dp_transforms.papers.noise_source import SecretNoise
    >>> from dp_transforms.papers.query import LinearQuery
    >>> 900 < NoisyAnswer(LinearQuery([1, 0]), epsilon=1.0).run([1000, 5], SecretNoise()) < 1100
    True
    """

    query: Query
    epsilon: float
    delta: float = dataclasses.field(default=0.0, init=False)

    def __post_init__(self) -> None:
        epsilon_per_unit(self.epsilon, self.query.sensitivity)

    def run(self, data: Any, noise: NoiseSource) -> int:
        return int(_noisy(self.query, self.epsilon, data, noise))


@dataclasses.dataclass(frozen=True)
class NoisyTest:
    """A private test: whether the answer with discrete Laplace noise reaches a threshold.

    Guarantee: epsilon-DP. "Yes" is a ``1/(e^epsilon + 1)``-target, and so is "no" (`NotPrior` of the other one; use
    both, each with a limit, where it is not known which will be rare). Condition: as for `NoisyAnswer`. Source:
    [CL23] section 2.1. threshold: a number, rounded up to a multiple of 1 / grid.

    >>> from dp_transforms.papers.noise_source import SecretNoise
    >>> from dp_transforms.papers.query import LinearQuery
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
        return bool(_noisy(self.query, self.epsilon, data, noise) >= units_up(self.threshold, self.query.grid))


@dataclasses.dataclass(frozen=True)
class NoisyZoneTest:
    """Whether the noisy answer lies ``below``, ``between`` or ``above`` two thresholds; only ``between`` is charged.

    Guarantee: epsilon-DP, and ``between`` is a q-target, ``q = (1 - e^(-W epsilon / sensitivity)) / (e^epsilon + 1)``
    for a zone of W units. Condition: as for `NoisyAnswer`. Source: [CL23] Lemma G.1; for whole units, and for a user
    who moves the answer by several of them, docs/guarantee.md, "Lemma (the zone)".

    threshold: the lower one, a number, rounded up. zone_width: a number > 0, rounded up to a multiple of 1 / grid.

    >>> from dp_transforms.papers.noise_source import SecretNoise
    >>> from dp_transforms.papers.query import LinearQuery
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
        noisy, low = _noisy(self.query, self.epsilon, data, noise), units_up(self.threshold, self.query.grid)
        if noisy < low:
            return "below"
        return "between" if noisy < low + units_up(self.zone_width, self.query.grid) else "above"


@dataclasses.dataclass(frozen=True)
class FiniteMechanism:
    """A private choice among finitely many outcomes whose probabilities are known: whole weights, drawn exactly.

    Guarantee: epsilon-DP. Condition: for neighbouring data the probability of each outcome, its share of the weights,
    changes by a factor of at most e^epsilon. For `exponential_choice` this holds up to a total variation below 2^-127 a
    call, since its weights are rounded.

    outcomes: declared, in this order. weights(data): one whole number >= 0 for each outcome. It must be pure and total:
    an exception that depends on the data publishes something (`TargetCharging` charges it).

    >>> from dp_transforms.papers.noise_source import SecretNoise
    >>> votes = FiniteMechanism(("yes", "no"), lambda yes: [yes + 10, 110 - yes], epsilon=0.1)
    >>> votes.run(50, SecretNoise()) in ("yes", "no")
    True
    """

    outcomes: tuple[Hashable, ...]
    weights: Callable[[Any], Sequence[int]]
    epsilon: float
    delta: float = dataclasses.field(default=0.0, init=False)

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        if not isinstance(self.outcomes, tuple) or not 1 <= len(set(self.outcomes)) == len(self.outcomes):
            raise ValueError(f"outcomes must be a tuple of one or more, all different, got {self.outcomes!r}.")
        if None in self.outcomes or BOUNDARY in self.outcomes:
            raise ValueError(f"None and {BOUNDARY!r} cannot be outcomes. Rename them.")

    def checked_weights(self, data: Any) -> list[int]:
        weights = list(self.weights(data))
        if len(weights) != len(self.outcomes):
            raise ValueError(f"there must be {len(self.outcomes)} weights, exactly one for each outcome.")
        return weights

    def run(self, data: Any, noise: NoiseSource) -> Hashable:
        return self.outcomes[noise.choose(self.checked_weights(data))]


def exponential_choice(
    outcomes: tuple[Hashable, ...],
    scores: Callable[[Any], Sequence[int]],
    epsilon: float,
    *,
    sensitivity_units: int = 1,
    monotonic: bool = False,
) -> FiniteMechanism:
    """The exponential mechanism over declared outcomes (`ExponentialMechanism`), with known probabilities.

    scores(data): one whole number for each outcome; one user changes each by at most `sensitivity_units`. Pure and
    total, like the weights of `FiniteMechanism`.
    """
    ExponentialMechanism([0], epsilon, sensitivity_units)  # checks the declared numbers

    def weights(data: Any) -> Sequence[int]:
        return ExponentialMechanism(scores(data), epsilon, sensitivity_units, monotonic=monotonic).weights

    return FiniteMechanism(outcomes, weights, epsilon)


@dataclasses.dataclass(frozen=True)
class BoundaryWrapper:
    """Instead of an outcome of the mechanism, now and then `BOUNDARY`, the more often the less sure it is; and only
    that is charged ([CL23] Algorithm 4).

    Guarantee: with e the epsilon of the mechanism, ``t = e + ln(3 / (2 + 1/exp(e)))``-DP, and the boundary is a
    q-target, ``q = (exp(t) - 1) / (exp(t) - 1 + (2 exp(t) + 1)(exp(e) - 1))``. Both are exact: no smaller t and no
    larger q hold for all mechanisms (docs/proofs.md, "The boundary with probabilities"). t <= 4 e / 3, as [CL23]
    Lemma 2.8 says, and q exceeds that of its Lemma 2.9 (2/7 for small e, here 4/13; in print it has e^(t-1) for e^t -
    1).

    With pi the probability of all outcomes but the likeliest one, `BOUNDARY` has probability
    ``min(1/3, pi / (1 + pi))``, and the rest is divided as the mechanism does. Drawn exactly, in one choice.

    >>> from dp_transforms.papers.noise_source import SecretNoise
    >>> votes = exponential_choice(("cat", "dog"), lambda counts: counts, epsilon=1.0)
    >>> wrapped = BoundaryWrapper(votes)
    >>> wrapped.run([900, 20], SecretNoise()), round(wrapped.epsilon, 3), round(wrapped.target.q, 3)
    ('cat', 1.237, 0.153)
    """

    mechanism: FiniteMechanism
    delta: float = dataclasses.field(default=0.0, init=False)

    @property
    def epsilon(self) -> float:
        return self._exact_epsilon * (1 + ROUNDING)

    @property
    def _exact_epsilon(self) -> float:
        """Up to a few units in the last place, also where epsilon is tiny: ``(2 + 1/exp(e)) / 3`` is near 1 then."""
        inner = self.mechanism.epsilon
        return inner - math.log1p(math.expm1(-inner) / 3)

    @property
    def target(self) -> OwnTarget:
        """The boundary."""
        # Both divided by exp(t + e), so that nothing overflows.
        inner, outer = math.exp(-self.mechanism.epsilon), math.exp(-self._exact_epsilon)
        leaving = -math.expm1(-self._exact_epsilon) * inner
        q = leaving / (leaving + (2 + outer) * -math.expm1(-self.mechanism.epsilon))
        return OwnTarget(self, BOUNDARY, q * (1 - ROUNDING))

    def run(self, data: Any, noise: NoiseSource) -> Hashable:
        weights = self.mechanism.checked_weights(data)
        total = sum(weights)
        # With S the sum and M the largest weight, pi/(1 + pi) = (S-M)/(S + (S-M)) and 1/3 = (S/2)/(S + S/2).
        boundary = min(2 * (total - max(weights)), total)
        chosen = noise.choose([boundary, *(2 * weight for weight in weights)])
        return self.mechanism.outcomes[chosen - 1] if chosen else BOUNDARY


@dataclasses.dataclass(frozen=True)
class TwoRuns:
    """Runs a computation twice, publishes both results, and is charged when they differ ([CL23] appendix F).

    Guarantee: (2 epsilon, 2 delta)-DP, and "the results differ" is a ``1/(e^(2 epsilon) + 1)``-target. [CL23] Lemma
    F.1 proves ``1 - sqrt(e^(2 epsilon) / (1 + e^(2 epsilon)))`` only, 0.258 at epsilon 0.1 where this is 0.450; proof
    in docs/proofs.md, "The boundary without probabilities". No probabilities are needed. Condition: as for the
    computation itself.

    >>> from dp_transforms.papers.noise_source import SecretNoise
    >>> votes = exponential_choice(("cat", "dog"), lambda counts: counts, epsilon=1.0)
    >>> twice = TwoRuns(votes)
    >>> results = twice.run([900, 20], SecretNoise())
    >>> results, twice.target.hit(results)
    (('cat', 'cat'), False)
    """

    computation: PrivateComputation

    @property
    def epsilon(self) -> float:
        return 2 * self.computation.epsilon

    @property
    def delta(self) -> float:
        return 2 * self.computation.delta

    @property
    def target(self) -> Target:
        """Different results."""
        return _Differ(self, "different results", not_prior_probability(self.epsilon))

    def run(self, data: Any, noise: NoiseSource) -> tuple[Any, Any]:
        return self.computation.run(data, noise), self.computation.run(data, noise)


class _Differ(OwnTarget):
    """The two results that are not equal."""

    def hit(self, results: tuple[Any, Any]) -> bool:
        return not bool(results[0] == results[1])

    def published(self, results: tuple[Any, Any]) -> tuple[Any, Any]:
        return results if self.hit(results) else (results[0], results[0])
