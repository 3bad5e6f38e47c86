"""Conditional release with revisions: one private draw that is kept, and published once its condition holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dp_transforms.mechanisms.discrete_laplace_law import not_prior_probability
from dp_transforms.mechanisms.papers.halting import Halted
from dp_transforms.mechanisms.papers.noise_source import NoiseSource
from dp_transforms.mechanisms.papers.private_computation import PrivateComputation
from dp_transforms.mechanisms.papers.target_charging import Price, TargetCharging


class ConditionalRelease:
    """Publishes the result of a computation if it lies in a target, which may be widened later ([CL23] Algorithm 2).

    Guarantee: that of the `TargetCharging` that it is given. Being published is one hit of an epsilon-DP call with a
    `NotPrior` target, whenever it happens; not being published costs nothing; the computation's delta is paid once.
    [CL23] Lemma 2.5 charges a hit of a later ask at 2 epsilon. That is not needed: each draw with all of its asks, in
    any order among other calls, is one epsilon-DP call (docs/mixed_charging.md section 3).

    Condition: published results alone decide what a target contains. The draw is made at the first ask, and kept: never
    draw again to widen a target. A target must be a pure and total function: where it raises may show the result, so an
    exception from it, or from the computation, is charged as a hit and ends it, as publishing does.

    >>> from dp_transforms.mechanisms.papers.private_computation import NoisyAnswer
    >>> from dp_transforms.mechanisms.papers.query import LinearQuery
    >>> from dp_transforms.mechanisms.papers.target_charging import HitLimit
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
