"""The law of discrete Laplace noise, which hits are tested with: its tails, and the tables that are sampled.

Nothing is drawn here: `core.noise_table` draws from this law. Sums of two such noises, and what else is
computed from the law alone, are here too.

``Pr[Z = z] = (1 - a)/(1 + a) * a^|z|`` with ``a = exp(-epsilon)``, over the integers. Adding Z to a count that one user
changes by at most 1 is epsilon-DP. For an integer m >= 1, ``Pr[Z >= m] = a^m / (1 + a)``. Counts are integers, so
nothing is lost against continuous Laplace noise, and floating-point attacks (Mironov 2012) do not apply: what is
sampled is an exact table of 128-bit integers, `upper_tail_integers`.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dp_transforms.checks import check_fraction, check_positive, check_range, check_whole

UNIFORM_BITS = 128
_GUARD_BITS = 160  # beyond UNIFORM_BITS, so that the error of a million multiplications stays far below one unit
_GUARDED_BITS = UNIFORM_BITS + _GUARD_BITS
_ONE = 1 << _GUARDED_BITS
MIN_EPSILON = 1e-4  # the table has 178 / epsilon entries
MAX_EPSILON = 32.0
MIN_WIDE_EPSILON = 1e-8  # two tables of about sqrt(89 / epsilon) entries
ROUNDING = 1e-12  # relative; far above the float error of one formula: moves an epsilon or q to the safe side


class WideTails(NamedTuple):
    """The magnitude of wide noise in two digits, each with a short table: ``|Z| = 1 + stride * coarse + fine``.

    nonzero: ``floor(2^128 * Pr[Z >= 1])``. coarse: ``floor(2^128 * Pr[coarse digit >= d])`` for d = 1, 2, ...; fine:
    the same for the fine digit, d = 1 .. stride - 1. The digits of a geometric variable are independent.
    """

    stride: int
    nonzero: int
    coarse: tuple[int, ...]
    fine: tuple[int, ...]


def smallest_whole(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest whole number that `holds`. It holds from there on, and not at low; high: a guess above low."""
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class WholeNoise:
    """Noise of whole numbers, by its tail: thresholds and stated sizes, of hits and of contributions, rest on it."""

    def upper_tail(self, margin: int) -> float:
        """``Pr[noise >= margin]``, rounded up."""
        raise NotImplementedError

    def smallest_margin(self, probability: float) -> int:
        """The smallest m with ``Pr[noise >= m] <= probability``. probability: in (0, 1)."""
        check_fraction("probability", probability)
        low, high = -1, 1
        while self.upper_tail(low) <= probability:
            low, high = 2 * low, low
        return smallest_whole(lambda margin: self.upper_tail(margin) <= probability, low, high)


def upper_tail(epsilon: float, margin: int) -> float:
    """``Pr[Z >= margin]``, rounded up by a few units in the last place (callers use it as a bound)."""
    a = math.exp(-epsilon)
    if margin >= 1:
        tail = math.exp(-epsilon * margin) / (1 + a)
    else:
        tail = 1 - math.exp(-epsilon * (1 - margin)) / (1 + a)
    return min(1.0, tail * (1 + 1e-12))


def not_prior_probability(epsilon: float) -> float:
    """q of the target "all results but one" of an epsilon-DP call: ``1/(e^epsilon + 1)`` ([CL23] Lemma 2.3;
    docs/guarantee.md, "Lemma (NotPrior)")."""
    check_positive("epsilon", epsilon)
    a = math.exp(-epsilon)
    return a / (1 + a)


