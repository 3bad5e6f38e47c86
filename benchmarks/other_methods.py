"""Formulas of other people's methods, at a budget for a user's whole life, for the benchmark `finding`.

- Partition selection, as PipelineDP and the C++ library of google/differential-privacy do it: each pair (window, item)
  is a partition; each user contributes to at most so many (the cap).
- Weighted Gaussian [GGK20]: each user adds 1/sqrt(its pairs) to each of them; one Gaussian noise, one threshold.

[DVGM22] Desfontaines, Voss, Gipson, Mandayam. Differentially private partition selection. PoPETs 2022.
[GGK20] Gopi, Gulhane, Kulkarni, Shen, Shokouhi, Yekhanin. Differentially private set union. ICML 2020.
[BW18] Balle, Wang. Improving the Gaussian mechanism for differential privacy. ICML 2018.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from dp_transforms.checks import check_whole

Floats = npt.NDArray[np.float64]
_HALVINGS = 60  # of 12 powers of ten: down to 1e-16 of sigma


def weighted_gaussian_threshold(epsilon: float, delta: float, most_looks: int) -> float:
    """``max over t <= most_looks of 1/sqrt(t) + sigma Phi^-1((1 - delta/2)^(1/t))`` ([GGK20], Theorem 5.1)."""
    from scipy.special import ndtri

    pairs = np.arange(1, check_whole("most_looks", most_looks, 1) + 1)
    missed = -np.expm1(np.log1p(-delta / 2) / pairs)  # 1 - (1 - delta/2)^(1/t), with all its digits
    return float(np.max(1 / np.sqrt(pairs) - gaussian_sigma(epsilon, delta / 2) * ndtri(missed)))


class TruncatedGeometric:
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


class GaussianSelection:
    """Keeps a partition whose number of users and Gaussian noise pass a threshold: half of delta for each."""

    def __init__(self, epsilon: float, delta: float, cap: int) -> None:
        from scipy.special import ndtri

        self.sigma = gaussian_sigma(epsilon, delta / 2) * math.sqrt(cap)
        self.threshold = 1 - self.sigma * float(ndtri(-math.expm1(math.log1p(-delta / 2) / cap)))

    def __call__(self, users: npt.NDArray[np.int64]) -> Floats:
        return _normal_tail(self.threshold - users, self.sigma)


@functools.lru_cache(maxsize=16)
def gaussian_sigma(epsilon: float, delta: float) -> float:
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
