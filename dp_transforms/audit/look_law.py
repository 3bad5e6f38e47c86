"""What one look shows about one user in mode `looks`: the law of its noise, and the worst divergence.

Independent of the accounting: the law of the noise is a quadrature of its density, levels are those that are published
and no more, and the supremum over counts is a search that ends in all integers around the worst one. So the result is
attained (up to a rounding down), wherever it is found.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

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
    """Beyond all counts at which a look with a weight up to this can cost most.

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


class WorstLook(NamedTuple):
    """divergence: of the given order, rounded down. margin: first boundary less what the others add.

    adds_user: in which direction.
    """

    divergence: float
    margin: int
    adds_user: bool


class LookLaw:
    """The levels of one look. distances: of the boundaries from the first one, which is the first entry, 0."""

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

    def worst(self, weight: int, order: float, reach: int, *, finely: bool = True) -> WorstLook:
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
        return WorstLook(float(found[direction, at]) * (1 - ROUNDING), int(margins[at]), bool(direction == 0))

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


def log_choose(n: Whole | int, k: Whole) -> Values:
    return np.asarray(_log_gamma(np.add(n, 1.0)) - _log_gamma(k + 1.0) - _log_gamma(n - k + 1.0))


_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


def static_delta(
    law: NoiseLaw, weight: int, looks: int, margins: npt.NDArray[np.int64], epsilon: float
) -> tuple[float, int, bool]:
    """The largest delta of so many looks of one weight at one count, exactly, with the margin and the direction.

    Of each look only the name is used, not the level: that can but lose. The number of names is binomial in both
    worlds.
    """
    named = np.arange(looks + 1)
    choose, missed = log_choose(looks, named), looks - named
    best = (0.0, int(margins[0]), True)
    for margin in margins.tolist():
        logs = []
        for moved in (weight, 0):
            hit, miss = law.log_tail(np.array([margin - moved, 1 - margin + moved])).tolist()
            logs.append(choose + named * hit + missed * miss)
        for adds_user, (p, q) in ((True, logs), (False, logs[::-1])):
            delta = float(np.sum(np.exp(p) * -np.expm1(np.minimum(0.0, epsilon + q - p))))
            best = max(best, (delta * (1 - ROUNDING), margin, adds_user))
    return best


# What one query shows about one user: every possible result, with its exact probability in both worlds.
#
# A query counts the active holders of an item: `f` without the user and `f + 1` with it. Only the *distance*
# ``f - threshold`` matters, for the mechanism compares a noisy count with fixed edges. Results with the same
# ratio of probabilities and the same charge are one result here: merging them changes no privacy loss (docs/audit.md).


class Result(NamedTuple):
    """with_user, without_user: its probabilities. log_ratio: ``ln(with_user / without_user)``, without cancellation.

    charged: how many hits every active holder pays for it, 0 or 1.
    """

    with_user: float
    without_user: float
    log_ratio: float
    charged: int


@dataclasses.dataclass(frozen=True)
class ThresholdLaw:
    """Modes ``hits`` (zone_width >= 1) and ``hits-with-counts`` (zone_width 0: all from the threshold on is charged).

    Discrete Laplace noise of scale ``1 / epsilon_per_query``. A noisy count v has ratio e^epsilon_per_query where
    ``v > f`` and its inverse where ``v <= f``. Only "below" and "above", which lump values, may lie between.

    >>> law = ThresholdLaw(epsilon_per_query=0.5, zone_width=4)
    >>> [(round(result.log_ratio, 3), result.charged) for result in law.results(-1)]
    [(-0.5, 0), (0.5, 1), (0.5, 0)]
    """

    epsilon_per_query: float
    zone_width: int
    near: ClassVar[int] = -1  # the distance at which, if it is kept, the loss can grow most while the user pays least

    def results(self, distance: int) -> tuple[Result, ...]:
        """All possible results, at this distance of the count without the user from the threshold."""
        last_of_zone = self.zone_width - 1 if self.zone_width else None
        # Single values keep their own ratio, so the zone is cut at the count. "below" and "above" are lumps.
        charged = [(*part, 1) for part in _cut(0, last_of_zone, distance)]
        above = [(self.zone_width, None, 0)] if self.zone_width else []
        found: dict[tuple[float, int], Result] = {}
        for first, last, hits in [(None, -1, 0), *charged, *above]:
            with_user, without_user, log_ratio = self._range(first, last, distance)
            key = (log_ratio, hits)
            before = found.get(key, Result(0.0, 0.0, *key))
            found[key] = Result(before.with_user + with_user, before.without_user + without_user, *key)
        return tuple(result for result in found.values() if result.with_user > 0 or result.without_user > 0)

    def _range(self, first: int | None, last: int | None, distance: int) -> tuple[float, float, float]:
        """Two probabilities and the log ratio of noisy counts ``threshold + first .. threshold + last``."""
        epsilon = self.epsilon_per_query
        with_user = laplace_mass(epsilon, first, last, distance + 1)
        without_user = laplace_mass(epsilon, first, last, distance)
        if first is not None and first > distance:
            log_ratio = epsilon
        elif last is not None and last <= distance:
            log_ratio = -epsilon
        else:
            log_ratio = math.log(with_user / without_user)
        return with_user, without_user, log_ratio

    @property
    def far(self) -> int | None:
        """The mirror image of `near`, at the other edge of a charged zone; None without a zone."""
        return self.zone_width - 1 if self.zone_width else None

    @property
    def distances(self) -> tuple[int, ...]:
        """A few distances to try, `near` and `far` among them."""
        last = self.zone_width - 1 if self.zone_width else math.ceil(1 / self.epsilon_per_query)
        return tuple(sorted({-1, last // 2, last}))

    def alone(self, threshold: int) -> float:
        """The probability that an item whose only holder is the user is published."""
        return laplace_mass(self.epsilon_per_query, threshold, None, 1)


def laplace_mass(epsilon: float, first: int | None, last: int | None, center: int) -> float:
    """``Pr[first <= center + Z <= last]`` for discrete Laplace Z, with all digits; None: without end."""
    a = math.exp(-epsilon)
    low = -math.inf if first is None else first - center
    high = math.inf if last is None else last - center
    if low > high:
        return 0.0
    if low > 0:
        return -math.exp(-epsilon * low) * math.expm1(-epsilon * (high - low + 1)) / (1 + a)
    if high < 0:
        return -math.exp(epsilon * high) * math.expm1(-epsilon * (high - low + 1)) / (1 + a)
    return 1 - (math.exp(-epsilon * (1 - low)) + math.exp(-epsilon * (high + 1))) / (1 + a)


def _cut(low: int | None, high: int | None, distance: int) -> list[tuple[int | None, int | None]]:
    """The range in two: up to the count, and above it."""
    if (low is not None and low > distance) or (high is not None and high <= distance):
        return [(low, high)]
    return [(low, distance), (distance + 1, high)]
