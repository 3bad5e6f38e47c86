"""What a test of contributions costs, from its definition: with 50 digits and nothing of the package, or over all
counts with the tails of the package, which tests/accounting/test_exponential_power.py holds against such digits."""

import functools
import json
import math
import pathlib

import mpmath
import numpy as np

REFERENCE = json.loads((pathlib.Path(__file__).parent.parent / "data" / "price_reference_values.json").read_text())
DIGITS = 50
_FARTHEST = 1200.0  # minus the logarithm of the smallest tail that is looked at


def delta_of_budget(order, budget, epsilon):
    """What a divergence of at most `budget` at this order proves for epsilon: Canonne, Kamath, Steinke (2020),
    Proposition 12; computed with 50 digits."""
    with mpmath.workdps(DIGITS):
        order, budget, epsilon = map(mpmath.mpf, (order, budget, epsilon))
        exponent = (order - 1) * (budget - epsilon) + order * mpmath.log1p(-1 / order) - mpmath.log(order - 1)
        return float(mpmath.exp(min(0, exponent)))


# --- With 50 digits


@functools.cache
def tail(shape, scale, margin):
    """``Pr[Z >= margin]`` to some 50 digits."""
    with mpmath.workdps(DIGITS):
        if margin <= 0:
            return 1 - tail(shape, scale, 1 - margin)
        order = 1 / mpmath.mpf(shape)
        at = (mpmath.mpf(2 * margin - 1) / (2 * scale)) ** mpmath.mpf(shape)
        return mpmath.gammainc(order, at) / mpmath.gamma(order) / 2


def tail_of(noise, margin):
    return tail(noise.shape, noise.scale, int(margin))


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
    worlds = [(bit(shape, scale, margin - weight), bit(shape, scale, margin)) for margin in margins]
    with mpmath.workdps(DIGITS):
        largest = max(excess(*pair, order) for one in worlds for pair in (one, one[::-1]))
        return float(mpmath.log1p(largest) / (mpmath.mpf(order) - 1))


# --- Over all counts at which a tail is above e^-1200, one way: m and weight + 1 - m exchange the worlds


def look_price(noise, order, weight):
    """Of one bit, whether the noisy count reaches a threshold. Rounded up by one part in 10^9."""
    tails = _log_tails(noise, weight)
    hits, misses = tails, tails[::-1]  # of m, and of 1 - m
    with_user, without = slice(0, -weight), slice(weight, None)
    total = _gained(hits[with_user], hits[without], order) + _gained(misses[with_user], misses[without], order)
    return _divergence(float(np.max(total)), order)


def level_price(noise, order, weight, spacing):
    """Of a level, how many boundaries the noisy count passes, which are `spacing` apart. Rounded up likewise."""
    tails = _log_tails(noise, weight + 2 * spacing)
    reach = len(tails) // 2 - 1  # tails are of m = -reach .. reach + 1
    low = np.arange(-reach, reach + 1 - spacing)
    high = low + spacing
    mirrored = low + high <= 0  # the form with tails below 1/2: Pr[Z >= low] - Pr[Z >= high]
    larger = tails[reach + np.where(mirrored, 1 - high, low)]
    smaller = tails[reach + np.where(mirrored, 1 - low, high)]
    masses = larger + np.log1p(-np.exp(smaller - larger))
    gained = _gained(masses[:-weight], masses[weight:], order)
    whole = np.append(gained, np.zeros(-len(gained) % spacing)).reshape(-1, spacing)
    return _divergence(float(np.max(whole.sum(axis=0))), order)


@functools.lru_cache(maxsize=4)
def _log_tails(noise, further):
    """Of m = -reach .. reach + 1."""
    reach = math.ceil(noise.scale * _FARTHEST ** (1 / noise.shape)) + further
    above = noise.log_upper_tail(np.arange(1, reach + 2))
    return np.concatenate([np.log1p(-np.exp(above[::-1])), above])  # Pr[Z >= m] = 1 - Pr[Z >= 1 - m]


def _gained(log_p, log_q, order):
    """``P ((P/Q)^(order - 1) - 1)`` of one outcome."""
    exponent = (order - 1) * (log_p - log_q)
    probability = np.exp(log_p)
    with np.errstate(over="ignore"):
        far = np.exp(log_p + exponent) - probability
    return np.where(exponent < 1, probability * np.expm1(np.minimum(exponent, 1.0)), far)


def _divergence(total, order):
    return math.log1p(total) / (order - 1) * (1 + 1e-9)


class Adversary:
    """The best adaptive adversary of a few tests: exact, over all integer counts from a range and all listed weights.

    options: of each weight ``(units, with_user, without)``, the two worlds' probabilities of a hit and of none for each
        count: float64[2, counts].
    """

    def __init__(self, options, epsilon):
        self.options = options
        self.epsilon = epsilon

    def delta(self, tests, budget, *, removed=False):
        """The largest ``P(S) - e^epsilon Q(S)``: P is the world with the user, with `removed` the one without."""
        return float(self._value(tests, budget, np.array([1.0]), removed)[0])

    def _value(self, tests, budget, ratios, removed):
        """Per unit of P, for each likelihood ratio Q/P so far."""
        best = np.maximum(0.0, 1 - np.exp(self.epsilon) * ratios)
        if not tests:
            return best
        for units, with_user, without in self.options:
            if units > budget:
                continue
            p, q = (without, with_user) if removed else (with_user, without)
            moved = (q / p)[:, :, None] * ratios
            after = self._value(tests - 1, budget - units, moved.ravel(), removed).reshape(moved.shape)
            best = np.maximum(best, np.max(np.sum(p[:, :, None] * after, axis=0), axis=0))
        return best
