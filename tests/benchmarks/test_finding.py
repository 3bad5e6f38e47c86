"""The peers of the benchmark `finding`, by the formulas of their papers."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from benchmarks import peers_histograms, peers_set_union
from benchmarks.other_methods import GaussianSelection, TruncatedGeometric, gaussian_sigma, weighted_gaussian_threshold

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


def test_the_policy_histogram_is_that_of_its_algorithm():
    random = np.random.default_rng(3)
    users = [sorted(random.choice(12, random.integers(1, 6), replace=False).tolist()) for _ in range(60)]
    splits = np.cumsum([0, *map(len, users)])
    order = random.permutation(60)
    for goal in (2.0, 3.7, 50.0):
        sums = peers_set_union.policy_histogram(np.concatenate(users), splits, 12, goal, order)
        assert sums == pytest.approx(policy_by_definition([users[user] for user in order], 12, goal))
        assert sums.max() <= goal + 1e-12


def excess(p, q, shift):
    """The integral of the positive part of ``p phi(x) - q phi(x + shift)``; it begins at one point and goes on."""
    begins = (math.log(q / p) - shift**2 / 2) / shift
    density = integrate.quad(
        lambda at: p * stats.norm.pdf(at) - q * stats.norm.pdf(at + shift), begins, max(begins, 0) + 12, limit=200
    )
    return float(density[0])


@pytest.mark.parametrize(("cap", "sigma", "margin"), [(1, 1.0, 3.0), (2, 1.5, 4.0), (2, 3.0, 5.0), (3, 1.2, 6.0)])
def test_exact_delta_is_that_of_the_worst_pair(cap, sigma, margin):
    """By quadrature: j of the counts that the user changes are new, the others move along the line of their sum."""
    epsilon = 1.0
    worst = 0.0
    for new in range(cap + 1):
        hidden = stats.norm.cdf(margin / sigma) ** new
        if new == cap:
            worst = max(worst, 1 - hidden)  # nothing else differs; without the user nothing is new
            continue
        shift = math.sqrt(cap - new) / sigma

        added = excess(hidden, math.exp(epsilon), shift)
        removed = excess(1.0, math.exp(epsilon) * hidden, shift)
        worst = max(worst, 1 - hidden + added, removed)
    assert peers_histograms.exact_delta(epsilon, cap, sigma, margin) == pytest.approx(worst, rel=1e-4)


def kept(epsilon, delta, most):
    """pi(0), pi(1), ...: the definition of optimal partition selection, before it is solved ([DVGM22], section 3)."""
    with mpmath.workdps(50):
        grown = mpmath.exp(epsilon)
        found = [mpmath.mpf(0)]
        for _ in range(most):
            last = found[-1]
            found.append(min(grown * last + delta, 1 - (1 - last - delta) / grown, mpmath.mpf(1)))
        return found


@pytest.mark.parametrize(("epsilon", "delta", "cap"), [(2.0, 1e-9, 1), (2.0, 1e-9, 10), (0.5, 1e-6, 3), (8.0, 1e-3, 2)])
def test_truncated_geometric_selection_keeps_as_much_as_its_definition(epsilon, delta, cap):
    with mpmath.workdps(50):
        share = 1 - (1 - mpmath.mpf(delta)) ** (1 / mpmath.mpf(cap))
    wanted = kept(epsilon / cap, share, 400)
    found = TruncatedGeometric(epsilon, delta, cap)(np.arange(401))
    assert found == pytest.approx(np.array(wanted, dtype=float), rel=1e-9)
    assert found[0] == 0
    assert found[-1] == 1


@pytest.mark.parametrize(("epsilon", "delta"), [(2.0, 5e-10), (0.01, 1e-6), (30.0, 1e-12), (1.0, 0.3)])
def test_the_gaussian_noise_is_that_of_dp_accounting(epsilon, delta):
    assert gaussian_sigma(epsilon, delta) == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-3)


@pytest.mark.parametrize("cap", [1, 10, 300])
def test_gaussian_selection_is_private_and_no_more(cap):
    """The noise takes half of delta at a sensitivity of sqrt(cap); a lone user of `cap` partitions the other half."""
    selection = GaussianSelection(EPSILON, DELTA, cap)
    with mpmath.workdps(40):
        moved = mpmath.sqrt(cap) / selection.sigma
        noise = mpmath.ncdf(moved / 2 - EPSILON / moved) - mpmath.exp(EPSILON) * mpmath.ncdf(
            -moved / 2 - EPSILON / moved
        )
        lone = mpmath.ncdf((1 - mpmath.mpf(selection.threshold)) / selection.sigma)
        assert float(noise) == pytest.approx(DELTA / 2, rel=1e-9)
        assert float(1 - (1 - lone) ** cap) == pytest.approx(DELTA / 2, rel=1e-6)
    assert selection(np.array([1]))[0] == pytest.approx(float(lone), rel=1e-6)


@pytest.mark.parametrize("most_tests", [1, 40, 3000])
def test_the_threshold_of_the_weighted_gaussian(most_tests):
    """[GGK20] Theorem 5.1, at each number of items that one user alone may have."""
    sigma = dp_accounting.get_sigma_gaussian(EPSILON, DELTA / 2)
    with mpmath.workdps(40):
        largest = max(
            1 / mpmath.sqrt(pairs)
            + sigma * mpmath.sqrt(2) * mpmath.erfinv(2 * (1 - mpmath.mpf(DELTA) / 2) ** (mpmath.mpf(1) / pairs) - 1)
            for pairs in {1, *({2, 3, most_tests // 2} if most_tests > 3 else ()), most_tests}
        )
    assert weighted_gaussian_threshold(EPSILON, DELTA, most_tests) == pytest.approx(float(largest), rel=1e-9)
