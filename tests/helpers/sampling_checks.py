"""What the statistical tests share. Keys are fixed, so that a test that passes keeps passing; the false-alarm rates
stated are those over a random key."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import scipy

from dp_transforms.core.randomness import StreamKeys

FALSE_ALARM = 1e-6
SECRET = bytes(range(32))


def stream_keys() -> StreamKeys:
    return StreamKeys(SECRET, run_id="run 1", plan_fingerprint="plan 1", stream="stream 1", threshold=40)


def numbered(n: int, tag: int = 0) -> npt.NDArray[np.uint64]:
    """n distinct 128-bit values, as hashes of n items or digests of n sets of holders."""
    values = np.zeros((n, 2), dtype=np.uint64)
    values[:, 0] = tag
    values[:, 1] = np.arange(n)
    return values


def laplace_probability(epsilon: float, value: int) -> float:
    """``(1 - a) / (1 + a) a^|z|``, written out here on its own."""
    a = math.exp(-epsilon)
    return (1 - a) / (1 + a) * a ** abs(value)


def laplace_tail(epsilon: float, margin: int) -> float:
    """``Pr[Z >= margin]`` by the geometric series of the formula above."""
    a = math.exp(-epsilon)
    return a**margin / (1 + a) if margin >= 1 else 1 - a ** (1 - margin) / (1 + a)


def chi_squared_rejects(observed: npt.ArrayLike, expected: npt.ArrayLike) -> bool:
    """Pearson's test of counts against their expectations, at the false-alarm rate FALSE_ALARM."""
    observed, expected = np.asarray(observed, dtype=float), np.asarray(expected, dtype=float)
    assert expected.min() >= 20, "the chi-squared approximation needs more draws in each bin"
    assert math.isclose(observed.sum(), expected.sum(), rel_tol=1e-9)
    statistic = ((observed - expected) ** 2 / expected).sum()
    return bool(statistic > scipy.stats.chi2.isf(FALSE_ALARM, len(expected) - 1))


def laplace_rejects(draws: npt.NDArray[np.int64], epsilon: float) -> bool:
    """Chi-squared test of draws against discrete Laplace noise: a bin for each value, tails from 20 draws on lumped."""
    edge = 0
    while len(draws) * min(laplace_probability(epsilon, edge + 1), laplace_tail(epsilon, edge + 2)) >= 20:
        edge += 1
    observed = np.bincount(np.clip(draws, -edge - 1, edge + 1) + edge + 1, minlength=2 * edge + 3)
    inner = [laplace_probability(epsilon, value) for value in range(-edge, edge + 1)]
    outer = laplace_tail(epsilon, edge + 1)
    return chi_squared_rejects(observed, len(draws) * np.array([outer, *inner, outer]))
