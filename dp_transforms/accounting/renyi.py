"""Renyi target charging: every result in the target pays a flat charge, for all orders at once.

Guarantee: let a data holder be called any number of times, adaptively, each call epsilon_per_query-DP with a q-target
for one user, and let the user be excluded after `hits` results in the target. Then the Renyi divergence of order
``lam + 1`` between the interaction with and without that user, either way, is at most ``hits * charge / lam`` with

    charge = -ln(1 - (D - 1) e^(lam eps) / q),    D = (e^(lam eps) + e^(-(lam + 1) eps)) / (1 + e^-eps)

for every lam > 0 at which the argument of the logarithm is positive, without a failure event. It is a cross-check of
the game that shares nothing with it, and it adds up with other mechanisms that have a Renyi guarantee.

Proof. As in docs/guarantee.md section 3 let R be the bit of randomized response behind a call, p the probability that
it is 1, and h1, h0 the probabilities of a hit after R = 1 and R = 0. It suffices that ``exp(lam loss - charges)`` is a
supermartingale, ``p e^(lam eps) (1 - s h1) + (1-p) e^(-lam eps) (1 - s h0) <= 1`` with ``s = 1 - e^-charge``; that is
``s (p e^(lam eps) h1 + (1-p) e^(-lam eps) h0) >= D - 1``. Under the two constraints of a q-target the left side is
least at ``h1 = 0, h0 = q/(1-p)``, where it is ``s q e^(-lam eps)``. At the exclusion the charges are at most
``hits * charge``, so ``E[exp(lam loss)] <= exp(hits * charge)``. With the worlds exchanged the game is the same. ∎

Sparse vector with discrete Laplace noise meets this bound, at a count one below the threshold, with q of
`not_prior_probability`: the charge cannot be smaller for it either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dp_transforms.accounting.charging_game import check_target
from dp_transforms.accounting.composition import ROUNDING, check_delta, check_epsilon
from dp_transforms.checks import is_number

SMALLEST_DIVERGENCE = 1e-15  # smaller ones are rounded up to it: dp_accounting takes ln(1 - e^-divergence)
_LOST_DIGITS = 2.0**-52  # of that difference: four times what the float next to 1 may be off by


def target_charge(epsilon_per_query: float, target_probability: float, lam: float) -> float:
    """The smallest flat charge of a hit at order ``lam + 1``, rounded up; infinite from `largest_lam` on."""
    check_target(epsilon_per_query, target_probability)
    if not is_number(lam) or not 0 < lam < math.inf:
        raise ValueError(f"lam must be finite and > 0, got {lam!r}.")
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


def delta_from_divergences(orders: Sequence[float], divergences: Sequence[float], epsilon: float) -> float:
    """The smallest delta at this epsilon for the Renyi divergences of these orders, rounded up.

    Canonne, Kamath, Steinke (2020), Proposition 12, by dp_accounting, which ignores orders up to 1.01.
    """
    from dp_accounting.rdp import rdp_privacy_accountant  # heavy: only where it is used

    check_epsilon(epsilon)
    delta, _ = rdp_privacy_accountant.compute_delta(orders, _convertible(divergences), epsilon)
    return min(1.0, float(delta) * (1 + ROUNDING))


def epsilon_from_divergences(orders: Sequence[float], divergences: Sequence[float], delta: float) -> float:
    """The inverse of `delta_from_divergences`, rounded up; infinite if no order has a finite divergence."""
    from dp_accounting.rdp import rdp_privacy_accountant

    check_delta(delta)
    # A little less than delta, which pays for the rounding of delta above.
    epsilon, _ = rdp_privacy_accountant.compute_epsilon(orders, _convertible(divergences), delta * (1 - 10 * ROUNDING))
    return float(epsilon) * (1 + ROUNDING)


def _convertible(divergences: Sequence[float]) -> list[float]:
    """Rounded up, so that dp_accounting's result for them is not below the exact one."""
    return [max(divergence, SMALLEST_DIVERGENCE) + _LOST_DIGITS for divergence in divergences]
