"""The law of the noise of contributions: a density ``exp(-|x / scale|^shape)``, rounded to integers. Prices are
computed for it, and noise is sampled from it.

``Z = round(X)``: ``Pr[Z >= m] = Pr[X >= m - 1/2]`` for every integer m. Shape 1 is Laplace noise, 2 Gaussian; a larger
one has lighter tails. Z is symmetric and log-concave. Since X has a continuous law, prices depend on ``weight / scale``
only, but for the spacing of the integers, and can only fall by it. Source: docs/proofs.md, "Prices: facts and
certificate".

Two forms of one law: logarithms of tails as floats, with a stated error, for prices; tails as exact 128-bit integers,
for what is sampled.
"""

from __future__ import annotations

import dataclasses
import decimal
import functools
import itertools
import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import UNIFORM_BITS, WholeNoise
from dp_transforms.checks import check_range, check_whole

MIN_SHAPE, MAX_SHAPE = 1.0, 4.0  # the error bound of the exact tables is for these
MAX_SCALE = 100_000  # a table has up to 89 entries for each unit of scale at shape 1, 9.5 at shape 2
LOG_TAIL_ERROR = 1e-13  # of `log_upper_tail`, times max(1, |logarithm|); against 50 digits it is less than 4e-15
_NEAR_EXPONENT = 1.5  # up to it a series, of so many terms, and from there on a continued fraction
_SERIES_TERMS = 26
_BITS = 208  # of fixed-point numbers: 80 beyond the 128 that are kept
_ONE = 1 << _BITS
_TERMS = 44  # of each Taylor series: see `_tail_integrals`
_NEAR = 128  # below scale / 128 the series of exp in powers of (x/s)^p is used
_DIGITS = decimal.Context(prec=90, Emin=-100_000, Emax=100_000)

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class ExponentialPower(WholeNoise):
    """The law of Z. shape: in [1, 4]. scale: in integers, 1 .. 100,000. All masses are those of the infinite law.

    >>> noise = ExponentialPower(shape=2.0, scale=100)
    >>> f"{noise.standard_deviation:.2f}, {noise.upper_tail(200):.5f}, {noise.smallest_margin(0.05)}"
    '70.71, 0.00239, 117'
    """

    shape: float
    scale: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_range("shape", self.shape, MIN_SHAPE, MAX_SHAPE))
        object.__setattr__(self, "scale", check_whole("scale", self.scale, 1, MAX_SCALE))

    @property
    def standard_deviation(self) -> float:
        """Of X, in integers."""
        return self.scale * math.exp((math.lgamma(3 / self.shape) - math.lgamma(1 / self.shape)) / 2)

    def log_upper_tail(self, margins: npt.NDArray[np.int64]) -> Floats:
        """``ln Pr[Z >= m]``, within ``LOG_TAIL_ERROR * max(1, |value|)``. margins: int64[n]. Returns float64[n]."""
        return self.log_tails_at((margins - 0.5) / self.scale)[0]

    def log_tails_at(self, points: Floats) -> tuple[Floats, Floats]:
        """``ln Pr[X >= point * scale]`` and ``ln Pr[X <= point * scale]``, alike. points: float64[...]."""
        smaller = _log_upper_tail(self.shape, np.abs(points))
        larger = np.log1p(-np.exp(smaller))
        return np.where(points >= 0, smaller, larger), np.where(points <= 0, smaller, larger)

    def upper_tail(self, margin: int) -> float:
        """``Pr[Z >= margin]``, rounded up."""
        log_tail = float(self.log_upper_tail(np.array([margin]))[0])
        error = 2 * LOG_TAIL_ERROR * max(1.0, -log_tail)  # twice: for exp too
        return min(1.0, math.nextafter(math.exp(log_tail + error), math.inf))

    def hazard_bounds(self, margins: Any) -> tuple[Any, Any]:
        """Bounds, below and above, on density / upper tail of X at ``margin - 1/2 > 0``, for each unit of scale; of one
        margin or of an array.

        ``p y^(p-1) <= H(y) <= p y^(p-1) + (p-1)/y`` for ``y = (margin - 1/2) / scale`` (docs/proofs.md, "Prices:
        facts and certificate").
        """
        at = (margins - 0.5) / self.scale
        low = self.shape * at ** (self.shape - 1)
        return low * (1 - 1e-12), (low + (self.shape - 1) / at) * (1 + 1e-12)

    @functools.lru_cache(maxsize=4)  # noqa: B019 - a few laws are used in a process
    def upper_tail_integers(self) -> tuple[int, ...]:
        """``floor(2^128 Pr[Z >= m])`` for m = 1, 2, ... until it is 0, which is left out; within one unit of 2^-128."""
        first, *further = _tail_integrals(self.shape, self.scale)
        tails = ((integral << UNIFORM_BITS) // (2 * first) for integral in further)
        return tuple(tail for tail in tails if tail > 0)

    @property
    def sampling_total_variation(self) -> float:
        """Bound on the distance of one draw from the table, in one or in two stages, from this law.

        Each of the ``2 reach`` thresholds is off by at most two units of 2^-128, in the direct draw and again in the
        conditioned one; beyond the reach is less than one unit. ``reach < scale * 89^(1/shape) + 2``.
        """
        reach = math.ceil(self.scale * 89.0 ** (1 / self.shape)) + 2
        return math.ldexp(8.0 * reach + 4, -UNIFORM_BITS)


def _log_upper_tail(shape: float, at: Floats) -> Floats:
    """``ln Pr[X >= at]`` of scale 1: ``ln(Gamma(a, y) / Gamma(a) / 2)``, a = 1/p, y = at^p. at: float64[...], >= 0.

    Near 0 by the series of the rest, ``at e^-y / Gamma(a + 1) (1 + y/(a+1) + y^2/((a+1)(a+2)) + ...)`` (DLMF 8.7.1),
    all of whose terms are positive; then by Legendre's continued fraction (DLMF 8.9.2), with as many terms as are
    needed, whose error goes as ``e^(-4 sqrt(terms y))``.
    """
    order, exponent = 1 / shape, at**shape
    found = np.empty_like(exponent)
    if np.any(near := exponent < _NEAR_EXPONENT):
        y = exponent[near]
        total = np.ones_like(y)
        for term in range(_SERIES_TERMS, 0, -1):  # from its end
            total = 1 + total * y / (order + term)
        found[near] = np.log1p(-at[near] * np.exp(-y) * total / math.gamma(1 + order))
    for low, high in itertools.pairwise((_NEAR_EXPONENT, 5.0, 20.0, 100.0, math.inf)):
        if not np.any(band := (low <= exponent) & (exponent < high)):
            continue
        y = exponent[band]
        rest, base = np.zeros_like(y), y + (1 - order)
        for term in range(4 + math.ceil(100 / low), 0, -1):
            rest = term * (term - order) / (base + 2 * term - rest)
        found[band] = -y + np.log(at[band] / (base - rest)) - math.lgamma(order)
    return found - math.log(2)


def _tail_integrals(shape: float, scale: int) -> list[int]:
    """The integrals of ``exp(-(x/s)^p) dx/s`` from 0, 1/2, 3/2, 5/2, ... on, in units of 2^-208, until below 2^-150.

    From the far end inward, by Taylor series about centres c, each for ``|x - c| <= H`` with ``32 H <= c`` and
    ``4 p (c/s)^(p-1) H <= s``. On the circle of radius 16 H the exponent moves by at most ``4 * 1.5^(p-1) <= 13.5``, so
    term k of the series is at most ``e^13.5 * 16^-k`` (Cauchy), and what 44 terms leave out is below 2^-150 together.
    Near 0, where the exponent has no Taylor series in x, the series of exp in powers of ``(x/s)^p``.
    """
    far = math.ceil(scale * Fraction(115.0 ** (1 / shape)))  # beyond it lies less than e^-115 < 2^-165
    near = Fraction(scale, _NEAR)
    margin = far  # the largest point up to there is margin - 1/2
    integrals = [0] * (margin + 1)
    upper, beyond = Fraction(far), 0
    while upper > near:
        steepness = 4 * shape * max(1.0, float(upper / scale)) ** (shape - 1)
        half = _rounded_down(min(upper / 33, scale / Fraction(steepness)))
        centre = upper - half
        series = _trimmed(_integral_series(shape, centre / scale, half / scale))
        at_upper = _horner(series, _ONE)
        last = max(1, math.ceil(centre - half + Fraction(1, 2)))  # the least margin of this piece
        # In units of 2^-208: the series is in v = (margin - 1/2 - centre) / half.
        step, at = (math.floor(v * _ONE) for v in (1 / half, (margin - Fraction(1, 2) - centre) / half))
        while margin >= last:
            integrals[margin] = beyond + at_upper - _horner(series, at)
            margin, at = margin - 1, at - step
        beyond += at_upper - _horner(series, -_ONE)
        upper = centre - half
    at_upper = _integral_from_zero(shape, upper / scale)
    for rest in range(1, margin + 1):
        integrals[rest] = beyond + at_upper - _integral_from_zero(shape, Fraction(2 * rest - 1, 2 * scale))
    integrals[0] = beyond + at_upper
    return integrals


def _rounded_down(value: Fraction) -> Fraction:
    """To 20 bits after its first one, so that sums of such numbers stay short."""
    bits = max(0, 20 + value.denominator.bit_length() - value.numerator.bit_length())
    return Fraction((value.numerator << bits) // value.denominator, 1 << bits)


def _trimmed(series: list[int]) -> list[int]:
    """Without its last coefficients, where these are at most 2^-165 together: some hundred pieces leave out 2^-156."""
    left = 1 << (_BITS - 165)
    degree = len(series) - 1
    while degree > 1 and abs(series[degree]) <= left:
        left -= abs(series[degree])
        degree -= 1
    return series[: degree + 1]


def _integral_series(shape: float, centre: Fraction, half: Fraction) -> list[int]:
    """Coefficients in v, in units of 2^-208, of an integral of ``exp(-x^p)`` at ``x = centre + half v``, 0 at v = 0."""
    power_of_centre = _power(centre, shape)
    binomial = _fixed(power_of_centre)
    ratio, power = half / centre, Fraction(shape)
    divisor = ratio.denominator * power.denominator
    moves = [0]  # of the exponent: its series, times k
    for k in range(1, _TERMS):
        binomial = binomial * (power.numerator - (k - 1) * power.denominator) * ratio.numerator // (k * divisor)
        moves.append(k * binomial)
    density = [_fixed(_DIGITS.exp(_DIGITS.minus(power_of_centre)))]
    for k in range(1, _TERMS):
        density.append(-sum(map(operator.mul, moves[1 : k + 1], reversed(density))) // (k << _BITS))
    return [0, *(entry * half.numerator // (half.denominator * (k + 1)) for k, entry in enumerate(density))]


def _integral_from_zero(shape: float, upper: Fraction) -> int:
    """The integral of ``exp(-x^p)`` from 0 to upper <= 1/128 or little more, in units of 2^-208."""
    exponent = _fixed(_power(upper, shape))
    power = Fraction(shape)
    total, term, k = 0, _ONE, 0
    while term:
        slope = power * k + 1
        total += (-1) ** k * (term * slope.denominator // slope.numerator)
        k += 1
        term = (term * exponent >> _BITS) // k
    return total * upper.numerator // upper.denominator


def _horner(series: list[int], at: int) -> int:
    """All in units of 2^-208; off by less than one for each coefficient."""
    value = 0
    for coefficient in reversed(series):
        value = (value * at >> _BITS) + coefficient
    return value


def _power(base: Fraction, exponent: float) -> decimal.Decimal:
    """``base ** exponent`` to 88 digits; the float exponent, exactly."""
    quotient = _DIGITS.divide(decimal.Decimal(base.numerator), decimal.Decimal(base.denominator))
    return _DIGITS.power(quotient, decimal.Decimal(exponent)) if quotient else decimal.Decimal(0)


def _fixed(value: decimal.Decimal) -> int:
    return int(_DIGITS.multiply(value, decimal.Decimal(_ONE)))
