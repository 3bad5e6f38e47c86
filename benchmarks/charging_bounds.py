"""Bounds on target charging to compare the game with: Renyi charges from above, a fixed adversary from below."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from dp_transforms.accounting.charging_game import check_target
from dp_transforms.accounting.composition import (
    ROUNDING,
    advanced_composition_epsilon,
    check_delta,
    check_epsilon,
    smallest_safe_argument,
)
from dp_transforms.accounting.mixed_charging import (
    delta_from_divergences,
    epsilon_from_divergences,
    largest_lam,
    target_charge,
)
from dp_transforms.checks import check_whole, is_number

_ORDERS = 400  # tried if the caller names none; dense at both ends: within one part in 10^4 of the best order


@dataclasses.dataclass(frozen=True)
class RenyiAccountant:
    """Guarantee: the interaction, with an exclusion after `hits` hits, is (epsilon, delta(epsilon))-DP for one user.

    Condition: each call is epsilon_per_query-DP with a target of probability target_probability for that user. Unit of
    privacy: one user with all of its events. An `Accountant`; never below `GameAccountant`.

    orders: the orders lam + 1 that are tried, each above 1; () for a fine grid up to the largest that has a charge.
    Conversion: dp_accounting, i.e. Canonne, Kamath, Steinke (2020), Proposition 12. Proof: `accounting.mixed_charging`.
    """

    epsilon_per_query: float
    target_probability: float
    hits: int
    orders: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_target(self.epsilon_per_query, self.target_probability)
        check_whole("hits", self.hits, 1)
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
        return delta_from_divergences(*self.divergences, epsilon)

    def epsilon(self, delta: float) -> float:
        return epsilon_from_divergences(*self.divergences, delta)


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
        guess=advanced_composition_epsilon(epsilon_per_query, calls, delta),
        lowest=0.0,
        highest=math.inf,
    )
