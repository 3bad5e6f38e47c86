"""Bounds on target charging to compare the game with: from above the closed form and the exact tail, which count calls,
and Renyi charges; from below a fixed adversary.

Guarantee of each accountant: a data holder called any number of times, each call epsilon_per_query-DP with a
q-target for one user, and an exclusion after `hits` results in the target, is (epsilon, delta)-DP for that user. None
is below the game.

Those that count calls: let Y be the number of draws from K_R (docs/guarantee.md, "Reduction to a walk") before the
exclusion. It is dominated by the number of Bernoulli(q) draws until `hits` successes. So for any whole r, except with
probability ``Pr[Binomial(r, q) <= hits - 1]``, the interaction is one of at most r calls, and delta is at most that
tail plus the delta of r adaptive eps-DP calls. [CL23] Theorem B.4 in the form of its own Lemma A.4; what is misprinted
there: docs/proofs.md, "Errata of the papers".
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt
from dp_accounting.rdp import rdp_privacy_accountant

from dp_transforms.accounting.charging_game import check_target
from dp_transforms.accounting.composition import (
    MOST_CALLS,
    ROUNDING,
    check_delta,
    check_epsilon,
    optimal_composition_delta,
    smallest_safe_argument,
)
from dp_transforms.accounting.discrete_laplace_law import smallest_whole
from dp_transforms.checks import check_positive, check_whole, is_number
from dp_transforms.papers.mixed_charging import largest_lam, target_charge

_CUTS = 2000  # values of r tried by the closed form; each of them is a valid bound
_ORDERS = 400  # tried if the caller names none; dense at both ends: within one part in 10^4 of the best order


@dataclasses.dataclass(frozen=True)
class _CountedCalls:
    """The numbers that these bounds take, as `GameAccountant` does."""

    epsilon_per_query: float
    target_probability: float
    hits: int

    def __post_init__(self) -> None:
        check_target(self.epsilon_per_query, self.target_probability)
        check_whole("hits", self.hits, 1)


@dataclasses.dataclass(frozen=True)
class ExactTailAccountant(_CountedCalls):
    """Guarantee: the interaction, with an exclusion after `hits` hits, is (epsilon, delta(epsilon))-DP for one user.

    Condition: each call is epsilon_per_query-DP with a target of probability target_probability for that user. Unit of
    privacy: one user with all of its events. An `Accountant`: the exact probability of more than r calls, plus the
    optimal composition of r calls, at the best r. Never below `GameAccountant`, never above `ClosedFormAccountant`.
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
        cross = smallest_whole(lambda calls: tail(calls) <= composed(calls), hits - 1, 2 * hits)
        best, best_calls = 1.0, cross
        for step, at, larger_term in ((1, cross, composed), (-1, cross - 1, tail)):
            while at >= 0 and larger_term(at) < best:
                total = tail(at) + composed(at)
                if total < best:
                    best, best_calls = total, at
                at += step
        return best, best_calls


