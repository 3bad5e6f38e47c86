"""Targets checked from their definition: the largest q of a pair of distributions, and pairs to check it on."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.optimize import linprog

Distribution = np.ndarray


def largest_q(z0: Distribution, z1: Distribution, target: np.ndarray, epsilon: float) -> float:
    """The largest q for which `target` is a q-target with epsilon ([CL23] Definition B.1); 0 if they differ by more.

    With ``Zb = c C + (1-c) Bb`` the common mass c C may take from outcome y at most the largest x for which Z0(y) - x
    and Z1(y) - x differ by a factor e^epsilon at most, ``(e^eps min - max) / (e^eps - 1)``. Taking it from outcomes
    outside of the target always helps, from the target never.
    """
    factor = math.exp(epsilon)
    low, high = np.minimum(z0, z1), np.maximum(z0, z1)
    if (high > factor * low * (1 + 1e-10)).any():
        return 0.0
    common = np.maximum(factor * low - high, 0.0) / math.expm1(epsilon)
    rests = [math.fsum([*z[target], *(z - common)[~target]]) for z in (z0, z1)]
    if max(rests) < 1e-15:  # the worlds are the same
        return 1.0
    return min(float(z[target].sum()) for z in (z0, z1)) / max(rests)


def largest_q_by_program(z0: Distribution, z1: Distribution, target: np.ndarray, epsilon: float) -> float:
    """The same by a linear program: the unknowns are the common part, scaled so that what is left is 1, and q."""
    n, factor = len(z0), math.exp(epsilon)
    # Variables: k (scaled common part, n), s = 1/(1-c), q. B = s Z - k.
    rows, bounds = [], []
    for first, second in ((z0, z1), (z1, z0)):
        for y in range(n):
            row = np.zeros(n + 2)
            row[y], row[n] = factor - 1, first[y] - factor * second[y]  # B_first <= e^eps B_second
            rows.append(row)
            bounds.append(0.0)
            row = np.zeros(n + 2)
            row[y], row[n] = 1.0, -first[y]  # B_first >= 0
            rows.append(row)
            bounds.append(0.0)
        row = np.zeros(n + 2)
        row[:n][target], row[n], row[n + 1] = 1.0, -first[target].sum(), 1.0  # q <= B_first(target)
        rows.append(row)
        bounds.append(0.0)
    total = np.zeros((1, n + 2))
    total[0, :n], total[0, n] = -1.0, 1.0  # s - sum k = 1
    solved = linprog([*np.zeros(n + 1), -1.0], A_ub=np.array(rows), b_ub=bounds, A_eq=total, b_eq=[1.0], method="highs")
    return float(-solved.fun) if solved.success else 0.0


def pairs(epsilon: float, count: int, seed: int) -> Iterator[tuple[Distribution, Distribution]]:
    """epsilon-indistinguishable pairs of 2 to 6 outcomes, many with one likely outcome, many at the extremes.

    Each such pair is ``Z1 = c C + (1-c) (p K1 + (1-p) K0)``, ``Z0 = c C + (1-c) ((1-p) K1 + p K0)``.
    """
    random = np.random.default_rng(seed)
    p = 1 / (1 + math.exp(-epsilon))
    for _ in range(count):
        n = int(random.integers(2, 7))
        k0, k1, common = random.dirichlet(np.full(n, 10 ** random.uniform(-1.5, 0.5)), size=3)
        if random.random() < 0.7:
            common = np.eye(n)[random.integers(n)]
        if random.random() < 0.7:
            separate = random.random(n) < 0.5
            k0, k1 = (np.where(side, k0 + 1e-9, 0.0) for side in (separate, ~separate))
            if not (k0.any() and k1.any()):
                continue
            k0, k1 = k0 / k0.sum(), k1 / k1.sum()
        share = 1 - 10 ** random.uniform(-3, 0) if random.random() < 0.7 else 0.0
        yield (
            share * common + (1 - share) * ((1 - p) * k1 + p * k0),
            share * common + (1 - share) * (p * k1 + (1 - p) * k0),
        )
