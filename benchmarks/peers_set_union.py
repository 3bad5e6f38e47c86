"""Peers that weigh users by how much they hold, in numpy: [GGK20] and the same with our rule of known items.

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

from benchmarks.finding_logs import LogPairs
from benchmarks.found_pairs import FoundPairs
from benchmarks.other_methods import gaussian_sigma, weighted_gaussian_threshold

Floats = npt.NDArray[np.float64]


def weighted_sums(log: LogPairs, most_looks: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Each user adds 1/sqrt(its pairs, at most `most_looks` of them) to each. Of rows kept: float64[n]; of cells."""
    looks = np.minimum(log.looks, most_looks)
    weights = np.where(log.rank_in_user(random) < most_looks, 1 / np.sqrt(looks)[log.users], 0.0)
    return weights, log.sums(weights)


def weighted_gaussian(
    log: LogPairs, epsilon: float, delta: float, most_looks: int, random: np.random.Generator
) -> FoundPairs:
    """[GGK20] Algorithm 2 with weighted histograms of the Euclidean norm 1."""
    sigma = gaussian_sigma(epsilon, delta / 2)
    threshold = weighted_gaussian_threshold(epsilon, delta, most_looks)
    _, sums = weighted_sums(log, most_looks, random)
    noisy = sums + sigma * random.standard_normal(len(sums))
    return FoundPairs((noisy >= threshold) & (sums > 0), 0, sums, threshold)


def weighted_gaussian_known(
    log: LogPairs,
    epsilon: float,
    delta: float,
    most_looks: int,
    random: np.random.Generator,
    *,
    known_error: float,
    forget_after: int,
) -> FoundPairs:
    """The same, window by window: what was named lately has a quantile of the noise as its threshold.

    Known items are drawn for in every window, held or not. Privacy: a known item's threshold is a public number, and
    the Gaussian noise pays for it as for all others (docs/guarantee.md, "Lone items").
    """
    sigma = gaussian_sigma(epsilon, delta / 2)
    threshold = weighted_gaussian_threshold(epsilon, delta, most_looks)
    followed_threshold = min(threshold, -sigma * float(ndtri(known_error)))
    _, sums = weighted_sums(log, most_looks, random)
    reported = np.zeros(len(sums), dtype=np.bool_)
    last_named = np.full(len(log.labels), -(10**9))
    windows, items = np.divmod(log.cells, len(log.labels))
    bounds = np.searchsorted(windows, np.arange(log.horizon + 1))
    of_nobody = 0
    for window in range(log.horizon):
        rows = slice(bounds[window], bounds[window + 1])
        here, counted = items[rows], sums[rows] > 0
        is_known = last_named >= window - forget_after
        noisy = sums[rows] + sigma * random.standard_normal(len(here))
        reported[rows] = counted & (noisy >= np.where(is_known[here], followed_threshold, threshold))
        is_empty = is_known.copy()
        is_empty[here[counted]] = False
        empty = np.flatnonzero(is_empty)
        named = empty[sigma * random.standard_normal(len(empty)) >= followed_threshold]
        is_held = np.isin(named, here)  # held by users who were dropped beyond most_looks
        reported[rows][np.isin(here, named[is_held])] = True
        of_nobody += int((~is_held).sum())
        last_named[here[reported[rows]]] = window
        last_named[named] = window
    return FoundPairs(reported, of_nobody, sums, threshold)


def policy_gaussian(
    log: LogPairs, epsilon: float, delta: float, most_looks: int, alpha: float, random: np.random.Generator
) -> FoundPairs:
    """[GGK20] Algorithms 6 and 8 (Policy Gaussian, l2-descent): one user after the other, in random order.

    Each moves its pairs that are still below ``threshold + alpha sigma`` towards it, along the vector of what is
    missing, by a Euclidean norm of at most 1.
    """
    sigma = gaussian_sigma(epsilon, delta / 2)
    threshold = weighted_gaussian_threshold(epsilon, delta, most_looks)
    kept = np.flatnonzero(log.rank_in_user(random) < most_looks)
    splits = np.searchsorted(log.users[kept], np.arange(len(log.looks) + 1))
    sums = policy_histogram(
        log.cell_of_row[kept], splits, len(log.cells), threshold + alpha * sigma, random.permutation(len(log.looks))
    )
    noisy = sums + sigma * random.standard_normal(len(sums))
    return FoundPairs((noisy >= threshold) & (sums > 0), 0, sums, threshold)


def policy_histogram(
    cells: npt.NDArray[np.int64], splits: npt.NDArray[np.int64], size: int, goal: float, order: npt.NDArray[np.int64]
) -> Floats:
    """cells: of each row; rows ``splits[u] .. splits[u + 1]`` are those of user u. order: of the users."""
    sums = np.zeros(size)
    for user in order.tolist():
        mine = cells[splits[user] : splits[user + 1]]
        missing = np.maximum(goal - sums[mine], 0.0)
        norm = math.sqrt(float(missing @ missing))
        if norm > 0:
            sums[mine] += missing * (min(1.0, norm) / norm)
    return sums
