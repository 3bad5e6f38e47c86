"""The exponential mechanism over whole scores: one candidate, the likelier the higher its score ([DR14] 3.4)."""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Sequence

from dp_transforms.checks import check_fraction, check_positive, check_whole, is_whole
from dp_transforms.papers.noise_source import NoiseSource

_BITS_BEYOND_COUNT = 128  # of a weight, so that rounding n weights moves the distribution by less than 2^-127
_GUARD_BITS = 16  # so that the errors of two factors stay far below one unit
_STRIDE = 1024
_DECIMAL_DIGITS = 100  # more than any weight has
_LARGEST_COUNT = 2**24


class ExponentialMechanism:
    """Chooses candidate i with probability proportional to ``exp(epsilon score_i / (2 sensitivity_units))``.

    Guarantee: epsilon-DP for one choice, for neighbouring data under which no score differs by more than
    `sensitivity_units` ([DR14] Theorem 3.10), up to a total variation below 2^-127 between what is drawn and that
    distribution. Condition: the candidates, their order and their number do not depend on the data. With probability
    at least 1 - beta the score of the chosen one is above the best score minus `accuracy`. Whether computing the scores
    raises must not depend on the data: an exception would publish something.

    scores: whole numbers, in any unit. monotonic: set it if between neighbours no two scores move in opposite
    directions (votes, where a user adds one): the weights are then ``exp(epsilon score_i / sensitivity_units)``, with
    the same guarantee, since numerator and normalisation move together.

    >>> from dp_transforms.papers.noise_source import SecretNoise
    >>> votes = ExponentialMechanism([40, 950, 10], epsilon=1.0, sensitivity_units=1)
    >>> votes.choose(SecretNoise())
    1
    """

    def __init__(
        self, scores: Sequence[int], epsilon: float, sensitivity_units: int, *, monotonic: bool = False
    ) -> None:
        self._scores = _check_scores(scores)
        self._epsilon = check_positive("epsilon", epsilon)
        self._divisor = check_whole("sensitivity_units", sensitivity_units, 1) * (1 if monotonic else 2)

    @functools.cached_property
    def weights(self) -> list[int]:
        """``floor(2^b exp(-epsilon (best - score_i) / (2 sensitivity_units)))``, for each candidate; 2^b for the best.

        With n candidates b is 128 bits more than n has. Every weight is off by at most 2 units and their sum is at
        least 2^b, so the total variation is below ``2 n / 2^b <= 2^-127``. The data decide the weights: never
        publish them.
        """
        best = max(self._scores)
        bits = _BITS_BEYOND_COUNT + len(self._scores).bit_length()
        context = decimal.Context(prec=_DECIMAL_DIGITS, Emin=-(10**6), Emax=10**6)
        rate = context.divide(decimal.Decimal(-self._epsilon), decimal.Decimal(self._divisor))
        one = decimal.Decimal(1 << (bits + _GUARD_BITS))

        @functools.cache
        def power(gap: int) -> int:
            """``2^(bits + guard bits) exp(rate gap)``, rounded down; 0 where it is below 1."""
            exponent = context.multiply(rate, decimal.Decimal(gap))
            return int(context.multiply(context.exp(exponent), one)) if exponent > -bits - _GUARD_BITS else 0

        # Two digits of the gap: many gaps, few exponentials.
        gaps = (divmod(best - score, _STRIDE) for score in self._scores)
        return [power(high * _STRIDE) * power(low) >> (bits + 2 * _GUARD_BITS) for high, low in gaps]

    @property
    def probabilities(self) -> list[float]:
        """The probability of each candidate, as near as a float can be. Depends on the data: never publish it."""
        total = sum(self.weights)
        return [weight / total for weight in self.weights]

    def choose(self, noise: NoiseSource) -> int:
        """The position of the chosen candidate. Every call costs epsilon."""
        return noise.choose(self.weights)

    def accuracy(self, beta: float) -> float:
        """How far, in units of the scores, the chosen score is below the best one, at most, except with probability
        beta: ``2 sensitivity_units (ln n + ln(1/beta)) / epsilon`` ([DR14] Corollary 3.12)."""
        return self._divisor * (math.log(len(self._scores)) - math.log(check_fraction("beta", beta))) / self._epsilon


def _check_scores(scores: Sequence[int]) -> list[int]:
    if not 1 <= len(scores) <= _LARGEST_COUNT:
        raise ValueError(f"there must be 1 .. {_LARGEST_COUNT} scores, got {len(scores)}.")
    for score in scores:
        if not is_whole(score):
            raise ValueError(
                f"scores must be whole numbers, got a {type(score).__name__}. Round them to a grid, as queries do."
            )
    return [int(score) for score in scores]