@dataclasses.dataclass(frozen=True)
class ClosedFormAccountant(_CountedCalls):
    """Guarantee: as `ExactTailAccountant`, by the theorem as [CL23] prove it: B.4 with the composition of Lemma A.4.

    delta and epsilon each search their own grid of r, so they are inverse to about one part in 1000;
    each of them holds.
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
        return float(min(1.0, np.min(chernoff_tail(calls, hits, target_probability) + composed) * (1 + ROUNDING)))

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
        left = delta - chernoff_tail(calls, hits, target_probability) * (1 + ROUNDING)
        calls, left = calls[left > 0], left[left > 0]
        advanced = calls * epsilon_per_query**2 / 2 + epsilon_per_query * np.sqrt(2 * calls * np.log(1 / left))
        return float(np.min(np.minimum(calls * epsilon_per_query, advanced)) * (1 + ROUNDING))


@dataclasses.dataclass(frozen=True)
class RenyiAccountant(_CountedCalls):
    """Guarantee: the interaction, with an exclusion after `hits` hits, is (epsilon, delta(epsilon))-DP for one user.

    Condition: each call is epsilon_per_query-DP with a target of probability target_probability for that user. Unit of
    privacy: one user with all of its events. An `Accountant`; never below `GameAccountant`.

    orders: the orders lam + 1 that are tried, each above 1; () for a fine grid up to the largest that has a charge.
    Conversion: dp_accounting, i.e. Canonne, Kamath, Steinke (2020), Proposition 12. Proof: docs/proofs.md.
    """

    orders: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.orders, tuple) or not all(is_number(o) and 1 < o < math.inf for o in self.orders):
            raise ValueError(f"orders must be a tuple of finite numbers > 1, or () for a grid, got {self.orders!r}.")

    @functools.cached_property
    def divergences(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The orders, and a bound on the Renyi divergence of each."""
        orders = self.orders
        if not orders:
            ends = np.geomspace(1e-3, 0.5, _ORDERS // 2)
            grid = 1 + np.concatenate([ends, 1 - ends]) * largest_lam(self.epsilon_per_query, self.target_probability)
            orders = tuple(grid[grid > 1].tolist()) or (2.0,)  # if none has a charge: one order without a charge
        charges = [target_charge(self.epsilon_per_query, self.target_probability, order - 1) for order in orders]
        return orders, tuple(self.hits * charge / (order - 1) for charge, order in zip(charges, orders, strict=True))

    def delta(self, epsilon: float) -> float:
        return float(rdp_privacy_accountant.compute_delta(*self.divergences, epsilon)[0]) * (1 + ROUNDING)

    def epsilon(self, delta: float) -> float:
        return float(rdp_privacy_accountant.compute_epsilon(*self.divergences, delta)[0]) * (1 + ROUNDING)


def static_adversary_delta(epsilon_per_query: float, target_probability: float, hits: int, epsilon: float) -> float:
    """What an adversary attains whose hits come only where the loss goes down: a lower bound on every accountant.

    A legal play of the game: after each call, a hit with probability ``q / (1 - p)`` if the loss went down and none if
    it went up, until the hits are used up. Summed over finitely many calls, so it stays a lower bound.
    """
    check_target(epsilon_per_query, target_probability)
    check_whole("hits", hits, 1)
    check_epsilon(epsilon)
    from scipy.special import gammaln, xlogy

    a = math.exp(-epsilon_per_query)
    up, down = 1 / (1 + a), a / (1 + a)
    most = math.ceil((hits + 10 * math.sqrt(hits) + 40) / target_probability)
    # Calls that are not hits: negative binomial. The share up / (1 - q) of them went up.
    other = np.arange(most + 1, dtype=np.float64)
    log_other = gammaln(other + hits) - gammaln(hits) - gammaln(other + 1)
    log_other += hits * math.log(target_probability) + other * math.log1p(-target_probability)
    stay_down = max(0.0, down - target_probability) / (1 - target_probability)
    total = 0.0
    for count, log_mass in zip(range(most + 1), log_other, strict=True):
        went_down = np.arange(count + 1, dtype=np.float64) if stay_down > 1e-12 else np.zeros(1)
        log_split = gammaln(count + 1) - gammaln(went_down + 1) - gammaln(count - went_down + 1)
        log_split += xlogy(went_down, stay_down) + xlogy(count - went_down, up / (1 - target_probability))
        loss = epsilon_per_query * (count - 2 * went_down - hits)
        total += float(np.exp(log_mass + log_split) @ -np.expm1(np.minimum(epsilon - loss, 0.0)))
    return total * (1 - ROUNDING)


def static_adversary_epsilon(epsilon_per_query: float, target_probability: float, hits: int, delta: float) -> float:
    """The smallest epsilon that this adversary leaves possible at delta (to about one part in 10^7)."""
    check_delta(delta)
    calls = math.ceil(hits / target_probability)
    return smallest_safe_argument(
        lambda epsilon: static_adversary_delta(epsilon_per_query, target_probability, hits, epsilon),
        delta,
        guess=_composed(epsilon_per_query, calls, delta),
        lowest=0.0,
        highest=math.inf,
    )


def calls_exceed_probability(
    calls: npt.NDArray[np.int64], hits: int, target_probability: float
) -> npt.NDArray[np.float64]:
    """``Pr[Binomial(calls, q) <= hits - 1]``: fewer than `hits` hits in these calls. calls: int64[n], each >= 0."""
    from scipy.special import betainc  # heavy

    successes_missing = np.maximum(calls - hits + 1, 1)
    tail = betainc(successes_missing.astype(np.float64), float(hits), 1 - target_probability)
    return np.where(calls < hits, 1.0, np.minimum(1.0, tail * (1 + ROUNDING)))


def chernoff_tail(calls: npt.NDArray[np.float64], hits: int, target_probability: float) -> npt.NDArray[np.float64]:
    """Bound on ``Pr[more than floor(r) calls]``, for r = calls, any real numbers.

    ``exp(-alpha^2 hits / (2 (1 + alpha)))`` with ``1 + alpha = r q / hits``: [CL23] Theorem B.4, and for the floor
    docs/proofs.md, "Errata of the papers".
    """
    alpha = np.maximum(calls * target_probability / hits - 1, 0.0)
    return np.asarray(np.exp(-(alpha**2) * hits / (2 * (1 + alpha))))


@dataclasses.dataclass(frozen=True)
class OptimalComposition:
    """`calls` adaptive epsilon_per_query-DP mechanisms, by optimal composition, as an `Accountant`."""

    epsilon_per_query: float
    calls: int

    def __post_init__(self) -> None:
        check_positive("epsilon_per_query", self.epsilon_per_query)
        check_whole("calls", self.calls, 1, MOST_CALLS)

    def delta(self, epsilon: float) -> float:
        return optimal_composition_delta(self.epsilon_per_query, self.calls, epsilon)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return smallest_safe_argument(
            self.delta,
            delta,
            guess=_composed(self.epsilon_per_query, self.calls, delta),
            lowest=0.0,
            highest=self.calls * self.epsilon_per_query * (1 + 1e-9),
        )


def _composed(epsilon_per_query: float, calls: int, delta: float) -> float:
    """About the epsilon of so many calls: [CL23] Lemma A.4."""
    drift = calls * epsilon_per_query**2 / 2
    return min(calls * epsilon_per_query, drift + epsilon_per_query * math.sqrt(2 * calls * math.log(1 / delta)))
