"""Target charging: many private computations; only those whose result hits its target are paid for.

The budget is a `ChargeLimit`: a plain count of hits (`HitLimit`), or anything else with these two methods, such as
`MixedChargingFilter` of `dp_transforms.papers.mixed_charging`. On `TargetCharging` rest conditional release with
revisions, and selection ([CL23] sections 2.4 and I).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, TypeVar

from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.checks import check_positive, check_whole, is_whole
from dp_transforms.papers.noise_source import Halted, NoiseSource, SecretNoise, check_small_delta
from dp_transforms.papers.private_computation import PrivateComputation, Target, check_probability

_Result = TypeVar("_Result")


class ChargeLimit(Protocol):
    """What may be spent on hits. It never sees the data: only the declared numbers of calls, and their hits."""

    def admits(self, epsilon: float, target_probability: float, hits: int = 1) -> bool:
        """Whether a call with these numbers, which could lead to this many hits, may be made.

        ValueError: this limit cannot account for such a call at all.
        """
        ...

    def charge(self, epsilon: float, target_probability: float, hits: int = 1) -> None:
        """Counts the hits of a call that was admitted, 0 too."""
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
        self.hits, self.used = check_whole("hits", hits, 1), 0
        self.epsilon = check_positive("epsilon", epsilon)
        self.target_probability = not_prior_probability(epsilon) if target_probability is None else target_probability
        check_probability(self.target_probability)

    def admits(self, epsilon: float, target_probability: float, hits: int = 1) -> bool:
        if not epsilon <= self.epsilon:
            raise ValueError(
                f"the epsilon of a call must be at most {self.epsilon!r}, that of the limit, got {epsilon!r}."
            )
        if not target_probability >= self.target_probability:
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
        check_probability(self.target_probability)
        check_small_delta("delta", self.delta)
        check_whole("most_hits", self.most_hits, 1)


class TargetCharging:
    """Runs private computations, chosen one by one, publishes each result, and pays for those that hit their target.

    Guarantee: with ``HitLimit(tau, epsilon, q)`` everything published is (e, d + delta_spent)-DP, for each (e, d) of
    the game accountant for tau hits at epsilon and q (``accounting.charging_game.GameAccountant``), however many calls
    there are; another limit has a guarantee of its own. With s limits, each for a target of its own, it is
    (e, s d + delta_spent)-DP, and the target that is hit least counts: a call goes on while some limit has admitted all
    calls so far. Condition: each computation is (epsilon, delta)-DP as it declares, for the one unit of privacy that
    all share, the i-th target is a q-target for the i-th limit, and all of it is chosen from published results alone.
    Source: [CL23] Algorithms 1, 6 and 8, Theorem B.4, Lemma 2.7; docs/guarantee.md, "The game"; docs/proofs.md,
    "The charging rule".

    Computations, targets, and all functions given to them (queries, scores, predicates) must be pure and total: no
    state, and no exception that depends on the data. An exception after the data were touched shows something about
    them, so it is charged as all the hits that the call could have led to, to each limit that admitted it.

    Several threads may ask; their calls are made one after the other. A limit that is shared by several objects needs
    a lock of yours around all their calls.

    A call that could exceed the limits is not made: `Halted` is raised before the data are touched, and nothing is
    charged. Refusing looks at declared numbers and published hits alone, so it costs nothing; a cheaper call may still
    be admitted.

    delta_limit: for the sum of the deltas of all calls, [CL23]'s tau_delta. The sum is exact, of the floats given: for
    a hundred calls leave the limit a little above a hundred times the float.

    >>> from dp_transforms.papers.private_computation import NotPrior, NoisyTest
    >>> from dp_transforms.papers.query import LinearQuery
    >>> charging = TargetCharging([900, 3, 4], HitLimit(1, epsilon=0.5))
    >>> tests = [NoisyTest(LinearQuery(weights), 400, epsilon=0.5) for weights in ([0, 1, 0], [0, 0, 1], [1, 0, 0])]
    >>> [charging.ask(test, test.target) for test in tests]  # the first two cost nothing
    [False, False, True]
    >>> both = TargetCharging([900, 3, 4], HitLimit(1, epsilon=1.0), HitLimit(1, epsilon=1.0))  # for "yes" and for "no"
    >>> [both.ask(tests[2], NotPrior(False), NotPrior(True)) for _ in range(4)]  # only "yes": "no" pays nothing
    [True, True, True, True]
    """

    def __init__(
        self, data: Any, *limits: ChargeLimit, delta_limit: float = 0.0, noise: NoiseSource | None = None
    ) -> None:
        if not limits or len({id(limit) for limit in limits}) < len(limits):
            raise ValueError("limits must be one or more objects, a different one for each target.")
        check_small_delta("delta_limit", delta_limit)
        self._data = data
        self._limits: list[ChargeLimit | None] = list(limits)
        self._noise = SecretNoise() if noise is None else noise
        self._delta = Fraction(0)  # exact: any number of calls may add to it
        self._delta_limit = delta_limit
        self._lock = threading.RLock()
        self._running = False

    @property
    def delta_spent(self) -> float:
        """The sum of the deltas of the calls so far. Published, like their number."""
        return float(self._delta)

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

    def _perform(
        self,
        prices: Sequence[Price],
        run: Callable[[Any, NoiseSource], _Result],
        hits: Callable[[_Result], Sequence[int]],
    ) -> _Result:
        """One call. prices and hits: one for each limit; the delta is the same in all prices, and paid once."""
        with self._one_call():
            # A limit that does not admit this call, which another limit admits, proves nothing about what follows.
            admitting = [
                limit
                if limit is not None and limit.admits(price.epsilon, price.target_probability, price.most_hits)
                else None
                for limit, price in zip(self._limits, prices, strict=True)
            ]
            if not any(limit is not None for limit in admitting):
                raise Halted("no limit allows this call: one more hit, or all that it could lead to, could exceed it.")
            delta = self._delta + Fraction(prices[0].delta)
            if delta > Fraction(self._delta_limit):
                raise Halted(f"the deltas of all calls would exceed delta_limit = {self._delta_limit!r}.")
            self._limits, self._delta = admitting, delta
            charged = [price.most_hits for price in prices]  # unless it is known that there were fewer
            try:
                result = run(self._data, self._noise)
                counted = [int(count) for count in hits(result)]
                for count, price in zip(counted, prices, strict=True):
                    if not 0 <= count <= price.most_hits:
                        raise ValueError(f"hits must lie in 0 .. {price.most_hits}, as the price of this call says.")
                charged = counted
            finally:
                for limit, price, count in zip(admitting, prices, charged, strict=True):
                    if limit is not None:
                        limit.charge(price.epsilon, price.target_probability, count)
            return result

    def ask(self, computation: PrivateComputation, *targets: Target) -> Any:
        """The result, to be published. targets: one for each limit, in their order. Raises Halted if one more hit, or
        its delta, could exceed all limits."""
        if len(targets) != len(self._limits):
            raise ValueError(f"there must be {len(self._limits)} targets, one for each limit, got {len(targets)}.")
        prices = [Price(computation.epsilon, target.probability(computation), computation.delta) for target in targets]

        def run(data: Any, noise: NoiseSource) -> Any:
            result = computation.run(data, noise)
            for target in targets:
                result = target.published(result)
            return result

        return self._perform(prices, run, lambda result: [target.hit(result) for target in targets])

    def perform(
        self, price: Price, run: Callable[[Any, NoiseSource], _Result], hits: Callable[[_Result], int]
    ) -> _Result:
        """One call at a price, the same for each limit, for mechanisms on top of this one (`ConditionalRelease`).

        run(data, noise): what is published; it must be worth its price. hits(result): how many hits it was, at most
        `price.most_hits`. If one of them raises, or there are more hits than that, all of them are charged.
        """
        each = len(self._limits)
        return self._perform([price] * each, run, lambda result: [hits(result)] * each)


class ConditionalRelease:
    """Publishes the result of a computation if it lies in a target, which may be widened later ([CL23] Algorithm 2).

    Guarantee: that of the `TargetCharging` that it is given. Being published is one hit of an epsilon-DP call with a
    `NotPrior` target, whenever it happens; not being published costs nothing; the computation's delta is paid once.
    [CL23] Lemma 2.5 charges a hit of a later ask at 2 epsilon. That is not needed: each draw with all of its asks, in
    any order among other calls, is one epsilon-DP call (docs/proofs.md, "Theorem of kept results").

    Condition: published results alone decide what a target contains. The draw is made at the first ask, and kept: never
    draw again to widen a target. A target must be a pure and total function: where it raises may show the result, so an
    exception from it, or from the computation, is charged as a hit and ends it, as publishing does.

    >>> from dp_transforms.papers.private_computation import NoisyAnswer
    >>> from dp_transforms.papers.query import LinearQuery
    >>> charging = TargetCharging([500], HitLimit(3, epsilon=1.0))
    >>> held = ConditionalRelease(charging, NoisyAnswer(LinearQuery([1]), epsilon=1.0))
    >>> held.ask(lambda count: count >= 700), 400 < held.ask(lambda count: count >= 300) < 600
    (None, True)
    """

    def __init__(self, charging: TargetCharging, computation: PrivateComputation) -> None:
        self._charging = charging
        self._computation = computation
        self._asked = False
        self._result: Any = None
        self._published = False
        self._lock = threading.RLock()

    def ask(self, target: Callable[[Any], bool]) -> Any:
        """The result if it lies in the target, else None. From the second time on this is a revise call.

        target: which results to publish now, beside those of earlier targets. A result of an earlier target would
        have been published then, so it makes no difference whether they overlap. Raises Halted once the result has
        been published or an exception charged (nothing more will be), or if one more hit could exceed the limits.
        """
        with self._lock:
            if self._published:
                raise Halted("the result has been published, or an exception charged: nothing more will be published.")
            epsilon = self._computation.epsilon
            price = Price(epsilon, not_prior_probability(epsilon), 0.0 if self._asked else self._computation.delta)
            return self._charging.perform(price, lambda *given: self._run(target, *given), lambda r: r is not None)

    def _run(self, target: Callable[[Any], bool], data: Any, noise: NoiseSource) -> Any:
        self._published = True  # until it is known that nothing was: an exception may show as much as the result
        if not self._asked:
            self._result = self._computation.run(data, noise)
            self._asked = True
        result = self._result if target(self._result) else None
        self._published = result is not None
        return result


class Selected(NamedTuple):
    """position: of the candidate, from 0. result: what its computation returned."""

    position: int
    result: Any


@dataclasses.dataclass(frozen=True)
class OneShotTopK:
    """The k results with the highest scores, best first, scores included ([CL23] Algorithm 3).

    Guarantee: that of the `TargetCharging` that it is given. Each result published is one hit of an epsilon-DP call
    with a `NotPrior` target, epsilon being the largest of the candidates'; the others cost nothing, however many. The
    deltas of all candidates are paid. ([CL23] Lemma 2.6 needs k hits at 2 epsilon; see `ConditionalRelease`.)

    Condition: the order of the candidates does not depend on the data. Proof: docs/proofs.md, "Results that are
    kept, and published later".

    gap: None, or publish fewer where the scores fall off: the sweep ends as soon as the threshold is more than `gap`
    below the score published last. Only what was published, and that there is nothing within `gap` of the last score,
    becomes known; a rule that looks at the score after the gap, or at the largest gap of all, is not covered.

    score: from a result to its score, a whole number; by default the result itself. It must be pure and total: an
    exception from it, or from a candidate, is charged as all k hits.

    >>> from dp_transforms.papers.private_computation import NoisyAnswer
    >>> from dp_transforms.papers.query import LinearQuery
    >>> charging = TargetCharging([9000, 10, 8500, 400], HitLimit(3, epsilon=1.0))
    >>> candidates = [NoisyAnswer(LinearQuery([i == j for j in range(4)]), epsilon=1.0) for i in range(4)]
    >>> [best.position for best in OneShotTopK(charging, k=3, gap=1000).ask(candidates)]
    [0, 2]
    """

    charging: TargetCharging
    k: int
    gap: int | None = None
    score: Callable[[Any], int] = operator.index

    def __post_init__(self) -> None:
        check_whole("k", self.k, 1)
        if self.gap is not None:
            check_whole("gap", self.gap, 0)

    def ask(self, candidates: Sequence[PrivateComputation]) -> list[Selected]:
        """At most k of the candidates' results. Raises Halted unless the limits allow k more hits and all deltas."""
        if not candidates:
            raise ValueError("there must be at least one candidate.")
        epsilon = max(candidate.epsilon for candidate in candidates)
        price = Price(
            epsilon,
            not_prior_probability(epsilon),
            math.fsum(candidate.delta for candidate in candidates),
            most_hits=min(self.k, len(candidates)),
        )
        return self.charging.perform(price, lambda data, noise: self._sweep(candidates, data, noise), len)

    def _sweep(self, candidates: Sequence[PrivateComputation], data: Any, noise: NoiseSource) -> list[Selected]:
        results = [candidate.run(data, noise) for candidate in candidates]
        scores = [self.score(result) for result in results]
        if not all(map(is_whole, scores)):  # the message names no score: it would be published for the price of a hit
            raise ValueError("every score must be a whole number: the sweep goes through the whole numbers.")
        best_first = sorted(range(len(results)), key=lambda position: (-scores[position], position))[: self.k]
        published = best_first[:1]
        for position in best_first[1:]:
            if self.gap is not None and scores[position] < scores[published[-1]] - self.gap:
                break
            published.append(position)
        return [Selected(position, results[position]) for position in published]
