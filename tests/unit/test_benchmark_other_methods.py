"""Formulas of the peers of the benchmark `finding`, against their definitions, written out again."""

import dp_accounting
import mpmath
import numpy as np
import pytest

from benchmarks.other_methods import (
    GaussianSelection,
    TruncatedGeometric,
    gaussian_sigma,
    weighted_gaussian_threshold,
)

EPSILON, DELTA = 2.0, 1e-9


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


@pytest.mark.parametrize("most_looks", [1, 40, 3000])
def test_the_threshold_of_the_weighted_gaussian(most_looks):
    """[GGK20] Theorem 5.1, at each number of items that one user alone may have."""
    sigma = dp_accounting.get_sigma_gaussian(EPSILON, DELTA / 2)
    with mpmath.workdps(40):
        largest = max(
            1 / mpmath.sqrt(pairs)
            + sigma * mpmath.sqrt(2) * mpmath.erfinv(2 * (1 - mpmath.mpf(DELTA) / 2) ** (mpmath.mpf(1) / pairs) - 1)
            for pairs in {1, *({2, 3, most_looks // 2} if most_looks > 3 else ()), most_looks}
        )
    assert weighted_gaussian_threshold(EPSILON, DELTA, most_looks) == pytest.approx(float(largest), rel=1e-9)
