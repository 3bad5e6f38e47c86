"""The law of the noise of one test of a contribution, and the worst divergence of a test.

Independent of the accounting: the law of the noise is a quadrature of its density, levels are those that are published
and no more, and the supremum over counts is a search that ends in all integers around the worst one. So the result is
attained (up to a rounding down), wherever it is found.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

ROUNDING = 1e-7  # relative: far above the errors of the sums, far below what any fault makes
_POINTS = 8  # of Gauss and Legendre, in each part of an interval
_PARTS = 400  # for each unit of scale, or more
_STEPS = 40  # of counts for each unit of scale, before all integers near the worst ones
_LATER = 2.4  # in scales: two boundaries that are so far apart show no more together than apart
_WORST = 3  # so many of them


class NoiseLaw:
    """Tails of ``Z = round(X)``, where X has the density ``exp(-|x / scale|^shape)``, within `reach` of 0.

    Beyond it a margin counts as one that the noise never has. Prices are checked far out, where tails are e^-300 and
    less, so everything is a logarithm, and relative errors are about 1e-12.
    shape, scale: as in `ExponentialPower`. reach: in integers.
    """

    def __init__(self, shape: float, scale: int, reach: int) -> None:
        self.shape, self.scale, self.reach = shape, scale, reach
        # So far that what is left out is e^-30 of the tail at the reach, and of a tail nearer to 0 still less.
        slope = shape * (reach / scale) ** (shape - 1)
        log_masses = _log_masses(shape, scale, reach + 2 + math.ceil(30 * scale / slope))
        above = np.logaddexp.accumulate(log_masses[:0:-1])[::-1]
        above = above[: reach + 1] - np.logaddexp(log_masses[0], above[0] + math.log(2))
        self._tails = np.concatenate([np.log1p(-np.exp(above[:-1][::-1])), above])  # of m = 1 - reach .. reach + 1

    @classmethod
    def whole(cls, shape: float, scale: int) -> NoiseLaw:
        """All that is ever seen: what is left out has a probability of at most e^-60."""
        return cls(shape, scale, math.ceil(scale * (math.pow(60, 1 / shape) + 1)))

    def log_tail(self, margins: Whole) -> Values:
        """``ln Pr[Z >= m]``, 0 below the reach and -inf above it. margins: int64[...]. Returns float64[...]."""
        inside = np.clip(margins, 1 - self.reach, self.reach)
        tails = self._tails[inside + self.reach - 1]
        return np.where(margins > self.reach, -math.inf, np.where(margins <= -self.reach, 0.0, tails))

    def log_mass(self, low: Whole, high: Whole) -> Values:
        """``ln Pr[low <= Z < high]`` with small relative errors in both tails. low < high: int64[...]."""
        mirrored = low + high <= 0
        first, second = np.where(mirrored, 1 - high, low), np.where(mirrored, 1 - low, high)
        larger, smaller = self.log_tail(first), self.log_tail(second)
        with np.errstate(divide="ignore", invalid="ignore"):
            difference = larger + np.log1p(-np.exp(smaller - larger))
        return np.where(larger == -math.inf, -math.inf, difference)

    def tail(self, margin: int) -> float:
        """``Pr[Z >= margin]``."""
        return float(np.exp(self.log_tail(np.array([margin])))[0])

    def smallest_margin(self, probability: float) -> int:
        """The smallest m within the reach with ``Pr[Z >= m] <= probability``."""
        return int(np.searchsorted(-self._tails, -math.log(probability))) + 1 - self.reach


def reach_of_prices(shape: float, order: float, weight: int, scale: int) -> int:
    """Beyond all counts at which a test with a weight up to this can cost most.

    Far out ``P^order Q^(1 - order)`` is about ``exp(-order (y - b)^p + (order - 1) y^p)``, largest where
    ``order (y - b)^(p - 1) = (order - 1) y^(p - 1)``: that may be where the tail is e^-300.
    """
    beyond = 0.0
    if shape > 1:
        share = math.pow(1 - 1 / order, 1 / (shape - 1))
        beyond = weight / scale / (1 - share)
    return math.ceil(scale * max(math.pow(36, 1 / shape) + 1, 1.3 * beyond + 1)) + weight


@functools.lru_cache(maxsize=2)
def _log_masses(shape: float, scale: int, reach: int) -> Values:
    """``ln`` of the integral of ``exp(-|x/scale|^shape)`` over ``m - 1/2 .. m + 1/2``, m = 0 .. reach."""
    nodes, weights = np.polynomial.legendre.leggauss(_POINTS)
    parts = max(1, math.ceil(_PARTS / scale))
    # Points of [-1/2, 1/2] and their weights; for m = 0 twice those of [0, 1/2].
    width = 1 / parts
    points = (np.arange(parts)[:, None] * width - 0.5 + width * (nodes + 1) / 2).reshape(-1)
    shares = np.tile(weights * width / 2, parts)
    logs = np.empty(reach + 1)
    for low in range(0, reach + 1, 1 << 16):
        margins = np.arange(low, min(low + (1 << 16), reach + 1), dtype=np.float64)
        at = np.abs(margins[:, None] + points) / scale
        at[margins == 0] = (points + 0.5) / 2 / scale
        exponents = -(at**shape)
        largest = exponents.max(axis=1)
        logs[low : low + len(margins)] = largest + np.log(np.exp(exponents - largest[:, None]) @ shares)
    logs.flags.writeable = False
    return logs


class WorstTest(NamedTuple):
    """divergence: of the given order, rounded down. margin: first boundary less what the others add.

    adds_user: in which direction.
    """

    divergence: float
    margin: int
    adds_user: bool


class LevelsLaw:
    """The levels of one test. distances: of the boundaries from the first one, which is the first entry, 0."""

    def __init__(self, law: NoiseLaw, distances: Sequence[int]) -> None:
        self._law = law
        self.distances = tuple(distances)

    def log_masses(self, margins: Whole, weight: int) -> tuple[Values, Values]:
        """``ln`` of the probability of each outcome, with a weight and with 0: float64[outcomes, n] each.

        margins: int64[n], the first boundary less what the others add. Outcomes are: no level, level 1, level 2, ...
        One that is beyond the reach of the noise is one with its neighbour, in both worlds alike.
        """
        never = 2 * self._law.reach
        last = self._law.reach - weight  # both worlds have it, and 1 - last, in reach
        bounds = [np.full_like(margins, -never), *(margins + distance for distance in self.distances)]
        with_user: list[Values] = []
        without: list[Values] = []
        for low, high in zip(bounds, [*bounds[1:], np.full_like(margins, never)], strict=True):
            is_possible = (low <= last) & (high >= 1 - last)
            start, end = np.where(low < 1 - last, -never, low), np.where(high > last, never, high)
            end = np.where(is_possible, end, start + 1)
            for logs, moved in ((with_user, weight), (without, 0)):
                logs.append(np.where(is_possible, self._law.log_mass(start - moved, end - moved), -math.inf))
        return np.array(with_user), np.array(without)

    def worst(self, weight: int, order: float, reach: int, *, finely: bool = True) -> WorstTest:
        """The largest divergence over all counts for which the first boundary is up to `reach` above them.

        And down to where one of the later boundaries is at the count: those after it are no other case. finely: with
        all integers near the worst counts; else on a grid alone, and so a little lower.
        """
        scale = self._law.scale
        lowest = -min([d for d in self.distances if d > _LATER * scale] or self.distances[-1:]) - scale
        step = max(1, scale // _STEPS)
        margins = np.arange(lowest, reach + 1, step)
        found = self._divergences(margins, weight, order)
        while finely and step > 1:
            near = margins[np.argsort(-found.max(axis=0), kind="stable")[:_WORST]]
            reached, step = step, max(1, step // 15)
            margins = np.unique(near[:, None] + np.arange(-reached, reached + 1, step))
            margins = margins[margins <= reach]
            found = self._divergences(margins, weight, order)
        direction, at = np.unravel_index(np.argmax(found), found.shape)
        return WorstTest(float(found[direction, at]) * (1 - ROUNDING), int(margins[at]), bool(direction == 0))

    def _divergences(self, margins: Whole, weight: int, order: float) -> Values:
        """With the user against without, and the reverse: float64[2, n]."""
        with_user, without = self.log_masses(margins, weight)
        return np.array([divergence(*side, order) for side in ((with_user, without), (without, with_user))])


def divergence(log_p: Values, log_q: Values, order: float) -> Values:
    """``ln(sum P^order Q^(1 - order)) / (order - 1)``, at least 0, over the first axis. Both have the same outcomes."""
    lam = order - 1
    with np.errstate(invalid="ignore", over="ignore"):
        exponent = lam * (log_p - log_q)
        far = exponent > 1
        gained = np.where(far, np.exp(log_p + exponent) - np.exp(log_p), np.exp(log_p) * np.expm1(exponent))
    gained[log_p == -math.inf] = 0.0
    return np.asarray(np.log1p(np.maximum(0.0, gained.sum(axis=0))) / lam)
