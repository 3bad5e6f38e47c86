"""Peers that count users under a cap, in numpy: Gaussian histograms with exact analysis, and Laplace histograms.

[WKZK22] Wilkins, Kifer, Zhang, Karrer. Exact privacy analysis of the Gaussian sparse histogram mechanism. arXiv
2202.01100.
[BW18] Balle, Wang. Improving the Gaussian mechanism for differential privacy. ICML 2018.
[DVGM22] Desfontaines, Voss, Gipson, Mandayam. Differentially private partition selection. PoPETs 2022.

A user counts for at most `cap` pairs (window, item) of the run, chosen at random, by 1 each. The noise here is not
cryptographic: it shows what a method would find, and protects nobody.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

from benchmarks.finding.logs import Found, Log

Floats = npt.NDArray[np.float64]


@functools.lru_cache(maxsize=16)
def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The least noise for a sensitivity of 1 ([BW18], Theorem 8); it grows with the sensitivity in proportion.

    (epsilon, delta)-DP where ``Phi(1/(2s) - epsilon s) - e^epsilon Phi(-1/(2s) - epsilon s) <= delta`` for s = sigma.
    """
    low, high = 1e-3, 1e9
    for _ in range(60):  # halves 12 powers of ten down to 1e-16 of sigma
        sigma = math.sqrt(low * high)
        near, far = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        needed = float(ndtr(near)) - math.exp(epsilon + float(log_ndtr(far)))
        low, high = (low, sigma) if needed <= delta else (sigma, high)
    return high


def exact_delta(epsilon: float, cap: int, sigma: float, margin: float) -> float:
    """delta of the Gaussian sparse histogram mechanism, exactly ([WKZK22], Theorem 5.4).

    margin: threshold - 1. A user who adds 1 to `cap` counts of which j are new: those stay hidden with probability
    ``Phi(margin / sigma)^j``, and the others are moved by ``sqrt(cap - j) / sigma``.
    """
    new = np.arange(cap)
    log_hidden = new * float(log_ndtr(margin / sigma))
    shifts = np.sqrt(cap - new) / sigma
    added = -np.expm1(log_hidden) + np.exp(log_hidden) * _gaussian_deltas(epsilon - log_hidden, shifts)
    removed = _gaussian_deltas(epsilon + log_hidden, shifts)
    all_new = -math.expm1(cap * float(log_ndtr(margin / sigma)))
    return float(max(all_new, added.max(), removed.max()))


def _gaussian_deltas(epsilons: Floats, shifts: Floats) -> Floats:
    near, far = shifts / 2 - epsilons / shifts, -shifts / 2 - epsilons / shifts
    return np.asarray(ndtr(near) - np.exp(epsilons + log_ndtr(far)))


@functools.lru_cache(maxsize=4096)
def exact_threshold(epsilon: float, delta: float, cap: int, wider: float) -> tuple[float, float]:
    """sigma, and the smallest threshold for it. wider: sigma over the least one, for which delta is all spent; > 1."""
    sigma = gaussian_sigma(epsilon, delta) * math.sqrt(cap) * wider
    # Below this margin items that one user alone holds would need more than all of delta.
    low = -sigma * float(ndtri(-math.expm1(math.log1p(-delta) / cap)))
    if exact_delta(epsilon, cap, sigma, low) <= delta:
        return sigma, 1 + low
    high = 2 * low
    while exact_delta(epsilon, cap, sigma, high) > delta:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if exact_delta(epsilon, cap, sigma, middle) <= delta else (middle, high)
    return sigma, 1 + high


def laplace_threshold(epsilon: float, delta: float, cap: int) -> float:
    """Noise of scale cap / epsilon; all of delta hides the counts of 1 ([DVGM22], section 1): ``Pr[1 + noise >= T]`` is
    at most ``1 - (1 - delta)^(1 / cap)``."""
    each = -math.expm1(math.log1p(-delta) / cap)
    return 1 - cap / epsilon * math.log(2 * each)


def counts_under_cap(log: Log, rank: npt.NDArray[np.int64], cap: int) -> npt.NDArray[np.int64]:
    """rank: `Log.rank_in_user` or `rank_in_window`. Returns int64[c]."""
    return np.bincount(log.pair_of_row[rank < cap], minlength=len(log.pairs))


def gaussian_histogram(
    counts: npt.NDArray[np.int64], sigma: float, threshold: float, random: np.random.Generator
) -> Found:
    """One count above 0 after the other, with Gaussian noise."""
    noisy = counts + sigma * random.standard_normal(len(counts))
    return Found((noisy >= threshold) & (counts > 0))


def laplace_histogram(
    counts: npt.NDArray[np.int64], scale: float, threshold: float, random: np.random.Generator
) -> Found:
    noisy = counts + random.laplace(0, scale, len(counts))
    return Found((noisy >= threshold) & (counts > 0))


def expected_gaussian(counts: npt.NDArray[np.number], sigma: float, threshold: float) -> float:
    """How many pairs the histogram finds on average; to choose a cap by."""
    return float(ndtr((counts[counts > 0] - threshold) / sigma).sum())


def expected_laplace(counts: npt.NDArray[np.int64], scale: float, threshold: float) -> float:
    far = np.exp(-np.abs(counts[counts > 0] - threshold) / scale) / 2
    return float(np.where(counts[counts > 0] >= threshold, 1 - far, far).sum())
