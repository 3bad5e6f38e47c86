"""The draws of a noise table without the table: from bounds of its tails in floats, which are made ten times as fast.

Guarantee: each draw is that of the `NoiseTable` of the law, bit for bit. A tail is known to lie between two floats.
Where these decide a comparison, the exact tail decides it alike. Where they leave a doubt, the table is made after all,
and decides: about once in ten million draws at a scale of 10,000. The bounds hold by the stated error of
`ExponentialPower.log_upper_tail`, on which the prices rest too; the table is off the law by at most two units of 2^-128
(`ExponentialPower.upper_tail_integers`).
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.exponential_power import LOG_TAIL_ERROR, ExponentialPower
from dp_transforms.mechanisms.noise_table import NoiseTable, noise_table
from dp_transforms.mechanisms.randomness import Words

_SMALLEST_LOG = -80 * math.log(2)  # of a tail that is bounded here; beyond it the table decides
_ROUNDING = 2.0**-49  # relative: 16 float operations
_UNITS = 2.0**-124  # absolute: 16 units of the table, for its rounding and that of a product of two integers
_NEAR_ONE = 2.0**-51  # absolute: rounding of 1 - tail
_ALL_BITS = np.uint64(2**64 - 1)

Whole = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


class NoiseBounds:
    """`sample`, `passes` and `sample_given_pass` of the `NoiseTable` of this law, and the same arguments and errors.

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
        low, high = tails * (1 - error) - _UNITS, tails * (1 + error) + _UNITS
        # Of m = last, ..., 1, 0, -1, ..., 1 - last, by Pr[Z >= m] = 1 - Pr[Z >= 1 - m]: ascending.
        low, high = np.append(low[::-1], 1 - high - _NEAR_ONE), np.append(high[::-1], 1 - low + _NEAR_ONE)
        # Since tails ascend, so may their bounds.
        self._low: Floats = np.maximum.accumulate(low)
        self._high: Floats = np.minimum.accumulate(high[::-1])[::-1]
        self._low_words, self._high_words = _words_below(self._low), _words_above(self._high)

    @property
    def table(self) -> NoiseTable:
        """The exact one, made when this is first read."""
        return noise_table(self._noise)

    def sample(self, uniforms: Words) -> Whole:
        """As `NoiseTable.sample`. Returns int64[n]."""
        below, above = _bounds_of_uniforms(uniforms)
        values, is_sure = self._inverted(below, above)
        doubtful = np.flatnonzero(~is_sure)
        if len(doubtful):
            values[doubtful] = self.table.sample(uniforms[doubtful])
        return values

    def passes(self, uniforms: Words, margins: Whole) -> Bits:
        """As `NoiseTable.passes`. margins: int64[n], any. Returns bool[n]."""
        index, word = self._index(margins), uniforms[:, 0]
        # What is above the last tail is above all further ones; so on the other side.
        passed: Bits = (word < self._low_words[index]) & (margins <= self._last)
        fails = (word > self._high_words[index]) & (margins > -self._last)
        doubtful = np.flatnonzero(~(passed | fails))
        if len(doubtful):
            passed[doubtful] = self.table.passes(uniforms[doubtful], margins[doubtful])
        return passed

    def sample_given_pass(self, uniforms: Words, margins: Whole) -> Whole:
        """As `NoiseTable.sample_given_pass`. margins: int64[n], at most the table's reach. Returns int64[n]."""
        index = self._index(margins)
        high = np.where(margins > -self._last, self._high[index], 1.0)
        below, above = _bounds_of_uniforms(uniforms)
        values, is_sure = self._inverted(
            below * self._low[index] * (1 - _ROUNDING) - _UNITS, above * high * (1 + _ROUNDING) + _UNITS
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


def _words_below(tails: Floats) -> npt.NDArray[np.uint64]:
    """A high word that is at most that of ``2^128 tail``, and 2^64 - 1 at most. tails: below 1 + 2^-50."""
    words = np.floor(np.clip(tails, 0.0, 1 - 2.0**-53) * 2.0**64)
    return words.astype(np.uint64)


def _words_above(tails: Floats) -> npt.NDArray[np.uint64]:
    """A high word that is at least that of ``2^128 tail``."""
    near_one = tails >= 1 - 2.0**-52
    words = np.ceil(np.where(near_one, 0.0, np.maximum(tails, 0.0)) * 2.0**64).astype(np.uint64)
    return np.where(near_one, _ALL_BITS, words)


@functools.lru_cache(maxsize=4)
def noise_bounds(noise: ExponentialPower) -> NoiseBounds:
    """The bounds of this law, made once a process."""
    return NoiseBounds(noise)
