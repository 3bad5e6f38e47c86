"""The purse from its definition, with 50 digits and nothing of the package: what the accounting is tested against."""

import functools
import json
import math
import pathlib

import mpmath
import numpy as np

REFERENCE = json.loads((pathlib.Path(__file__).parent.parent / "data" / "price_reference_values.json").read_text())
DIGITS = 50


def delta_of_budget(order, budget, epsilon):
    """What a divergence of at most `budget` at this order proves for epsilon: Canonne, Kamath, Steinke (2020),
    Proposition 12."""
    exponent = (order - 1) * (budget - epsilon) + order * math.log1p(-1 / order) - math.log(order - 1)
    return math.exp(min(0.0, exponent))


@functools.cache
def tail(shape, scale, margin):
    """``Pr[Z >= margin]`` to some 50 digits."""
    with mpmath.workdps(DIGITS):
        if margin <= 0:
            return 1 - tail(shape, scale, 1 - margin)
        order = 1 / mpmath.mpf(shape)
        at = (mpmath.mpf(2 * margin - 1) / (2 * scale)) ** mpmath.mpf(shape)
        return mpmath.gammainc(order, at) / mpmath.gamma(order) / 2


def between(shape, scale, low, high):
    """``Pr[low <= Z < high]``, without cancellation."""
    with mpmath.workdps(DIGITS):
        if low >= 1:
            return tail(shape, scale, low) - tail(shape, scale, high)
        if high <= 0:
            return tail(shape, scale, 1 - high) - tail(shape, scale, 1 - low)
        return 1 - tail(shape, scale, high) - tail(shape, scale, 1 - low)


def excess(first, second, order):
    """``sum P^order Q^(1 - order) - 1``."""
    with mpmath.workdps(DIGITS):
        power = mpmath.mpf(order)
        return mpmath.fsum(p * (p / q) ** (power - 1) for p, q in zip(first, second, strict=True) if p) - 1


def bit(shape, scale, margin):
    """Of the published bit, and of no bit."""
    return [tail(shape, scale, margin), tail(shape, scale, 1 - margin)]


def price(shape, scale, order, weight, margins):
    """The largest divergence over these margins, both ways."""
    largest = mpmath.mpf(0)
    with mpmath.workdps(DIGITS):
        for margin in margins:
            worlds = [bit(shape, scale, margin - weight), bit(shape, scale, margin)]
            for first, second in (worlds, worlds[::-1]):
                (hit_p, miss_p), (hit_q, miss_q) = first, second
                found = hit_p * (hit_p / hit_q) ** (mpmath.mpf(order) - 1)
                largest = max(largest, found + miss_p * (miss_p / miss_q) ** (mpmath.mpf(order) - 1) - 1)
        return float(mpmath.log1p(largest) / (mpmath.mpf(order) - 1))


class Adversary:
    """The best adaptive adversary of a few looks: exact, over all integer counts from a range and all listed weights.

    options: of each weight ``(units, with_user, without)``, the two worlds' probabilities of a hit and of none for each
        count: float64[2, counts].
    """

    def __init__(self, options, epsilon):
        self.options = options
        self.epsilon = epsilon

    def delta(self, looks, purse, *, removed=False):
        """The largest ``P(S) - e^epsilon Q(S)``: P is the world with the user, with `removed` the one without."""
        return float(self._value(looks, purse, np.array([1.0]), removed)[0])

    def _value(self, looks, purse, ratios, removed):
        """Per unit of P, for each likelihood ratio Q/P so far."""
        best = np.maximum(0.0, 1 - np.exp(self.epsilon) * ratios)
        if not looks:
            return best
        for units, with_user, without in self.options:
            if units > purse:
                continue
            p, q = (without, with_user) if removed else (with_user, without)
            moved = (q / p)[:, :, None] * ratios
            after = self._value(looks - 1, purse - units, moved.ravel(), removed).reshape(moved.shape)
            best = np.maximum(best, np.max(np.sum(p[:, :, None] * after, axis=0), axis=0))
        return best
