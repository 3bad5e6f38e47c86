"""Bounds and tests for counts of independent runs."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import stats

Values = npt.NDArray[np.float64]

_LEAST_EXPECTED = 50.0  # runs in a bin: the fewer bins, the less each p-value is multiplied by


def clopper_pearson(successes: int, runs: int, error: float) -> tuple[float, float]:
    """A lower and an upper bound on a probability. Each is wrong with probability at most `error`, always."""
    lower = float(stats.beta.ppf(error, successes, runs - successes + 1)) if successes else 0.0
    upper = float(stats.beta.isf(error, successes + 1, runs - successes)) if successes < runs else 1.0
    return lower, upper


def epsilon_lower_bound(p_successes: int, q_successes: int, runs: int, delta: float, confidence: float) -> float:
    """A lower bound, with this confidence, on every epsilon with ``P(S) <= e^epsilon Q(S) + delta``.

    p_successes, q_successes: how often S occurred in `runs` independent runs of each world. The bound is at least 0.
    """
    error = (1 - confidence) / 2
    p_lower = clopper_pearson(p_successes, runs, error)[0]
    q_upper = clopper_pearson(q_successes, runs, error)[1]
    return max(0.0, math.log((p_lower - delta) / q_upper)) if p_lower > delta else 0.0


def binomial_p_value(successes: int, runs: int, probability: float) -> float:
    """Two-sided and exact; 1 without runs."""
    return 1.0 if not runs else float(stats.binomtest(successes, runs, min(1.0, probability)).pvalue)


def multinomial_p_value(observed: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """A test of counts against exact probabilities, which need not add up to 1. 1 if no test is possible.

    At most x with a probability of at most x, always: the smallest exact two-sided p-value of a bin, times the number
    of bins. Outcomes that are expected fewer than 50 times share a bin, rarest first, whatever was observed. A count of
    an impossible outcome makes the p-value 0.
    """
    counts = np.asarray(observed, dtype=np.float64).reshape(-1)
    masses = np.maximum(np.asarray(probabilities, dtype=np.float64).reshape(-1), 0.0)
    if np.any(counts[masses == 0.0] > 0):
        return 0.0
    runs = counts.sum()
    expected = runs * masses / masses.sum()
    wanted, found = [0.0], [0.0]
    for outcome in np.argsort(expected, kind="stable"):
        if wanted[-1] >= _LEAST_EXPECTED:
            wanted.append(0.0)
            found.append(0.0)
        wanted[-1] += expected[outcome]
        found[-1] += counts[outcome]
    if len(wanted) < 2:
        return 1.0
    seen, share = np.array(found), np.minimum(1.0, np.array(wanted) / runs)
    one_sided = np.minimum(stats.binom.cdf(seen, runs, share), stats.binom.sf(seen - 1, runs, share))
    return min(1.0, 2 * len(wanted) * float(one_sided.min()))
