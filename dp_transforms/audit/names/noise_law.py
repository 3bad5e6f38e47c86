"""The law of the noise of release mode `names`, by quadrature of its density: nothing of the accounting is used.

``Z = round(X)`` with the density ``exp(-|x / scale|^shape)``. Prices are checked far out, where tails are e^-300 and
less, so everything is a logarithm, relative errors are about 1e-12, and no tail ends: it is followed up to a reach.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_POINTS = 8  # of Gauss and Legendre, in each part of an interval
_PARTS = 400  # for each unit of scale, or more


class NoiseLaw:
    """Tails of Z within `reach` of 0; beyond it a margin counts as one that the noise never has.

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
