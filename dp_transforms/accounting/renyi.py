"""Renyi target charging: a cross-check of the game accountant that shares nothing with it.

Guarantee: sparse vector with discrete Laplace noise, one noisy count for the test and the report, and an exclusion
after `hits` reports, has Renyi divergence of order ``lam + 1`` at most ``hits * charge / lam`` for one user, over any
number of counts and without a failure event. Proof: docs/guarantee.md section 5.1.

The supremum over the user's counts is taken numerically, over all distances from the threshold up to 15 noise scales
and the limit beyond, so this is an oracle for tests and for the benchmark, not an accountant for plans.
"""

from __future__ import annotations

import math

import numpy as np

from dp_transforms.accounting.composition import check_delta, check_epsilon_per_query, check_whole

_ORDERS = 400


def report_charge(epsilon_per_query: float, lam: float) -> float:
    """The smallest flat charge of a report at which every round is a supermartingale; infinite at too large an order.

    ``sup ln(A / (1 - B))`` with ``A = sum over reports of P^(lam+1) Q^-lam`` and B the same for "no report".
    """
    check_epsilon_per_query(epsilon_per_query)
    if not 0 < lam < math.inf:
        raise ValueError(f"lam must be finite and > 0, got {lam!r}.")
    a = math.exp(-epsilon_per_query)
    rise = math.exp(epsilon_per_query * lam)
    far = math.ceil(15 / epsilon_per_query)
    margin = np.arange(-far, far + 1)  # threshold minus the count without the user

    def tail(m: np.ndarray) -> np.ndarray:
        beyond = np.exp(-epsilon_per_query * np.abs(np.where(m >= 1, m, 1 - m))) / (1 + a)
        return np.asarray(np.where(m >= 1, beyond, 1 - beyond))

    # Values above the count without the user are e^eps likelier with it, the others e^eps likelier without.
    upper = tail(np.maximum(margin, 1))  # Pr[report, above that count] without the user; 1/a of it with
    charges = [0.0]
    without, with_user = tail(margin), tail(margin - 1)
    silent_without, silent_with = tail(1 - margin), tail(2 - margin)  # by symmetry, with all digits
    lower_without, lower_with = without - upper, with_user - upper / a
    for p_upper, p_lower, p_silent, q_silent, factor in (
        (upper / a, lower_with, silent_with, silent_without, rise),
        (upper, lower_without, silent_without, silent_with, 1 / rise),
    ):
        reported = p_upper * factor + np.maximum(p_lower, 0.0) / factor
        silent = p_silent * (p_silent / q_silent) ** lam
        if not (silent < 1).all():
            return math.inf
        charges.append(float(np.log(reported / (1 - silent)).max()))
    # Counts infinitely far below the threshold, with and without the user first.
    grow = 1 / a - 1
    charges.append(math.log(rise / a / ((lam + 1) / a - lam)))
    if not lam * grow < 1:
        return math.inf
    charges.append(math.log(1 / rise / (1 - lam * grow)))
    return max(charges)


def renyi_epsilon(epsilon_per_query: float, hits: int, delta: float) -> float:
    """The smallest epsilon over a grid of orders, converted by Canonne, Kamath, Steinke (2020), Proposition 12."""
    check_whole("hits", hits, 1)
    check_delta(delta)
    best = math.inf
    # Orders beyond ln(1 + e^-eps) / eps have no finite charge.
    for lam in np.geomspace(1e-3, 1.0, _ORDERS) * math.log1p(math.exp(-epsilon_per_query)) / epsilon_per_query:
        order = 1 + float(lam)
        divergence = hits * report_charge(epsilon_per_query, float(lam)) / float(lam)
        best = min(best, divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return best