@functools.lru_cache(maxsize=8)
def upper_tail_integers(epsilon: float) -> tuple[int, ...]:
    """``floor(2^128 * Pr[Z >= m])`` for m = 1, 2, ... until it reaches 0 (which is the last entry, left out).

    By symmetry ``Pr[Z <= -m]`` takes the same integers, so a uniform 128-bit integer is inverted without error beyond
    one unit of 2^-128 for each threshold.
    """
    check_range("epsilon per query", epsilon, MIN_EPSILON, MAX_EPSILON)
    a = _ratio_integer(epsilon, 1)
    return tuple(_geometric_integers(a * _ONE // (_ONE + a), a))


@functools.lru_cache(maxsize=8)
def wide_tail_integers(epsilon: float) -> WideTails:
    """The tables for noise that is too wide for one table; exact like `upper_tail_integers`."""
    check_range("epsilon of wide noise", epsilon, MIN_WIDE_EPSILON, MAX_EPSILON)
    stride = math.ceil(math.sqrt(89 / epsilon))
    a, a_stride = _ratio_integer(epsilon, 1), _ratio_integer(epsilon, stride)
    powers = itertools.accumulate(range(stride - 1), lambda power, _: power * a >> _GUARDED_BITS, initial=a)
    fine = tuple(
        (power - a_stride) * _ONE // (_ONE - a_stride) >> _GUARD_BITS for power in itertools.islice(powers, stride - 1)
    )
    return WideTails(
        stride, a * _ONE // (_ONE + a) >> _GUARD_BITS, tuple(_geometric_integers(a_stride, a_stride)), fine
    )


def _ratio_integer(epsilon: float, power: int) -> int:
    """``floor(exp(-epsilon * power) * 2^288)``."""
    context = decimal.Context(prec=110, Emin=-10_000, Emax=10_000)
    # The float epsilon, exactly.
    ratio = context.exp(context.multiply(decimal.Decimal(-epsilon), decimal.Decimal(power)))
    return int(context.multiply(ratio, decimal.Decimal(_ONE)))


def _geometric_integers(first: int, ratio: int) -> Iterator[int]:
    """``first * ratio^k`` in units of 2^-128, until it reaches 0."""
    while (entry := first >> _GUARD_BITS) > 0:
        yield entry
        first = first * ratio >> _GUARDED_BITS


def sampling_total_variation(epsilon: float) -> float:
    """Bound on the distance of one draw, in one or in two stages, from the exact distribution.

    Each of the at most 2 M + 1 thresholds is off by at most one unit of 2^-128, in the direct draw and again in the
    conditioned one; M < 129 ln(2) / epsilon. Far below 2^-100 for every allowed epsilon. Wide noise has fewer
    thresholds, so the bound holds for it too.
    """
    thresholds = 2 * math.ceil(129 * math.log(2) / epsilon) + 1
    return 2 * thresholds * 2.0**-UNIFORM_BITS


def empty_items_total_variation(public_item_count: int) -> float:
    """Bound on the distance of one window's draw of items that nobody holds from independent coins.

    The probability of a coin is off by at most two units of 2^-128, and so is, by one, each entry of the table that
    their number is looked up in. Which items they are is drawn exactly.
    """
    return (3 * public_item_count + 2) * 2.0**-UNIFORM_BITS


def capped_sum_upper_tail(margin: int, *, wide_epsilon: float, narrow_epsilon: float, cap: int) -> float:
    """``Pr[W + min(V, cap) >= margin]``, rounded up by a few units in the last place.

    W and V are independent, discrete Laplace with wide_epsilon and narrow_epsilon: the noises of [KMS21] Algorithm 3.
    """
    tail = float(_capped_sum_tail(margin, wide_epsilon, narrow_epsilon, cap)) * (1 + 1e-12)
    return min(1.0, math.nextafter(tail, math.inf))


def capped_sum_tail_integer(margin: int, *, wide_epsilon: float, narrow_epsilon: float, cap: int) -> int:
    """``floor(2^128 * Pr[W + min(V, cap) >= margin])``, off by at most one unit: more digits than a float can hold."""
    tail = _capped_sum_tail(margin, wide_epsilon, narrow_epsilon, cap)
    return min(1 << UNIFORM_BITS, int(_TAIL_CONTEXT.multiply(tail, decimal.Decimal(1 << UNIFORM_BITS))))


_TAIL_CONTEXT = decimal.Context(prec=120, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
_ZERO = decimal.Decimal(0)


def _capped_sum_tail(margin: int, wide_epsilon: float, narrow_epsilon: float, cap: int) -> decimal.Decimal:
    """The sum of ``Pr[V = v] Pr[W >= margin - v]`` over v < cap, and ``Pr[V >= cap] Pr[W >= margin - cap]``.

    With a and b the ratios of W and V, each summand is a product of powers of a and b, or of 1 minus a power of a:
    a few geometric series, by the signs of v and of margin - v. Nothing cancels that matters at 120 digits.
    """
    for epsilon in (wide_epsilon, narrow_epsilon):
        check_range("epsilon of a noise", epsilon, MIN_WIDE_EPSILON, MAX_EPSILON)
    check_whole("cap", cap, 0)
    with decimal.localcontext(_TAIL_CONTEXT):
        ln_a, ln_b = decimal.Decimal(-wide_epsilon), decimal.Decimal(-narrow_epsilon)  # the floats, exactly
        wide_share = 1 / (1 + ln_a.exp())
        narrow_share = (1 - ln_b.exp()) / (1 + ln_b.exp())
        # v < 0 and v <= margin: b^-v a^(margin - v), downward from the largest such v.
        start = min(margin, -1)
        far = _geometric_sum(ln_b * -start + ln_a * (margin - start), ln_a + ln_b, None)
        # 0 <= v <= margin, v < cap: b^v a^(margin - v).
        far += _geometric_sum(ln_a * margin, ln_b - ln_a, min(margin, cap - 1) + 1)
        # margin < v < 0: b^-v (1 - a^(1 - margin + v) / (1 + a)), upward from margin + 1.
        sure = _geometric_sum(ln_b * (-margin - 1), -ln_b, -1 - margin)
        far -= _geometric_sum(ln_b * (-margin - 1) + ln_a * 2, ln_a - ln_b, -1 - margin)
        # margin < v, 0 <= v < cap: b^v (1 - a^(1 - margin + v) / (1 + a)).
        start = max(0, margin + 1)
        sure += _geometric_sum(ln_b * start, ln_b, cap - start)
        far -= _geometric_sum(ln_b * start + ln_a * (1 - margin + start), ln_a + ln_b, cap - start)
        left = margin - cap
        at_cap = (ln_a * left).exp() * wide_share if left >= 0 else 1 - (ln_a * (1 - left)).exp() * wide_share
        return narrow_share * (sure + wide_share * far) + (ln_b * cap).exp() / (1 + ln_b.exp()) * at_cap


def _geometric_sum(ln_first: decimal.Decimal, ln_ratio: decimal.Decimal, terms: int | None) -> decimal.Decimal:
    """The sum of the first terms (None: of all) of a geometric series; in the current decimal context."""
    if terms is not None and terms <= 0:
        return _ZERO
    if ln_ratio == 0:
        assert terms is not None
        return ln_first.exp() * terms
    rest = _ZERO if terms is None else (ln_ratio * terms).exp()
    return ln_first.exp() * (1 - rest) / (1 - ln_ratio.exp())
