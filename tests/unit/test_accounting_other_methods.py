"""From how many users on other methods find an item: against their definitions, written out again."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
import scipy.stats

from dp_transforms.accounting.purse.open_threshold import fewest_users
from dp_transforms.plan.plan_comparison import (
    BestCap,
    GaussianSelection,
    TruncatedGeometric,
    gaussian_histograms_found_from,
    gaussian_sigma,
    partition_selection_found_from,
    weighted_gaussian_found_from,
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


def test_one_partition_of_each_user():
    best = partition_selection_found_from(EPSILON, DELTA, 1)
    wanted = next(users for users, share in enumerate(kept(EPSILON, DELTA, 40)) if share >= 0.95)
    assert best == BestCap(wanted, 1, "truncated geometric")


@pytest.mark.parametrize("looks", [3, 8])
def test_the_best_cap_is_the_best_of_all(looks):
    """Every cap and both strategies, with the whole binomial law of the users that count."""

    def needed(strategy, cap):
        keep = strategy(EPSILON, DELTA, cap)
        users = 10
        while True:
            counted = np.arange(users + 1)
            if scipy.stats.binom.pmf(counted, users, cap / looks) @ keep(counted) >= 0.95:
                return users
            users += 1

    fewest = min(
        needed(strategy, cap) for strategy in (TruncatedGeometric, GaussianSelection) for cap in range(1, looks + 1)
    )
    assert partition_selection_found_from(EPSILON, DELTA, looks).users == fewest


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


@pytest.mark.parametrize("looks", [1, 10, 100])
def test_the_weighted_gaussian_finds_an_item_from_there_on(looks):
    users = weighted_gaussian_found_from(EPSILON, DELTA, looks, 3000)
    threshold = weighted_gaussian_threshold(EPSILON, DELTA, 3000)
    sigma = dp_accounting.get_sigma_gaussian(EPSILON, DELTA / 2)
    for number, is_found in ((users, True), (users - 1, False)):
        found = scipy.stats.norm.sf(threshold, loc=number / math.sqrt(looks), scale=sigma)
        assert (found >= 0.95) == is_found


def test_of_more_pairs_than_count_the_weighted_gaussian_has_a_random_choice():
    users = weighted_gaussian_found_from(EPSILON, DELTA, 100, 20)
    sigma = dp_accounting.get_sigma_gaussian(EPSILON, DELTA / 2)
    threshold = weighted_gaussian_threshold(EPSILON, DELTA, 20)
    for number, is_found in ((users, True), (users - 1, False)):
        counted = np.arange(number + 1)
        found = scipy.stats.norm.sf(threshold, loc=counted / math.sqrt(20), scale=sigma)
        assert (scipy.stats.binom.pmf(counted, number, 0.2) @ found >= 0.95) == is_found


def test_gaussian_histograms_as_in_the_readme():
    """Thresholds of 705 and 3,559 for 384 and 8,760 windows with 3 items of a user each."""
    sigma = dp_accounting.get_sigma_gaussian(EPSILON, DELTA / 2)
    for windows, threshold in ((384, 705), (8760, 3559)):
        found = gaussian_histograms_found_from(EPSILON, DELTA, 3 * windows)
        assert found == math.ceil(threshold + scipy.stats.norm.ppf(0.95) * sigma * math.sqrt(3 * windows))


@pytest.mark.parametrize("share", [1.0, 0.5, 0.03])
@pytest.mark.parametrize("needed", [1, 2, 40])
def test_fewest_users_of_a_sharp_threshold(share, needed):
    """Found once `needed` users count."""
    users = fewest_users(lambda counted: (counted >= needed).astype(float), share, 0.95)
    for number, is_found in ((users, True), (users - 1, False)):
        assert (scipy.stats.binom.sf(needed - 1, number, share) >= 0.95) == is_found


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: partition_selection_found_from(2.0, 1e-9, 0), "looks must be"),
        (lambda: partition_selection_found_from(2.0, 1e-9, 1, 1.0), "probability must lie strictly"),
        (lambda: weighted_gaussian_found_from(2.0, 1e-9, 0, 5), "looks must be"),
        (lambda: weighted_gaussian_found_from(2.0, 1e-9, 5, 0), "most_looks must be"),
        (lambda: gaussian_histograms_found_from(2.0, 1e-9, 0), "counts must be"),
    ],
)
def test_wrong_numbers_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
