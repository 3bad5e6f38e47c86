"""The discrete Laplace distribution: the one thing that accounting and mechanisms share.

``Pr[Z = z] = (1 - a)/(1 + a) * a^|z|`` with ``a = exp(-epsilon)``, over the integers. Adding Z to a count that one user
changes by at most 1 is epsilon-DP. For an integer m >= 1, ``Pr[Z >= m] = a^m / (1 + a)``. Counts are integers, so
nothing is lost against continuous Laplace noise, and floating-point attacks (Mironov 2012) do not apply: what is
sampled is an exact table of 128-bit integers, `upper_tail_integers`.
"""

from __future__ import annotations

import decimal
import functools
import math

UNIFORM_BITS = 128
_GUARD_BITS = 160  # beyond UNIFORM_BITS, so that the error of a million multiplications stays far below one unit
MIN_EPSILON = 1e-4  # the table has 178 / epsilon entries
MAX_EPSILON = 32.0


def check_epsilon(epsilon: float) -> None:
    """Raises ValueError unless the noise of one query can be sampled exactly at this epsilon."""
    if not MIN_EPSILON <= epsilon <= MAX_EPSILON:
        raise ValueError(f"epsilon per query must lie in [{MIN_EPSILON}, {MAX_EPSILON}], got {epsilon!r}.")


def upper_tail(epsilon: float, margin: int) -> float:
    """``Pr[Z >= margin]``, rounded up by a few units in the last place (callers use it as a bound)."""
    a = math.exp(-epsilon)
    if margin >= 1:
        tail = math.exp(-epsilon * margin) / (1 + a)
    else:
        tail = 1 - math.exp(-epsilon * (1 - margin)) / (1 + a)
    return min(1.0, tail * (1 + 1e-12))


def probability(epsilon: float, value: int) -> float:
    """``Pr[Z = value]``."""
    return math.tanh(epsilon / 2) * math.exp(-epsilon * abs(value))


@functools.lru_cache(maxsize=8)
def upper_tail_integers(epsilon: float) -> tuple[int, ...]:
    """``floor(2^128 * Pr[Z >= m])`` for m = 1, 2, ... until it reaches 0 (which is the last entry, left out).

    By symmetry ``Pr[Z <= -m]`` takes the same integers, so a uniform 128-bit integer is inverted without error beyond
    one unit of 2^-128 for each threshold.
    """
    check_epsilon(epsilon)
    context = decimal.Context(prec=110, Emin=-10_000, Emax=10_000)
    ratio = context.exp(decimal.Decimal(-epsilon))  # the float epsilon, exactly
    one = 1 << (UNIFORM_BITS + _GUARD_BITS)
    a = int(context.multiply(ratio, decimal.Decimal(one)))
    tail = a * one // (one + a)  # m = 1
    tails = []
    while (entry := tail >> _GUARD_BITS) > 0:
        tails.append(entry)
        tail = tail * a >> (UNIFORM_BITS + _GUARD_BITS)
    return tuple(tails)


def sampling_total_variation(epsilon: float) -> float:
    """Bound on the distance of one draw, in one or in two stages, from the exact distribution.

    Each of the at most 2 M + 1 thresholds is off by at most one unit of 2^-128, in the direct draw and again in the
    conditioned one; M < 129 ln(2) / epsilon. Far below 2^-100 for every epsilon allowed.
    """
    thresholds = 2 * math.ceil(129 * math.log(2) / epsilon) + 1
    return 2 * thresholds * 2.0**-UNIFORM_BITS
