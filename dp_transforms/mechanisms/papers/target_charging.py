"""Target charging: many private computations; only those whose result hits its target are paid for.

The budget is a `ChargeLimit`: a plain count of hits (`HitLimit`), or anything else with these two methods, such as
`MixedChargingFilter` of `dp_transforms.accounting.mixed_charging`. The guarantee is that of `TargetCharging`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from dp_transforms.checks import check_positive, check_whole, is_number
from dp_transforms.mechanisms.discrete_laplace_law import not_prior_probability
from dp_transforms.mechanisms.papers.halting import Halted
from dp_transforms.mechanisms.papers.noise_source import NoiseSource, SecretNoise
from dp_transforms.mechanisms.papers.private_computation import PrivateComputation, Target

_Result = TypeVar("_Result")


class ChargeLimit(Protocol):
    """What may be spent on hits. It never sees the data: only the declared numbers of calls, and their hits."""

    def admits(self, epsilon: float, target_probability: float, hits: int = 1) -> bool:
        """Whether a call with these numbers, which could lead to this many hits, may be made.

        ValueError: this limit cannot account for such a call at all.
        """
        ...

    def charge(self, epsilon: float, target_probability: float, hits: int = 1) -> None:
        """Counts the hits of a call that was admitted."""
        ...


class HitLimit:
    """At most `hits` hits of calls that are epsilon-DP with a q-target, or better: a smaller epsilon, a larger q.

    epsilon, target_probability: the worst of all calls; None is q of `NotPrior`. used: hits charged so far.

    >>> limit = HitLimit(2, epsilon=0.1, target_probability=0.4)
    >>> limit.charge(0.1, 0.45)
    >>> limit.admits(0.1, 0.45), limit.admits(0.1, 0.45, hits=2)
    (True, False)
    """

    def __init__(self, hits: int, *, epsilon: float, target_probability: float | None = None) -> None:
        hits = check_whole("hits", hits, 1)
        check_positive("epsilon", epsilon)
        if target_probability is None:
            target_probability = not_prior_probability(epsilon)
        _check_probability(target_probability)
        self.hits = hits
        self.epsilon = epsilon
        self.target_probability = target_probability
        self.used = 0

    def admits(self, epsilon: float, target_probability: float, hits: int = 1) -> bool:
        check_positive("epsilon", epsilon)
        _check_probability(target_probability)
        check_whole("hits", hits, 1)
        if epsilon > self.epsilon:
            raise ValueError(
                f"the epsilon of a call must be at most {self.epsilon!r}, that of the limit, got {epsilon!r}."
            )
        if target_probability < self.target_probability:
            raise ValueError(
                f"the q of a target must be at least {self.target_probability!r}, that of the limit, got "
                f"{target_probability!r}. Build the limit for the smallest q of all calls."
            )
        return self.used + hits <= self.hits

    def charge(self, epsilon: float, target_probability: float, hits: int = 1) -> None:
        self.used += check_whole("hits", hits, 0)


@dataclasses.dataclass(frozen=True)
class Price:
    """What a call may cost: its epsilon, delta and q, and the most hits that it can lead to."""

    epsilon: float
    target_probability: float
    delta: float = 0.0
    most_hits: int = 1

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        _check_probability(self.target_probability)
        if not is_number(self.delta) or not 0 <= self.delta < 1:
            raise ValueError(f"the delta of a call must lie in [0, 1), got {self.delta!r}.")
        check_whole("most_hits", self.most_hits, 1)


class _Charging:
    """Data, noise, and the sum of the deltas."""

    def __init__(self, data: Any, delta_limit: float, noise: NoiseSource | None) -> None:
        if not is_number(delta_limit) or not 0 <= delta_limit < 1:
            raise ValueError(f"delta_limit must lie in [0, 1), got {delta_limit!r}. 0 allows pure computations only.")
        self._data = data
        self._noise = SecretNoise() if noise is None else noise
        self._delta = Fraction(0)  # exact: any number of calls may add to it
        self._delta_limit = delta_limit
        self._lock = threading.RLock()
        self._running = False

    @property
    def delta_spent(self) -> float:
        """The sum of the deltas of the calls so far. Published, like their number."""
        return float(self._delta)

    def _pay_delta(self, delta: float) -> None:
        total = self._delta + Fraction(delta)
        if total > Fraction(self._delta_limit):
            raise Halted(f"the deltas of all calls would exceed delta_limit = {self._delta_limit!r}.")
        self._delta = total

    @contextlib.contextmanager
    def _one_call(self) -> Iterator[None]:
        """From asking the limit until the call is charged: no other call may come in between and be admitted too."""
        with self._lock:
            if self._running:
                raise RuntimeError("a computation cannot call the charging that runs it.")
            self._running = True
            try:
                yield
            finally:
                self._running = False


class TargetCharging(_Charging):
    """Runs private computations, chosen one by one, publishes each result, and pays for those that hit their target.

    Guarantee: with ``HitLimit(tau, epsilon, q)`` everything published is (e, d + delta_spent)-DP, for each (e, d) of
    the game accountant for tau hits at epsilon and q (``accounting.charging_game.GameAccountant``), however many calls
    there are; another limit has a guarantee of its own. Condition: each computation is (epsilon, delta)-DP as it
    declares, for the one unit of privacy that all share, and it, its target and its prior are chosen from published
    results alone. Source: [CL23] Algorithms 1 and 6, Theorem B.4; docs/guarantee.md section 3.

    Computations, targets, and all functions given to them (queries, scores, predicates) must be pure and total: no
    state, and no exception that depends on the data. An exception after the data were touched shows something about
    them, so it is charged as all the hits that the call could have led to, and then raised.

    Several threads may ask; their calls are made one after the other. A limit that is shared by several objects needs
    a lock of yours around all their calls.

    A call that could exceed the limits is not made: `Halted` is raised before the data are touched, and nothing is
    charged. With a `HitLimit` that is final; with delta left for it, or under another limit, a cheaper call may still
    be admitted. Refusing looks at declared numbers and published hits alone, so it costs nothing.

    delta_limit: for the sum of the deltas of all calls, [CL23]'s tau_delta. The sum is exact, of the floats given: for
    a hundred calls leave the limit a little above a hundred times the float.

    >>> from dp_transforms.mechanisms.papers.private_computation import NoisyTest
    >>> from dp_transforms.mechanisms.papers.query import LinearQuery
    >>> charging = TargetCharging([900, 3, 4], HitLimit(1, epsilon=0.5))
    >>> tests = [NoisyTest(LinearQuery(weights), 400, epsilon=0.5) for weights in ([0, 1, 0], [0, 0, 1], [1, 0, 0])]
    >>> [charging.ask(test, test.target) for test in tests]  # the first two cost nothing
    [False, False, True]
    """

    def __init__(
        self, data: Any, limit: ChargeLimit, *, delta_limit: float = 0.0, noise: NoiseSource | None = None
    ) -> None:
        super().__init__(data, delta_limit, noise)
        self._limit = limit

    def ask(self, computation: PrivateComputation, target: Target) -> Any:
        """The result, to be published. Raises Halted if one more hit, or its delta, could exceed a limit."""
        price = Price(computation.epsilon, target.probability(computation), computation.delta)
        return self.perform(price, lambda data, noise: target.published(computation.run(data, noise)), target.hit)

    def perform(
        self, price: Price, run: Callable[[Any, NoiseSource], _Result], hits: Callable[[_Result], int]
    ) -> _Result:
        """One call at a price, for mechanisms on top of this one, such as `ConditionalRelease`.

        run(data, noise): what is published; it must be worth its price. hits(result): how many hits it was, at most
        `price.most_hits`. If one of them raises, or there are more hits than that, all of them are charged.
        """
        with self._one_call():
            if not self._limit.admits(price.epsilon, price.target_probability, price.most_hits):
                raise Halted(f"this call could lead to {price.most_hits} more hits: more than the limit allows.")
            self._pay_delta(price.delta)
            charged = price.most_hits  # unless it is known that there were fewer
            try:
                result = run(self._data, self._noise)
                counted = int(hits(result))
                if not 0 <= counted <= price.most_hits:
                    raise ValueError(f"the hits of this call must lie in 0 .. {price.most_hits}, as its price says.")
                charged = counted
            finally:
                self._limit.charge(price.epsilon, price.target_probability, charged)
            return result


class MultiTargetCharging(_Charging):
    """Target charging with several targets a call, each with a limit of its own: the one that is hit least counts.

    Guarantee: with s limits that each give (e, d) to `TargetCharging`, everything published is
    (e, s d + delta_spent)-DP. Conditions: as there; the i-th target of a call is a q-target for the i-th limit. An
    exception after the data were touched is charged as a hit to every limit that admitted the call.
    Source: [CL23] Algorithm 8, Lemma 2.7. A transcript that ends under limit i is as likely here as with limit i
    alone, and the transcripts are divided among the limits; failures of approximate calls are counted once.

    A call goes on while some limit has admitted all calls so far, this one included; with `HitLimit`, until the
    last counter is full. Then `Halted` is raised.

    >>> from dp_transforms.mechanisms.papers.private_computation import NotPrior, NoisyTest
    >>> from dp_transforms.mechanisms.papers.query import LinearQuery
    >>> limits = [HitLimit(1, epsilon=1.0), HitLimit(1, epsilon=1.0)]  # for "yes" and for "no"
    >>> charging = MultiTargetCharging([900], limits)
    >>> test = NoisyTest(LinearQuery([1]), threshold=400, epsilon=1.0)
    >>> [charging.ask(test, [NotPrior(False), NotPrior(True)]) for _ in range(4)]  # only "yes": "no" pays nothing
    [True, True, True, True]
    """

    def __init__(
        self, data: Any, limits: Sequence[ChargeLimit], *, delta_limit: float = 0.0, noise: NoiseSource | None = None
    ) -> None:
        super().__init__(data, delta_limit, noise)
        if not limits or len({id(limit) for limit in limits}) < len(limits):
            raise ValueError("limits must be one or more objects, a different one for each target.")
        self._limits: list[ChargeLimit | None] = list(limits)

    def ask(self, computation: PrivateComputation, targets: Sequence[Target]) -> Any:
        """The result, to be published. targets: one for each limit, in their order."""
        if len(targets) != len(self._limits):
            raise ValueError(f"there must be {len(self._limits)} targets, one for each limit, got {len(targets)}.")
        prices = [Price(computation.epsilon, target.probability(computation), computation.delta) for target in targets]
        with self._one_call():
            # A limit that does not admit this call, which another limit admits, proves nothing about what follows.
            admitting = [
                limit if limit is not None and limit.admits(price.epsilon, price.target_probability) else None
                for limit, price in zip(self._limits, prices, strict=True)
            ]
            if not any(limit is not None for limit in admitting):
                raise Halted("no limit allows another call.")
            self._pay_delta(computation.delta)
            self._limits = admitting
            hits = [True] * len(targets)  # unless it is known which were hit
            try:
                result = computation.run(self._data, self._noise)
                found = []
                for target in targets:
                    result = target.published(result)
                    found.append(target.hit(result))
                hits = found
            finally:
                for limit, price, hit in zip(admitting, prices, hits, strict=True):
                    if limit is not None and hit:
                        limit.charge(price.epsilon, price.target_probability)
            return result


def _check_probability(target_probability: float) -> None:
    if not is_number(target_probability) or not 0 < target_probability <= 1:
        raise ValueError(f"target_probability must lie in (0, 1], got {target_probability!r}.")
