"""The peers of the benchmark `finding`, by the formulas of their papers."""

import math

import mpmath
import numpy as np
import pytest
import scipy

from benchmarks.finding import histograms, set_union
from benchmarks.finding.histograms import gaussian_sigma
from benchmarks.finding.partition_selection import GaussianSelection, TruncatedGeometric
from benchmarks.finding.set_union import weighted_gaussian_threshold

EPSILON, DELTA = 2.0, 1e-9


def policy_by_definition(users, size, goal):
    """[GGK20] Algorithm 8, user by user, pair by pair."""
    sums = [0.0] * size
    for cells in users:
        gaps = {cell: goal - sums[cell] for cell in cells if sums[cell] < goal}
        norm = math.sqrt(math.fsum(gap * gap for gap in gaps.values()))
        for cell, gap in gaps.items():
            sums[cell] += gap if norm <= 1 else gap / norm
    return np.array(sums)


@pytest.mark.parametrize("goal", [2.0, 3.7, 50.0])
def test_the_policy_histogram_is_that_of_its_algorithm(goal):
    random = np.random.default_rng(3)
    users = [sorted(random.choice(12, random.integers(1, 6), replace=False).tolist()) for _ in range(60)]
    splits = np.cumsum([0, *map(len, users)])
    order = random.permutation(60)
    sums = set_union.policy_histogram(np.concatenate(users), splits, 12, goal, order)
    assert sums == pytest.approx(policy_by_definition([users[user] for user in order], 12, goal))


def excess(p, q, shift):
    """The integral of the positive part of ``p phi(x) - q phi(x + shift)``; it begins at one point and goes on."""
    begins = (math.log(q / p) - shift**2 / 2) / shift

    def difference(at):
        return p * scipy.stats.norm.pdf(at) - q * scipy.stats.norm.pdf(at + shift)

    return scipy.integrate.quad(difference, begins, max(begins, 0) + 12, limit=200)[0]


@pytest.mark.parametrize(("cap", "sigma", "margin"), [(1, 1.0, 3.0), (2, 3.0, 5.0), (3, 1.2, 6.0)])
def test_exact_delta_is_that_of_the_worst_pair(cap, sigma, margin):
    """By quadrature: j of the counts that the user changes are new, the others move along the line of their sum."""
    grown, worst = math.e, 1 - scipy.stats.norm.cdf(margin / sigma) ** cap  # where all are new, nothing else differs
    for new in range(cap):
        hidden, shift = scipy.stats.norm.cdf(margin / sigma) ** new, math.sqrt(cap - new) / sigma
        worst = max(worst, 1 - hidden + excess(hidden, grown, shift), excess(1.0, grown * hidden, shift))
    assert histograms.exact_delta(1.0, cap, sigma, margin) == pytest.approx(worst, rel=1e-4)


@pytest.mark.parametrize(("epsilon", "delta", "cap"), [(2.0, 1e-9, 10), (8.0, 1e-3, 2)])
def test_truncated_geometric_selection_keeps_as_much_as_its_definition(epsilon, delta, cap):
    """pi(0), pi(1), ...: the definition of optimal partition selection, before it is solved ([DVGM22], section 3)."""
    with mpmath.workdps(50):
        share, grown, kept = 1 - (1 - mpmath.mpf(delta)) ** (1 / mpmath.mpf(cap)), mpmath.exp(epsilon / cap), [0]
        for _ in range(400):
            kept.append(min(grown * kept[-1] + share, 1 - (1 - kept[-1] - share) / grown, mpmath.mpf(1)))
    found = TruncatedGeometric(epsilon, delta, cap)(np.arange(401))
    assert found == pytest.approx(np.array(kept, dtype=float), rel=1e-9)


@pytest.mark.parametrize("cap", [1, 10, 300])
def test_gaussian_selections_are_private_and_no_more(cap):
    """The noise takes half of delta at a sensitivity of sqrt(cap); a lone user of `cap` partitions the other half. By
    weights, [GGK20] Theorem 5.1, at each number of items that one user alone may have."""
    selection = GaussianSelection(EPSILON, DELTA, cap)
    assert selection.sigma == pytest.approx(gaussian_sigma(EPSILON, DELTA / 2) * math.sqrt(cap), rel=1e-9)
    import dp_accounting  # slow to load: here, not for all tests

    sigma = dp_accounting.get_sigma_gaussian(EPSILON, DELTA / 2)
    assert gaussian_sigma(EPSILON, DELTA / 2) == pytest.approx(sigma, rel=1e-3)
    with mpmath.workdps(40):
        lone = mpmath.ncdf((1 - mpmath.mpf(selection.threshold)) / selection.sigma)
        assert float(1 - (1 - lone) ** cap) == pytest.approx(DELTA / 2, rel=1e-6)
        largest = max(
            1 / mpmath.sqrt(pairs)
            + sigma * mpmath.sqrt(2) * mpmath.erfinv(2 * (1 - mpmath.mpf(DELTA) / 2) ** (mpmath.mpf(1) / pairs) - 1)
            for pairs in {1, min(2, cap), cap // 2 or 1, cap}
        )
    assert weighted_gaussian_threshold(EPSILON, DELTA, cap) == pytest.approx(float(largest), rel=1e-6)
