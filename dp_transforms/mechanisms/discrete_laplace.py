"""Draws discrete Laplace noise: exact inversion of 128-bit uniform integers, directly or in two stages.

The law itself, with the tables that are inverted here, is `dp_transforms.mechanisms.discrete_laplace_law`.

Guarantee: adding the value to a count that one user changes by at most 1 is epsilon-DP, up to the total variation that
`discrete_laplace_law.sampling_total_variation` bounds (below 2^-100 a draw). Unit: one query. Source:
docs/guarantee.md, sections 1, 5.4 and 6.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.discrete_laplace_law import UNIFORM_BITS, upper_tail_integers, wide_tail_integers
from dp_transforms.mechanisms.randomness import Words

_WORD = 1 << 64
_LOW_HALF = np.uint64(0xFFFF_FFFF)
_HALF_BITS = np.uint64(32)


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


class DiscreteLaplace:
    """Noise Z of scale ``1 / epsilon``, as a function of uniforms given by the caller (uint64[n, 2], high and low
    word).

    Z >= m exactly when the uniform lies below ``tail(m) = floor(2^128 Pr[Z >= m])``; so ``|Z| <= reach``.
    """

    def __init__(self, epsilon: float) -> None:
        tails = upper_tail_integers(epsilon)
        self.reach = len(tails)
        # tail(m) for m = reach, reach - 1, ..., 1, 0, -1, ..., 1 - reach: ascending.
        self._table = Inversion([*reversed(tails), *((1 << UNIFORM_BITS) - tail for tail in tails)])

    def sample(self, uniforms: Words) -> npt.NDArray[np.int64]:
        """Z for each uniform. Returns int64[n]."""
        return self.reach - self._table.count_not_above(uniforms)

    def passes(self, uniforms: Words, margins: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """First stage: the bit ``Z >= margin``. margins: int64[n]. Returns bool[n]."""
        high, low = self._tail_words(margins)
        below = (uniforms[:, 0] < high) | ((uniforms[:, 0] == high) & (uniforms[:, 1] < low))
        passed: npt.NDArray[np.bool_] = (below & (margins <= self.reach)) | (margins <= -self.reach)
        return passed

    def sample_given_pass(self, uniforms: Words, margins: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Second stage: Z from its distribution given ``Z >= margin``. margins: int64[n], at most `reach`. Returns
        int64[n].

        The uniform is first scaled into ``[0, tail(margin))``, then inverted.
        """
        if np.any(margins > self.reach):
            raise ValueError(f"Z >= {int(margins.max())} has probability 0: |Z| is at most {self.reach}.")
        certain = margins <= -self.reach
        high, low = self._tail_words(margins)
        scaled = multiply_high(uniforms, np.stack([high, low], axis=1))
        return self.sample(np.where(certain[:, None], uniforms, scaled))

    def _tail_words(self, margins: npt.NDArray[np.int64]) -> tuple[Words, Words]:
        index = self.reach - np.clip(margins, 1 - self.reach, self.reach)
        return self._table.high[index], self._table.low[index]


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


@functools.lru_cache(maxsize=8)
def discrete_laplace(epsilon: float) -> DiscreteLaplace:
    """The distribution at this epsilon; its table is made once a process."""
    return DiscreteLaplace(epsilon)


@functools.lru_cache(maxsize=8)
def wide_discrete_laplace(epsilon: float) -> WideDiscreteLaplace:
    """The wide form at this epsilon; its tables are made once a process."""
    return WideDiscreteLaplace(epsilon)


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
