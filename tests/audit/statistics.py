"""Bounds and tests for counts of independent runs, and what they say about the real code of any mode."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import stats

from dp_transforms.audit.mechanism import Claim

NamedPValue = tuple[str, float]  # of a test, with its name

CONFIDENCE = 0.999
FALSE_ALARM = 1e-6  # of all tests of agreement together
_LEAST_SEEN = 5  # runs that an event must be expected in
_LEAST_EXPECTED = 50.0  # runs in a bin: the fewer bins, the less each p-value is multiplied by


def smallest(tests: Iterable[NamedPValue]) -> tuple[float, str]:
    """The p-value of all tests together, and the name of the one that it is from: the smallest, times their number,
    which must not depend on what was seen."""
    named = list(tests)
    name, p_value = min(named, key=lambda test: test[1])
    return min(1.0, p_value * len(named)), name


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


# ---------------------------------------------------------------------------------------------------------------------
# Sampled audits
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """The runs from which epsilon is estimated, fixed before they begin.

    runs: in each world. p, q: the exact probabilities of an event in the world that it is likelier in, and in the other
    one. expected_epsilon: the bound to expect from these.
    """

    runs: int
    p: float
    q: float
    expected_epsilon: float


AnyDesign = TypeVar("AnyDesign", bound=Design)


def expected_bound(runs: int, p: float, q: float, delta: float) -> float | None:
    """The bound on epsilon to expect from an event. None if it is likely to be seen next to never, or in all runs."""
    seen = round(runs * p)
    if not _LEAST_SEEN <= seen < runs:
        return None
    return epsilon_lower_bound(seen, math.ceil(runs * q), runs, delta, CONFIDENCE)


@dataclasses.dataclass(frozen=True)
class SampledAudit(Generic[AnyDesign]):
    """p_seen, q_seen: how many runs ended in the event, in either world. epsilon: the lower bound, wrong with
    probability at most 1 - confidence.

    p_value: of the tests that the real code publishes what its exact law says, the smallest of several times their
    number; worst_test: which one. tests: their number. violations: a sentence for each claim that does not hold.
    """

    design: AnyDesign
    p_seen: int
    q_seen: int
    epsilon: float
    confidence: float
    p_value: float
    worst_test: str
    tests: int
    violations: tuple[str, ...]


def judge(
    design: AnyDesign, claim: Claim, p_seen: int, q_seen: int, tests: Iterable[NamedPValue]
) -> SampledAudit[AnyDesign]:
    """The bound, and all tests together. Their number must not depend on what was seen: it is a factor of the p-value.

    tests: all of them; one without a name is not named in a violation.
    """
    named = list(tests)
    name, smallest = min(named, key=lambda test: test[1])
    epsilon = epsilon_lower_bound(p_seen, q_seen, design.runs, claim.delta, CONFIDENCE)
    p_value = min(1.0, smallest * len(named))
    violations = []
    if epsilon > claim.epsilon:
        violations.append(
            f"the real code attains epsilon {epsilon:.4g} with {100 * CONFIDENCE:g} % confidence in {design.runs:,} "
            f"runs of each world; the claim is {claim.epsilon:g}"
        )
    if p_value < FALSE_ALARM:
        violations.append(
            f"the real code does not publish what its exact law says{name and ': '}{name} (p = {p_value:.2g}; a false "
            f"alarm has probability {FALSE_ALARM:g})"
        )
    return SampledAudit(design, p_seen, q_seen, epsilon, CONFIDENCE, p_value, name, len(named), tuple(violations))
