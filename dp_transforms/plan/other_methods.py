"""From how many users on the methods of others find an item, at the same budget for a user's whole life.

For comparison alone: no plan depends on it. All holders of the item have equally many pairs (window, item) in the run
(`looks`). A method that bounds how many of them count keeps a random choice of them.

- Partition selection, as PipelineDP and the C++ library of google/differential-privacy do it: each pair is a partition;
  each user contributes to at most so many (the cap). The best cap for this activity, which its user would have to know.
- Weighted Gaussian [GGK20]: each user adds 1/sqrt(its pairs) to each of them; one Gaussian noise, one threshold.
- Gaussian histograms: a noisy histogram for each window, where a user counts for at most so many items.

[DVGM22] Desfontaines, Voss, Gipson, Mandayam. Differentially private partition selection. PoPETs 2022.
[GGK20] Gopi, Gulhane, Kulkarni, Shen, Shokouhi, Yekhanin. Differentially private set union. ICML 2020.
[BW18] Balle, Wang. Improving the Gaussian mechanism for differential privacy. ICML 2018.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.purse.open_threshold import Floats, fewest_users
from dp_transforms.checks import check_fraction, check_whole

_CAP_RATIO = 1.3  # from one cap that is tried to the next; then closer around the best
_CLOSER = 1.05
_HALVINGS = 60  # of 12 powers of ten: down to 1e-16 of sigma


class BestCap(NamedTuple):
    """users: that an item needs. cap: pairs of a user that count. strategy: of the two of the library, the better."""

    users: int
    cap: int
    strategy: str


def partition_selection_found_from(epsilon: float, delta: float, looks: int, probability: float = 0.95) -> BestCap:
    """The best cap, and the better of truncated geometric and Gaussian selection."""
    check_whole("looks", looks, 1)
    check_fraction("probability", probability)

    def tried(caps: set[int]) -> BestCap:
        return min(
            BestCap(fewest_users(found, cap / looks, probability), cap, strategy)
            for cap in sorted(caps)
            for strategy, found in (
                ("truncated geometric", _TruncatedGeometric(epsilon, delta, cap)),
                ("Gaussian", _GaussianSelection(epsilon, delta, cap)),
            )
        )

    best = tried(_geometric(1, looks, _CAP_RATIO))
    around = _geometric(max(1, int(best.cap / _CAP_RATIO)), min(looks, math.ceil(best.cap * _CAP_RATIO)), _CLOSER)
    return min(best, tried(around))


def weighted_gaussian_found_from(
    epsilon: float, delta: float, looks: int, most_looks: int, probability: float = 0.95
) -> int:
    """[GGK20] section 5: half of delta for the noise, half for the threshold. most_looks: their Delta_0."""
    check_whole("looks", looks, 1)
    check_fraction("probability", probability)
    sigma = _gaussian_sigma(epsilon, delta / 2)
    threshold = weighted_gaussian_threshold(epsilon, delta, most_looks)
    weight = 1 / math.sqrt(min(looks, most_looks))

    def found(users: npt.NDArray[np.int64]) -> Floats:
        return _normal_tail(threshold - users * weight, sigma)

    return fewest_users(found, min(1.0, most_looks / looks), probability)


def weighted_gaussian_threshold(epsilon: float, delta: float, most_looks: int) -> float:
    """``max over t <= most_looks of 1/sqrt(t) + sigma Phi^-1((1 - delta/2)^(1/t))`` ([GGK20], Theorem 5.1)."""
    from scipy.special import ndtri

    pairs = np.arange(1, check_whole("most_looks", most_looks, 1) + 1)
    missed = -np.expm1(np.log1p(-delta / 2) / pairs)  # 1 - (1 - delta/2)^(1/t), with all its digits
    return float(np.max(1 / np.sqrt(pairs) - _gaussian_sigma(epsilon, delta / 2) * ndtri(missed)))


def gaussian_histograms_found_from(epsilon: float, delta: float, counts: int, probability: float = 0.95) -> int:
    """Half of delta for the noise, half for the threshold. counts: items a window that count, times windows.

    One user changes at most so many counts by 1 each. The threshold is the smallest T with
    ``counts Pr[1 + noise >= T] <= delta / 2``.
    """
    from scipy.special import ndtri

    check_whole("counts", counts, 1)
    check_fraction("probability", probability)
    sigma = _gaussian_sigma(epsilon, delta / 2) * math.sqrt(counts)
    threshold = 1 + math.ceil(-sigma * float(ndtri(delta / 2 / counts)))
    return math.ceil(threshold + sigma * float(ndtri(probability)))


class _TruncatedGeometric:
    """Keeps a partition of k users with probability pi(k) ([DVGM22], Theorem 1), the largest that its privacy allows.

    epsilon / cap and 1 - (1 - delta)^(1 / cap) for each partition.
    """

    def __init__(self, epsilon: float, delta: float, cap: int) -> None:
        self._epsilon = epsilon / cap
        self._delta = -math.expm1(math.log1p(-delta) / cap)
        self._crossing = 1 + math.floor(
            math.log1p(math.tanh(self._epsilon / 2) * (1 / self._delta - 1)) / self._epsilon
        )

    def __call__(self, users: npt.NDArray[np.int64]) -> Floats:
        near = np.minimum(users, self._crossing)
        step = math.expm1(self._epsilon)
        rising = np.expm1(near * self._epsilon) / step * self._delta
        # Beyond the crossing the complement falls by e^-epsilon and delta at each step, down to 0.
        beyond = np.expm1(-(users - near) * self._epsilon) * (1 - rising + self._delta / step)
        return np.asarray(np.minimum(1.0, rising - beyond), dtype=np.float64)


class _GaussianSelection:
    """Keeps a partition whose number of users and Gaussian noise pass a threshold: half of delta for each."""

    def __init__(self, epsilon: float, delta: float, cap: int) -> None:
        from scipy.special import ndtri

        self._sigma = _gaussian_sigma(epsilon, delta / 2) * math.sqrt(cap)
        self._threshold = 1 - self._sigma * float(ndtri(-math.expm1(math.log1p(-delta / 2) / cap)))

    def __call__(self, users: npt.NDArray[np.int64]) -> Floats:
        return _normal_tail(self._threshold - users, self._sigma)


@functools.lru_cache(maxsize=16)
def _gaussian_sigma(epsilon: float, delta: float) -> float:
    """The least noise for a sensitivity of 1 ([BW18], Theorem 8); it grows with the sensitivity in proportion.

    (epsilon, delta)-DP where ``Phi(1/(2s) - epsilon s) - e^epsilon Phi(-1/(2s) - epsilon s) <= delta`` for s = sigma.
    """
    from scipy.special import log_ndtr, ndtr

    low, high = 1e-3, 1e9
    for _ in range(_HALVINGS):
        sigma = math.sqrt(low * high)
        near, far = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        needed = float(ndtr(near)) - math.exp(epsilon + float(log_ndtr(far)))
        low, high = (low, sigma) if needed <= delta else (sigma, high)
    return high


def _normal_tail(margins: npt.NDArray[np.number], sigma: float) -> Floats:
    """``Pr[noise >= margin]`` of Gaussian noise."""
    from scipy.special import ndtr

    return np.asarray(ndtr(-margins / sigma), dtype=np.float64)


def _geometric(first: int, last: int, ratio: float) -> set[int]:
    steps = math.ceil(math.log(last / first) / math.log(ratio))
    return {first, last, *(round(value) for value in np.geomspace(first, last, steps + 1))}
