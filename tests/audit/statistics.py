"""Exact tests of counts of independent runs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from scipy import stats

NamedPValue = tuple[str, float]  # of a test, with its name

FALSE_ALARM = 1e-6  # of all tests of agreement together
_LEAST_EXPECTED = 50.0  # runs in a bin: the fewer bins, the less each p-value is multiplied by


def smallest(tests: Iterable[NamedPValue]) -> tuple[float, str]:
    """The p-value of all tests together, and the name of the one that it is from: the smallest, times their number,
    which must not depend on what was seen."""
    named = list(tests)
    name, p_value = min(named, key=lambda test: test[1])
    return min(1.0, p_value * len(named)), name


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
