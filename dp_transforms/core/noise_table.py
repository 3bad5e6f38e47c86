"""Integer noise from a table of its tails: exact inversion of 128-bit uniforms, in one stage, in two, or wide.

Guarantee: a draw has the law of the table up to a total variation of ``(2 reach + 1) 2^-128`` in each stage. How far
the table is from the law that prices are computed for, its maker says: `discrete_laplace_law`, whose noise hits are
charged for, or `exponential_power`, where users pay for contributions: there together below 2^-100. Unit: one test.
Source: docs/guarantee.md, "The mechanism of hits" and "The noise of contributions".

Stage one asks only whether the noise passes a margin, and is all that most items need: one comparison. Stage two draws
the value given that it passes, for the few that are reported with a level or a count.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import UNIFORM_BITS, upper_tail_integers, wide_tail_integers
from dp_transforms.accounting.exponential_power import LOG_TAIL_ERROR, ExponentialPower
from dp_transforms.core.randomness import Words

_WORD = 1 << 64
_LOW_HALF = np.uint64(0xFFFF_FFFF)
_HALF_BITS = np.uint64(32)
_WHOLE = 1 << UNIFORM_BITS
_SMALLEST_LOG = -80 * math.log(2)  # of a tail that is bounded here; beyond it the table decides
_ROUNDING = 2.0**-49  # relative: 16 float operations
_TAIL_UNITS = 2.0**-124  # absolute: 16 units of the table, for its rounding and that of a product of two integers
_NEAR_ONE = 2.0**-51  # absolute: rounding of 1 - tail
Whole = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


class Inversion:
    """Counts the thresholds of a table that are at most a uniform 128-bit integer. Every table is inverted with it."""

    def __init__(self, ascending: Sequence[int]) -> None:
        self._ascending = ascending
        words = b"".join([threshold.to_bytes(16, "little") for threshold in ascending])
        self.low, self.high = np.ascontiguousarray(np.frombuffer(words, dtype="<u8").reshape(-1, 2).T)

    def __len__(self) -> int:
        return len(self._ascending)

    def count_not_above(self, uniforms: Words) -> npt.NDArray[np.int64]:
        """How many thresholds are at most the uniform. uniforms: uint64[n, 2]. Returns int64[n]."""
        high, low = uniforms[:, 0], uniforms[:, 1]
        not_above = np.searchsorted(self.high, high, side="right")  # thresholds whose high word is <= the uniform's
        # A tie of the high word is settled by the low word: once in 2^64 / len draws, so one at a time.
        for row in np.flatnonzero(self.high[np.maximum(not_above, 1) - 1] == high):
            not_above[row] = bisect.bisect_right(self._ascending, int(high[row]) * _WORD + int(low[row]))
        return not_above.astype(np.int64)


class NoiseTable:
    """Symmetric noise Z, as a function of uniforms given by the caller (uint64[n, 2], high and low word).

    upper_tails: ``floor(2^128 Pr[Z >= m])`` for m = 1, 2, ..., not increasing; ``|Z| <= reach``, their number. Z >= m
        exactly when the uniform lies below the tail of m.

    Uniforms come from keyed functions (`randomness.StreamKeys`), and one uniform is used for one stage of one draw.

    >>> import secrets
    >>> table = NoiseTable([1 << 126, 1 << 124])  # Pr[Z >= 1] = 1/4, Pr[Z >= 2] = 1/16
    >>> uniforms = np.frombuffer(secrets.token_bytes(1600), dtype=np.uint64).reshape(-1, 2)
    >>> int(abs(table.sample(uniforms)).max())
    2
    """

    def __init__(self, upper_tails: Sequence[int]) -> None:
        self.reach = len(upper_tails)
        # The tails of m = reach, reach - 1, ..., 1, 0, -1, ..., 1 - reach: ascending.
        self._table = Inversion([*reversed(upper_tails), *(_WHOLE - tail for tail in upper_tails)])

    def sample(self, uniforms: Words) -> Whole:
        """Z for each uniform, in one stage. Returns int64[n]."""
        return self.reach - self._table.count_not_above(uniforms)

    def passes(self, uniforms: Words, margins: Whole) -> Bits:
        """First stage: the bit ``Z >= margin``. margins: int64[n], any. Returns bool[n]."""
        index, possible = self._index(margins)
        high, threshold = uniforms[:, 0], self._table.high[index]
        below = high < threshold
        # A tie of the high word is settled by the low word: once in 2^64 draws, or where a tail is below 2^-64.
        ties = np.flatnonzero(high == threshold)
        below[ties] = uniforms[ties, 1] < self._table.low[index[ties]]
        passed: Bits = (below & possible) | (margins <= -self.reach)
        return passed

    def sample_given_pass(self, uniforms: Words, margins: Whole) -> Whole:
        """Second stage: Z given ``Z >= margin``. margins: int64[n], at most `reach`. Returns int64[n].

        The uniform is scaled into ``[0, tail(margin))`` and then inverted. Its tail must not be 0: a test with such a
        margin never passes the first stage.
        """
        index, possible = self._index(margins)
        if not possible.all():
            raise ValueError(
                f"margins must be at most {self.reach}, the largest noise, got {int(margins.max())}. "
                "Draw only for tests that passed the first stage."
            )
        tails = np.stack([self._table.high[index], self._table.low[index]], axis=1)
        certain = margins <= -self.reach
        return self.sample(np.where(certain[:, None], uniforms, multiply_high(uniforms, tails)))

    def _index(self, margins: Whole) -> tuple[Whole, Bits]:
        """Where the tail of each margin is in the table, and whether it is above 0."""
        return self.reach - np.clip(margins, 1 - self.reach, self.reach), margins <= self.reach


@functools.lru_cache(maxsize=8)
def discrete_laplace(epsilon: float) -> NoiseTable:
    """The noise of scale ``1 / epsilon`` where users pay for hits; its table is made once a process.

    Guarantee: adding it to a count that one user changes by at most 1 is epsilon-DP, up to the total variation that
    `discrete_laplace_law.sampling_total_variation` bounds (below 2^-100 a draw).
    """
    return NoiseTable(upper_tail_integers(epsilon))


@functools.lru_cache(maxsize=4)
def noise_table(noise: ExponentialPower) -> NoiseTable:
    """The noise of this law, where users pay for contributions; its table is made once a process, in about a second for
    a scale of 10,000 (`NoiseBounds` spares it)."""
    return NoiseTable(noise.upper_tail_integers())


class WideDiscreteLaplace:
    """The same distribution for scales at which one table would be too long: three uniforms, two short tables.

    Exact in the same sense: a sign, and the two independent digits of a geometric magnitude (`WideTails`).
    """

    UNIFORMS = 3  # for one draw

    def __init__(self, epsilon: float) -> None:
        tails = wide_tail_integers(epsilon)
        self._stride = tails.stride
        self._sign = Inversion([tails.nonzero, (1 << UNIFORM_BITS) - tails.nonzero])
        self._coarse = Inversion(tails.coarse[::-1])
        self._fine = Inversion(tails.fine[::-1])

    def sample(self, uniforms: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """uniforms: uint64[n, 3, 2]. Returns int64[n]."""
        sign = 1 - self._sign.count_not_above(uniforms[:, 0])
        coarse = len(self._coarse) - self._coarse.count_not_above(uniforms[:, 1])
        fine = len(self._fine) - self._fine.count_not_above(uniforms[:, 2])
        return np.asarray(sign * (1 + coarse * self._stride + fine))


wide_discrete_laplace = functools.lru_cache(maxsize=8)(WideDiscreteLaplace)  # whose tables are made once a process


def multiply_high(a: Words, b: Words) -> Words:
    """``floor(a * b / 2^128)`` of 128-bit integers. a, b: uint64[n, 2]. Returns uint64[n, 2]."""
    a_limbs = [a[:, 1] & _LOW_HALF, a[:, 1] >> _HALF_BITS, a[:, 0] & _LOW_HALF, a[:, 0] >> _HALF_BITS]
    b_limbs = [b[:, 1] & _LOW_HALF, b[:, 1] >> _HALF_BITS, b[:, 0] & _LOW_HALF, b[:, 0] >> _HALF_BITS]
    limbs = [np.zeros(len(a), dtype=np.uint64) for _ in range(8)]
    for i, a_limb in enumerate(a_limbs):  # schoolbook; limb + product + carry < 2^64
        carry = np.zeros(len(a), dtype=np.uint64)
        for j, b_limb in enumerate(b_limbs):
            total = limbs[i + j] + a_limb * b_limb + carry
            limbs[i + j] = total & _LOW_HALF
            carry = total >> _HALF_BITS
        limbs[i + 4] = carry
    return np.stack([(limbs[7] << _HALF_BITS) | limbs[6], (limbs[5] << _HALF_BITS) | limbs[4]], axis=1)


class NoiseBounds:
    """The draws of the `NoiseTable` of this law without the table: from bounds of its tails in floats, which are made
    ten times as fast. The same functions, arguments and errors.

    Guarantee: each draw is that of the table, bit for bit. A tail is known to lie between two floats. Where these
    decide a comparison, the exact tail decides it alike. Where they leave a doubt, the table is made after all, and
    decides: about once in ten million draws at a scale of 10,000. The bounds hold by the stated error of
    `ExponentialPower.log_upper_tail`, on which the prices rest too; the table is off the law by at most two units of
    2^-128 (`ExponentialPower.upper_tail_integers`).

    >>> import secrets
    >>> law = ExponentialPower(2.0, 100)
    >>> uniforms = np.frombuffer(secrets.token_bytes(1600), dtype=np.uint64).reshape(-1, 2)
    >>> bool((NoiseBounds(law).sample(uniforms) == noise_table(law).sample(uniforms)).all())
    True
    """

    def __init__(self, noise: ExponentialPower) -> None:
        self._noise = noise
        self._last = noise.smallest_margin(math.exp(_SMALLEST_LOG))  # bounded: the tails of 1 - last .. last
        logs = noise.log_upper_tail(np.arange(1, self._last + 1))
        tails, error = np.exp(logs), 2 * LOG_TAIL_ERROR * np.maximum(1.0, -logs) + _ROUNDING  # twice: for exp too
        low, high = tails * (1 - error) - _TAIL_UNITS, tails * (1 + error) + _TAIL_UNITS
        # Of m = last, ..., 1, 0, -1, ..., 1 - last, by Pr[Z >= m] = 1 - Pr[Z >= 1 - m]: ascending.
        low, high = np.append(low[::-1], 1 - high - _NEAR_ONE), np.append(high[::-1], 1 - low + _NEAR_ONE)
        # Since tails ascend, so may their bounds.
        self._low: Floats = np.maximum.accumulate(low)
        self._high: Floats = np.minimum.accumulate(high[::-1])[::-1]

    @property
    def table(self) -> NoiseTable:
        """The exact one, made when this is first read."""
        return noise_table(self._noise)

    def sample(self, uniforms: Words) -> Whole:
        """As `NoiseTable.sample`. Returns int64[n]."""
        values, is_sure = self._inverted(*_bounds_of_uniforms(uniforms))
        doubtful = np.flatnonzero(~is_sure)
        if len(doubtful):
            values[doubtful] = self.table.sample(uniforms[doubtful])
        return values

    def passes(self, uniforms: Words, margins: Whole) -> Bits:
        """As `NoiseTable.passes`. margins: int64[n], any. Returns bool[n]."""
        index, (below, above) = self._index(margins), _bounds_of_uniforms(uniforms)
        # What is above the last tail is above all further ones; so on the other side.
        passed: Bits = (above < self._low[index]) & (margins <= self._last)
        fails = (below >= self._high[index]) & (margins > -self._last)
        doubtful = np.flatnonzero(~(passed | fails))
        if len(doubtful):
            passed[doubtful] = self.table.passes(uniforms[doubtful], margins[doubtful])
        return passed

    def sample_given_pass(self, uniforms: Words, margins: Whole) -> Whole:
        """As `NoiseTable.sample_given_pass`. margins: int64[n], at most the table's reach. Returns int64[n]."""
        index, (below, above) = self._index(margins), _bounds_of_uniforms(uniforms)
        high = np.where(margins > -self._last, self._high[index], 1.0)
        values, is_sure = self._inverted(
            below * self._low[index] * (1 - _ROUNDING) - _TAIL_UNITS, above * high * (1 + _ROUNDING) + _TAIL_UNITS
        )
        doubtful = np.flatnonzero(~is_sure | (margins > self._last))
        if len(doubtful):
            values[doubtful] = self.table.sample_given_pass(uniforms[doubtful], margins[doubtful])
        return values

    def _inverted(self, below: Floats, above: Floats) -> tuple[Whole, Bits]:
        """Z for a uniform between these bounds, and whether it is sure: all tails but those of `Z` and less are at most
        the uniform."""
        most = np.searchsorted(self._low, above, side="right")
        least = np.searchsorted(self._high, below, side="right")
        is_sure = (most == least) & (least > 0) & (most < len(self._low))
        return self._last - least.astype(np.int64), is_sure

    def _index(self, margins: Whole) -> Whole:
        """Where the bounds of each margin are, or of the nearest one that has some."""
        return self._last - np.clip(margins, 1 - self._last, self._last)


def _bounds_of_uniforms(uniforms: Words) -> tuple[Floats, Floats]:
    values = uniforms[:, 0] * 2.0**-64 + uniforms[:, 1] * 2.0**-128
    return values * (1 - _ROUNDING), values * (1 + _ROUNDING)


noise_bounds = functools.lru_cache(maxsize=8)(NoiseBounds)  # made once a process
