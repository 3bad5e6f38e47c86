"""One-shot selection: each candidate is run once, and the best are published ([CL23] sections 2.4 and I)."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dp_transforms.checks import check_whole, is_whole
from dp_transforms.mechanisms.discrete_laplace_law import not_prior_probability
from dp_transforms.mechanisms.papers.noise_source import NoiseSource
from dp_transforms.mechanisms.papers.private_computation import PrivateComputation
from dp_transforms.mechanisms.papers.target_charging import Price, TargetCharging


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

    Why: publishing is a sweep over `ConditionalRelease` objects, one for each candidate. A threshold falls through the
    whole numbers from above every score. At each value, in the order of their positions, each candidate is asked
    whether its score has been reached, until k have been published. So candidates with equal scores come in the
    order of their positions, exactly as here; the order of the candidates must not depend on the data.

    gap: None, or publish fewer where the scores fall off: the sweep ends as soon as the threshold is more than `gap`
    below the score published last. Only what was published, and that there is nothing within `gap` of the last score,
    becomes known; a rule that looks at the score after the gap, or at the largest gap of all, is not covered.

    score: from a result to its score, a whole number; by default the result itself. It must be pure and total: an
    exception from it, or from a candidate, is charged as all k hits.

    >>> from dp_transforms.mechanisms.papers.private_computation import NoisyAnswer
    >>> from dp_transforms.mechanisms.papers.query import LinearQuery
    >>> from dp_transforms.mechanisms.papers.target_charging import HitLimit
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
