"""Target charging with calls of different kinds, chosen as one goes ([CL23] Remark B.6).

Guarantee: let a data holder be called any number of times, the i-th call epsilon_i-DP with a q_i-target for one user,
all of it chosen adaptively, and let each hit pay ``target_charge(epsilon_i, q_i, lam)`` out of a budget, where a call
is only made if one more hit could still be paid. Then the Renyi divergence of order ``lam + 1`` between the
interaction with and without that user, either way, is at most ``budget / lam``, without a failure event:
`MixedChargingAccountant`. Proof: docs/proofs.md, "Theorem of mixed calls". The charge of a call is

    charge = -ln(1 - (D - 1) e^(lam eps) / q),    D = (e^(lam eps) + e^(-(lam + 1) eps)) / (1 + e^-eps)

for every lam > 0 at which the argument of the logarithm is positive. With calls of one kind it is a cross-check of the
game that shares nothing with it, and it adds up with other mechanisms that have a Renyi guarantee.

The order is fixed before the first call, since the charges of different kinds compare differently at different
orders; `MixedChargingAccountant.for_mix` chooses it for the calls that are expected. Calls that also have a delta add
that to the delta here. `largest_support` is the coarse alternative: count all hits alike, at the worst numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dp_transforms.accounting.accountants import ROUNDING, check_delta, check_epsilon
from dp_transforms.accounting.charging_game import GameAccountant, check_target
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.accounting.price_list import conversion_loss, order_budget
from dp_transforms.checks import check_positive, check_whole, is_number
from dp_transforms.papers.private_computation import check_probability

_ORDERS = 400
_FLOAT_ERROR = 1e-14  # of a sum of few terms, relative to their sizes
_LEAST_LOG_DELTA = -700.0  # its delta is a normal float: none is rounded to 0


def target_charge(epsilon_per_query: float, target_probability: float, lam: float) -> float:
    """The smallest flat charge of a hit at order ``lam + 1``, rounded up; infinite from `largest_lam` on."""
    check_target(epsilon_per_query, target_probability)
    check_positive("lam", lam)
    if lam >= largest_lam(epsilon_per_query, target_probability):
        return math.inf
    u = lam * epsilon_per_query
    # D - 1 as a product, so that no digits cancel where eps is small.
    excess = math.expm1(u) * -math.expm1(-u - epsilon_per_query) / (1 + math.exp(-epsilon_per_query))
    share = excess * math.exp(u) / target_probability * (1 + ROUNDING)
    return -math.log1p(-share) * (1 + ROUNDING) if share < 1 else math.inf


def largest_lam(epsilon_per_query: float, target_probability: float) -> float:
    """From here on no flat charge is enough: ``(e^u - 1)(e^u - a) = q (1 + a)`` at ``u = lam eps``, ``a = e^-eps``."""
    check_target(epsilon_per_query, target_probability)
    a = math.exp(-epsilon_per_query)
    # The positive root y = e^u - 1 of y^2 + (1 - a) y = q (1 + a), in the form that does not cancel.
    product = target_probability * (1 + a)
    root = 2 * product / ((1 - a) + math.sqrt((1 - a) ** 2 + 4 * product))
    return math.log1p(root) / epsilon_per_query


class CallKind(NamedTuple):
    """Calls that are epsilon_per_query-DP with a target of probability target_probability; hits: how many of them."""

    epsilon_per_query: float
    target_probability: float
    hits: int


def largest_probability(epsilon_per_query: float, target_probability: float) -> float:
    """q, at most ``1/(e^epsilon + 1)`` as the accountants want it. (A q-target is also one for every smaller q.)"""
    check_probability(target_probability)
    return min(target_probability, not_prior_probability(epsilon_per_query))


def largest_support(kinds: Sequence[CallKind]) -> GameAccountant:
    """The game for calls of all kinds together: the largest epsilon, the smallest q, the sum of the hits.

    Guarantee: for any order of calls that are at least as good as one of the kinds, with one counter for all hits.
    """
    _check_kinds(kinds)
    epsilon_per_query = max(kind.epsilon_per_query for kind in kinds)
    target_probability = min(kind.target_probability for kind in kinds)
    hits = sum(kind.hits for kind in kinds)
    return GameAccountant(epsilon_per_query, largest_probability(epsilon_per_query, target_probability), hits)


@dataclasses.dataclass(frozen=True)
class MixedChargingAccountant:
    """Guarantee: the interaction that `MixedChargingFilter` lets happen is (epsilon, delta(epsilon))-DP for one user.

    Condition: the charges are those of this order. Unit of privacy: one user with all of its data.
    order: of the Renyi divergence, lam + 1, above 1. budget: for the sum of all charges. Source: docs/proofs.md,
    "Theorem of mixed calls"; Canonne, Kamath, Steinke (2020), Proposition 12.

    >>> expected = [CallKind(0.05, 0.487, hits=8), CallKind(0.1, 0.475, hits=2)]
    >>> accountant = MixedChargingAccountant.for_mix(epsilon=3.0, delta=1e-6, mix=expected)
    >>> accountant.delta(3.0) <= 1e-6, accountant.times(expected) > 1
    (True, True)
    """

    order: float
    budget: float

    def __post_init__(self) -> None:
        if not is_number(self.order) or not 1 < self.order < math.inf:
            raise ValueError(f"order must be finite and > 1, got {self.order!r}.")
        check_positive("budget", self.budget)

    @classmethod
    def calibrate(cls, epsilon: float, delta: float, order: float) -> MixedChargingAccountant:
        """The largest budget at this order that is (epsilon, delta)-DP.

        ValueError: no budget is, because the order is too small for this delta.
        """
        check_epsilon(epsilon)
        check_delta(delta)
        cls(order, 1.0)
        divergence = order_budget(order, epsilon, delta)
        if not divergence > 0:
            raise ValueError(f"order {order:g} is too small for epsilon = {epsilon:g}, delta = {delta:g}. Raise it.")
        return cls(order, divergence * (order - 1))

    @classmethod
    def for_mix(cls, epsilon: float, delta: float, mix: Sequence[CallKind]) -> MixedChargingAccountant:
        """The accountant of the order at which the budget pays the hits of `mix` most often. Other calls may come too.

        ValueError: no order pays for these calls.
        """
        _check_kinds(mix)
        check_epsilon(epsilon)
        check_delta(delta)
        most = min(
            largest_lam(kind.epsilon_per_query, largest_probability(*kind[:2]))
            for kind in mix  # beyond, one of the kinds cannot be paid at all
        )
        found = []
        ends = np.geomspace(1e-3, 0.5, _ORDERS // 2)
        for order in (1 + np.concatenate([ends, 1 - ends]) * most).tolist():
            with contextlib.suppress(ValueError):  # too small an order
                found.append(cls.calibrate(epsilon, delta, order))
        if not found:
            raise ValueError(f"no order pays for such calls at epsilon = {epsilon:g}, delta = {delta:g}. Raise either.")
        return max(found, key=lambda accountant: accountant.times(mix))

    def charge(self, epsilon_per_query: float, target_probability: float) -> float:
        """What one hit of such a call pays; infinite if it cannot be paid at this order."""
        probability = largest_probability(epsilon_per_query, target_probability)
        return target_charge(epsilon_per_query, probability, self.order - 1)

    def times(self, mix: Sequence[CallKind]) -> float:
        """How many times the budget pays the hits of `mix`."""
        return self.budget / math.fsum(kind.hits * self.charge(*kind[:2]) for kind in mix)

    @property
    def divergence(self) -> float:
        """Of this order, at most."""
        return self.budget / (self.order - 1)

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        log_delta = (self.order - 1) * (self._proved_epsilon(1.0, epsilon) - epsilon)
        return math.exp(min(0.0, max(_LEAST_LOG_DELTA, log_delta)))

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return max(0.0, self._proved_epsilon(delta))

    def _proved_epsilon(self, delta: float, subtracted: float = 0.0) -> float:
        """Rounded up by more than the floats of this sum, less what is then subtracted, can be off: its terms are
        often much larger than it is, and ``1 - 1/order`` is small at orders near 1."""
        above = self.order - 1
        terms = 1 + self.order / above + abs(math.log(above)) + abs(math.log(delta))
        error = _FLOAT_ERROR * (self.divergence + subtracted + terms / above)
        return self.divergence + conversion_loss(self.order, delta) + error


class MixedChargingFilter:
    """Admits calls of any kind while one more hit of each could still be paid. State of one interaction.

    Guarantee: that of its accountant, for everything published by the admitted calls, if every hit was charged. Used as
    the limit of ``papers.target_charging.TargetCharging``, which adds the deltas of its calls.

    spent: the sum of all charges so far.

    >>> limit = MixedChargingFilter(MixedChargingAccountant(order=3.0, budget=1.0))
    >>> limit.charge(0.1, 0.475)
    >>> limit.admits(0.1, 0.475), limit.admits(0.1, 0.475, hits=100)
    (True, False)
    """

    def __init__(self, accountant: MixedChargingAccountant) -> None:
        self.accountant = accountant
        self._spent = Fraction(0)  # exact: any number of hits may add to it

    @property
    def spent(self) -> float:
        return float(self._spent)

    def admits(self, epsilon_per_query: float, target_probability: float, hits: int = 1) -> bool:
        """Whether the budget could pay this many further hits of such a call.

        ValueError: it could never pay one, because the order is too large for such a call.
        """
        check_whole("hits", hits, 1)
        charge = self.accountant.charge(epsilon_per_query, target_probability)
        if not charge < math.inf:
            raise ValueError(
                f"order {self.accountant.order:g} has no charge for epsilon {epsilon_per_query:g} with q = "
                f"{target_probability:g}. Choose the order for a mix with such calls."
            )
        return self._spent + hits * Fraction(charge) <= Fraction(self.accountant.budget)

    def charge(self, epsilon_per_query: float, target_probability: float, hits: int = 1) -> None:
        """Pays for the hits of a call that was admitted."""
        check_whole("hits", hits, 0)
        if hits:
            self._spent += hits * Fraction(self.accountant.charge(epsilon_per_query, target_probability))


def _check_kinds(kinds: Sequence[CallKind]) -> None:
    if not kinds:
        raise ValueError("there must be at least one kind of call.")
    for epsilon_per_query, target_probability, hits in kinds:
        largest_probability(epsilon_per_query, target_probability)
        check_whole("hits", hits, 1)
