"""The peer of the utility benchmark: one noisy histogram per window, at the same budget for a user's whole life.

Each user counts for at most L items of a window, chosen uniformly, in each of the m windows of the horizon, so one user
changes at most L m counts, by 1 each. Every count of at least one user gets independent noise, and the items whose
noisy count reaches T are published with it. Half of delta pays for the noise, half for the open domain, as in a release
plan: T is the smallest threshold with ``L m Pr[1 + noise >= T] <= delta / 2``. Two kinds of noise:

Laplace    discrete Laplace, epsilon_per_count solved by optimal composition of L m calls [KOV15]
Gaussian   sensitivity sqrt(L m) in the Euclidean norm, analytic calibration (Balle and Wang 2018, by dp_accounting)
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.real_logs import Found, Pairs


def laplace_scale_and_threshold(epsilon: float, delta: float, counts: int) -> tuple[float, int]:
    """counts: L m."""
    from dp_transforms.accounting.composition import optimal_composition_delta

    low, high = epsilon / counts, epsilon
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if optimal_composition_delta(middle, counts, epsilon) <= delta / 2 else (low, middle)
    # Pr[Z >= z] = a^z / (1 + a), a = exp(-low)
    return 1 / low, 1 + math.ceil(math.log(counts / (delta / 2) / (1 + math.exp(-low))) / low)


def gaussian_scale_and_threshold(epsilon: float, delta: float, counts: int) -> tuple[float, int]:
    """counts: L m."""
    import dp_accounting
    from scipy.stats import norm

    scale = dp_accounting.get_sigma_gaussian(epsilon, delta / 2) * math.sqrt(counts)
    return scale, 1 + math.ceil(scale * norm.isf(delta / 2 / counts))


def bounded_counts(pairs: Pairs, most_items: int, random: np.random.Generator) -> dict[tuple[int, int], int]:
    """Holders of each (window, item) when each user keeps at most so many of its items in a window."""
    order = np.lexsort((random.random(len(pairs.users)), pairs.users, pairs.windows))
    windows, users = pairs.windows[order], pairs.users[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (windows[1:] != windows[:-1]) | (users[1:] != users[:-1])
    starts = np.flatnonzero(first)
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    kept = np.sort(order[rank < most_items])
    return Pairs(pairs.windows[kept], pairs.items[kept], pairs.users[kept]).holders()


def noisy_histograms(
    counts: dict[tuple[int, int], int], noise: str, scale: float, threshold: int, random: np.random.Generator
) -> Found:
    """A simulation of the mechanism, to see what it would find; its noise is no cryptographic one."""
    cells, values = list(counts), np.array(list(counts.values()))
    if noise == "Gaussian":
        noisy = values + random.normal(0, scale, len(values))
    else:
        success = -math.expm1(-1 / scale)
        noisy = values + random.geometric(success, len(values)) - random.geometric(success, len(values))
    return Found(frozenset(cells[row] for row in np.flatnonzero(noisy >= threshold)), threshold)
