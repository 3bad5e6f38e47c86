"""Peers that weigh users by how much they hold, in numpy: [GGK20] and the same with our rule of followed items.

[GGK20] Gopi, Gulhane, Kulkarni, Shen, Shokouhi, Yekhanin. Differentially private set union. ICML 2020, arXiv
2002.09745.

An item of theirs is a pair (window, item) here, and the whole run is one release. Noise is Gaussian with half of delta
(analytic calibration, Balle and Wang 2018); the threshold has the other half: Theorem 5.1. The noise here is not
cryptographic: it shows what a method would find, and protects nobody.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from benchmarks.finding.histograms import gaussian_sigma
from benchmarks.finding.logs import Found, Log

Floats = npt.NDArray[np.float64]


def weighted_gaussian_threshold(epsilon: float, delta: float, most_contributions: int) -> float:
    """``max over t <= most_contributions of 1/sqrt(t) + sigma Phi^-1((1 - delta/2)^(1/t))`` ([GGK20], Theorem 5.1)."""
    pairs = np.arange(1, most_contributions + 1)
    missed = -np.expm1(np.log1p(-delta / 2) / pairs)  # 1 - (1 - delta/2)^(1/t), with all its digits
    return float(np.max(1 / np.sqrt(pairs) - gaussian_sigma(epsilon, delta / 2) * ndtri(missed)))


def weighted_sums(log: Log, most_contributions: int, random: np.random.Generator) -> Floats:
    """Each user adds 1/sqrt(its pairs, at most `most_contributions` of them) to each: float64[c]."""
    weights = 1 / np.sqrt(np.minimum(log.contributions, most_contributions))
    return log.sums(np.where(log.rank_in_user(random) < most_contributions, weights[log.users], 0.0))


def weighted_gaussian(
    log: Log, epsilon: float, delta: float, most_contributions: int, random: np.random.Generator
) -> Found:
    """[GGK20] Algorithm 2 with weighted histograms of the Euclidean norm 1."""
    sigma = gaussian_sigma(epsilon, delta / 2)
    threshold = weighted_gaussian_threshold(epsilon, delta, most_contributions)
    sums = weighted_sums(log, most_contributions, random)
    noisy = sums + sigma * random.standard_normal(len(sums))
    return Found((noisy >= threshold) & (sums > 0))


def weighted_gaussian_followed(
    log: Log,
    epsilon: float,
    delta: float,
    most_contributions: int,
    random: np.random.Generator,
    *,
    false_name_error: float,
    forget_after: int,
) -> Found:
    """The same, window by window: what was named lately has a quantile of the noise as its threshold.

    Followed items are drawn for in every window, held or not. Privacy: a followed item's threshold is a public number,
    and the Gaussian noise pays for it as for all others (docs/guarantee.md, "Lone items").
    """
    sigma = gaussian_sigma(epsilon, delta / 2)
    threshold = weighted_gaussian_threshold(epsilon, delta, most_contributions)
    followed_threshold = min(threshold, -sigma * float(ndtri(false_name_error)))
    sums = weighted_sums(log, most_contributions, random)
    reported = np.zeros(len(sums), dtype=np.bool_)
    last_named = np.full(len(log.labels), -(10**9))
    windows, items = np.divmod(log.pairs, len(log.labels))
    bounds = np.searchsorted(windows, np.arange(log.schedule.horizon + 1))
    of_nobody = 0
    for window in range(log.schedule.horizon):
        rows = slice(bounds[window], bounds[window + 1])
        here, counted = items[rows], sums[rows] > 0
        is_followed = last_named >= window - forget_after
        noisy = sums[rows] + sigma * random.standard_normal(len(here))
        reported[rows] = counted & (noisy >= np.where(is_followed[here], followed_threshold, threshold))
        is_empty = is_followed.copy()
        is_empty[here[counted]] = False
        empty = np.flatnonzero(is_empty)
        named = empty[sigma * random.standard_normal(len(empty)) >= followed_threshold]
        is_held = np.isin(named, here)  # held by users who were dropped beyond most_contributions
        reported[rows][np.isin(here, named[is_held])] = True
        of_nobody += int((~is_held).sum())
        last_named[here[reported[rows]]] = window
        last_named[named] = window
    return Found(reported, of_nobody)


def policy_gaussian(
    log: Log, epsilon: float, delta: float, most_contributions: int, alpha: float, random: np.random.Generator
) -> Found:
    """[GGK20] Algorithms 6 and 8 (Policy Gaussian, l2-descent): one user after the other, in random order.

    Each moves its pairs that are still below ``threshold + alpha sigma`` towards it, along the vector of what is
    missing, by a Euclidean norm of at most 1.
    """
    sigma = gaussian_sigma(epsilon, delta / 2)
    threshold = weighted_gaussian_threshold(epsilon, delta, most_contributions)
    kept = np.flatnonzero(log.rank_in_user(random) < most_contributions)
    splits = np.searchsorted(log.users[kept], np.arange(len(log.contributions) + 1))
    order = random.permutation(len(log.contributions))
    sums = policy_histogram(log.pair_of_row[kept], splits, len(log.pairs), threshold + alpha * sigma, order)
    noisy = sums + sigma * random.standard_normal(len(sums))
    return Found((noisy >= threshold) & (sums > 0))


def policy_histogram(
    pairs: npt.NDArray[np.int64], splits: npt.NDArray[np.int64], size: int, goal: float, order: npt.NDArray[np.int64]
) -> Floats:
    """pairs: of each row; rows ``splits[u] .. splits[u + 1]`` are those of user u. order: of the users."""
    sums = np.zeros(size)
    for user in order.tolist():
        mine = pairs[splits[user] : splits[user + 1]]
        missing = np.maximum(goal - sums[mine], 0.0)
        norm = math.sqrt(float(missing @ missing))
        if norm > 0:
            sums[mine] += missing * (min(1.0, norm) / norm)
    return sums
