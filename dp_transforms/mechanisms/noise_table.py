"""Integer noise from a table of its tails: exact inversion of 128-bit uniforms, in one stage or in two.

Guarantee: a draw has the law of the table up to a total variation of ``(2 reach + 1) 2^-128`` in each stage. How far
the table is from the law that prices are computed for, its maker says (`exponential_power`: together below 2^-100).
Unit: one look. Source: docs/purse.md, section 3.

Stage one asks only whether the noise passes a margin, and is all that most items need: one comparison. Stage two draws
the value given that it passes, for the few that are reported with a level.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.discrete_laplace import Inversion, multiply_high
from dp_transforms.mechanisms.discrete_laplace_law import UNIFORM_BITS
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.randomness import Words

_WHOLE = 1 << UNIFORM_BITS
_UNITS = 2  # of 2^-128: how far the mass of one integer may be from a log-concave one, by rounding of two tails


class NoiseTable:
    """Symmetric log-concave noise Z, as a function of uniforms given by the caller (uint64[n, 2], high and low word).

    upper_tails: ``floor(2^128 Pr[Z >= m])`` for m = 1, 2, ..., not increasing; ``|Z| <= reach``, their number. Z >= m
        exactly when the uniform lies below the tail of m.

    Uniforms come from keyed functions (`randomness.StreamKeys`), and one uniform is used for one stage of one look.

    >>> import secrets
    >>> table = NoiseTable([1 << 126, 1 << 124])  # Pr[Z >= 1] = 1/4, Pr[Z >= 2] = 1/16
    >>> uniforms = np.frombuffer(secrets.token_bytes(1600), dtype=np.uint64).reshape(-1, 2)
    >>> int(abs(table.sample(uniforms)).max())
    2
    """

    def __init__(self, upper_tails: Sequence[int]) -> None:
        _check_tails(upper_tails)
        self.reach = len(upper_tails)
        # The tails of m = reach, reach - 1, ..., 1, 0, -1, ..., 1 - reach: ascending.
        self._table = Inversion([*reversed(upper_tails), *(_WHOLE - tail for tail in upper_tails)])

    def sample(self, uniforms: Words) -> npt.NDArray[np.int64]:
        """Z for each uniform, in one stage. Returns int64[n]."""
        return self.reach - self._table.count_not_above(uniforms)

    def passes(self, uniforms: Words, margins: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """First stage: the bit ``Z >= margin``. margins: int64[n], any. Returns bool[n]."""
        index, possible = self._index(margins)
        high, threshold = uniforms[:, 0], self._table.high[index]
        below = high < threshold
        # A tie of the high word is settled by the low word: once in 2^64 draws, or where a tail is below 2^-64.
        ties = np.flatnonzero(high == threshold)
        below[ties] = uniforms[ties, 1] < self._table.low[index[ties]]
        passed: npt.NDArray[np.bool_] = (below & possible) | (margins <= -self.reach)
        return passed

    def sample_given_pass(self, uniforms: Words, margins: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Second stage: Z given ``Z >= margin``. margins: int64[n], at most `reach`. Returns int64[n].

        The uniform is scaled into ``[0, tail(margin))`` and then inverted. Its tail must not be 0: a look with such a
        margin never passes the first stage.
        """
        index, possible = self._index(margins)
        if not possible.all():
            raise ValueError(
                f"margins must be at most {self.reach}, the largest noise, got {int(margins.max())}. "
                "Draw only for looks that passed the first stage."
            )
        tails = np.stack([self._table.high[index], self._table.low[index]], axis=1)
        certain = margins <= -self.reach
        return self.sample(np.where(certain[:, None], uniforms, multiply_high(uniforms, tails)))

    def _index(self, margins: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Where the tail of each margin is in the table, and whether it is above 0."""
        return self.reach - np.clip(margins, 1 - self.reach, self.reach), margins <= self.reach


def _check_tails(tails: Sequence[int]) -> None:
    if not tails:
        raise ValueError("upper_tails must have at least one entry, got none.")
    masses = [_WHOLE - 2 * tails[0], *map(operator.sub, tails, [*tails[1:], 0])]
    # Of Z = -1, 0, 1, ...: the middle one of three in a row against the others. In C, for some 30,000 of them.
    most = [mass + _UNITS for mass in masses]
    least = [mass - _UNITS if mass > _UNITS else 0 for mass in [masses[1], *masses, 0]]
    concave = map(operator.ge, map(operator.mul, most, most), map(operator.mul, least, least[2:]))
    for value, (here, is_concave) in enumerate(zip(masses, concave, strict=True)):
        if here < 0 or not is_concave:
            raise ValueError(
                f"upper_tails must be those of a symmetric log-concave law, in units of 2^-128; the mass of {value} "
                "is not. Use ExponentialPower(...).upper_tail_integers()."
            )


@functools.lru_cache(maxsize=4)
def noise_table(noise: ExponentialPower) -> NoiseTable:
    """The table of this law; it is made once a process, in about a second for a scale of 10,000."""
    return NoiseTable(noise.upper_tail_integers())
