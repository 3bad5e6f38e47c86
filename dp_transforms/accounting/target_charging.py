"""Target charging by counting calls: the closed form and the exact tail; and the targets of the modes.

Guarantee of each accountant: a data holder called any number of times, each call epsilon_per_query-DP with a
q-target for one user, and an exclusion after `hits` results in the target, is (epsilon, delta)-DP for that user.
Source: [CL23] Theorem B.4 in the form of its own Lemma A.4; docs/guarantee.md, "Errata of the papers" says what is
misprinted there and proves what is computed here. `charging_game` is never larger.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.charging_game import CountedCalls, GameAccountant
from dp_transforms.accounting.composition import (
    ROUNDING,
    Accountant,
    check_delta,
    check_epsilon,
    check_epsilon_per_query,
    optimal_composition_delta,
    smallest_safe_argument,
)
from dp_transforms.checks import check_whole
from dp_transforms.mechanisms import discrete_laplace_law

_CUTS = 2000  # values of r tried by the closed form; each of them is a valid bound


@dataclasses.dataclass(frozen=True)
class ExactTailAccountant(CountedCalls):
    """Guarantee: the interaction, with an exclusion after `hits` hits, is (epsilon, delta(epsilon))-DP for one user.

    Condition: each call is epsilon_per_query-DP with a target of probability target_probability for that user. Unit of
    privacy: one user with all of its events. An `Accountant`: the exact probability of more than r calls, plus the
    optimal composition of r calls, at the best r. Never below `GameAccountant`, never above `ClosedFormAccountant`.

    >>> print(f"{ExactTailAccountant(epsilon_per_query=0.1, target_probability=0.475, hits=5).epsilon(1e-8):.3f}")
    3.689
    """

    def delta(self, epsilon: float) -> float:
        return self.delta_and_calls(epsilon)[0]

    def epsilon(self, delta: float) -> float:
        closed_form = ClosedFormAccountant(self.epsilon_per_query, self.target_probability, self.hits)
        guess = 0.6 * closed_form.epsilon(delta)
        return smallest_safe_argument(self.delta, delta, guess=guess, lowest=0.0, highest=math.inf)

    def delta_and_calls(self, epsilon: float) -> tuple[float, int]:
        """The smallest, over r, of ``Pr[more than r calls] + optimal composition of r calls``, and this r."""
        check_epsilon(epsilon)
        hits = self.hits

        def tail(calls: int) -> float:
            return float(calls_exceed_probability(np.array([calls]), hits, self.target_probability)[0])

        def composed(calls: int) -> float:
            return optimal_composition_delta(self.epsilon_per_query, calls, epsilon)

        # The first term falls with r and the second one rises. Find where they cross, then look both ways for as long
        # as the larger term alone does not already exceed the best sum.
        cross = discrete_laplace_law.smallest_whole(lambda calls: tail(calls) <= composed(calls), hits - 1, 2 * hits)
        best, best_calls = 1.0, cross
        for step, at, larger_term in ((1, cross, composed), (-1, cross - 1, tail)):
            while at >= 0 and larger_term(at) < best:
                total = tail(at) + composed(at)
                if total < best:
                    best, best_calls = total, at
                at += step
        return best, best_calls


@dataclasses.dataclass(frozen=True)
class ClosedFormAccountant(CountedCalls):
    """Guarantee: as `ExactTailAccountant`, by the theorem as [CL23] prove it: B.4 with the composition of Lemma A.4.

    For comparison. delta and epsilon each search their own grid of r, so they are inverse to about one part in 1000;
    each of them holds.

    >>> print(f"{ClosedFormAccountant(epsilon_per_query=0.1, target_probability=0.475, hits=5).epsilon(1e-8):.3f}")
    6.698
    """

    def delta(self, epsilon: float) -> float:
        """The smallest, over r, of the Chernoff tail of more than r calls plus basic or advanced composition of r."""
        check_epsilon(epsilon)
        epsilon_per_query, target_probability, hits = self.epsilon_per_query, self.target_probability, self.hits
        least = hits / target_probability
        # Advanced composition says nothing if r eps^2 / 2 >= epsilon, and basic composition nothing if r eps > epsilon.
        most = max(2 * epsilon / epsilon_per_query**2, epsilon / epsilon_per_query)
        if most <= least:
            return 1.0
        calls = np.geomspace(least, most, _CUTS)
        drift = calls * epsilon_per_query**2 / 2
        exponent = np.maximum(epsilon - drift, 0.0) ** 2 / (2 * calls * epsilon_per_query**2)
        composed = np.where(calls * epsilon_per_query <= epsilon, 0.0, np.exp(-exponent))
        return float(min(1.0, np.min(_chernoff_tail(calls, hits, target_probability) + composed) * (1 + ROUNDING)))

    def epsilon(self, delta: float) -> float:
        """[CL23] Theorem B.4 with the composition of its Lemma A.4, at the best alpha; ``r = (1 + alpha) hits / q``."""
        check_delta(delta)
        epsilon_per_query, target_probability, hits = self.epsilon_per_query, self.target_probability, self.hits
        # The smallest alpha with exp(-alpha^2 hits / (2 (1 + alpha))) <= delta; the best one leaves a little for the
        # rest.
        log_term = math.log(1 / delta) / hits
        alpha = log_term + math.sqrt(log_term**2 + 2 * log_term)
        least = (1 + alpha) * hits / target_probability
        calls = np.geomspace(least, 2 * least, _CUTS)
        left = delta - _chernoff_tail(calls, hits, target_probability) * (1 + ROUNDING)
        calls, left = calls[left > 0], left[left > 0]
        advanced = calls * epsilon_per_query**2 / 2 + epsilon_per_query * np.sqrt(2 * calls * np.log(1 / left))
        return float(np.min(np.minimum(calls * epsilon_per_query, advanced)) * (1 + ROUNDING))


# By the names that plans know, the default first. All take (epsilon_per_query, target_probability, hits).
TARGET_CHARGING_ACCOUNTANTS: dict[str, Callable[[float, float, int], Accountant]] = {
    "game": GameAccountant,
    "exact_tail": ExactTailAccountant,
    "closed_form": ClosedFormAccountant,
}


def not_prior_probability(epsilon_per_query: float) -> float:
    """q of the target "everything but one outcome" ([CL23] Lemma 2.3): reports with counts are charged by it."""
    check_epsilon_per_query(epsilon_per_query)
    return discrete_laplace_law.not_prior_probability(epsilon_per_query)


def between_probability(epsilon_per_query: float, zone_width: int) -> float:
    """q of the target "in a zone of zone_width integers" for discrete Laplace noise; labels are charged by it.

    ``(1 - e^(-W eps)) / (e^eps + 1)``: [CL23] Lemma G.1 for the integers, docs/guarantee.md, "Lemma (the zone)".
    """
    check_whole("zone_width", zone_width, 1)
    return -math.expm1(-zone_width * epsilon_per_query) * not_prior_probability(epsilon_per_query)


def calls_exceed_probability(
    calls: npt.NDArray[np.int64], hits: int, target_probability: float
) -> npt.NDArray[np.float64]:
    """``Pr[Binomial(calls, q) <= hits - 1]``: fewer than `hits` hits in these calls. calls: int64[n], each >= 0."""
    from scipy.special import betainc  # heavy

    successes_missing = np.maximum(calls - hits + 1, 1)
    tail = betainc(successes_missing.astype(np.float64), float(hits), 1 - target_probability)
    return np.where(calls < hits, 1.0, np.minimum(1.0, tail * (1 + ROUNDING)))


def _chernoff_tail(calls: npt.NDArray[np.float64], hits: int, target_probability: float) -> npt.NDArray[np.float64]:
    """Bound on ``Pr[more than floor(r) calls]``, for r = calls, any real numbers.

    ``exp(-alpha^2 hits / (2 (1 + alpha)))`` with ``1 + alpha = r q / hits``: [CL23] Theorem B.4, and docs/guarantee.md,
    "Errata of the papers" for the floor.
    """
    alpha = np.maximum(calls * target_probability / hits - 1, 0.0)
    return np.asarray(np.exp(-(alpha**2) * hits / (2 * (1 + alpha))))
