"""Bounds and tests for counts: against sums of binomial probabilities, and on counts of known laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dp_transforms.audit.statistics import binomial_p_value, clopper_pearson, epsilon_lower_bound, multinomial_p_value


def _at_least(successes: int, runs: int, probability: float) -> float:
    """``Pr[Binomial >= successes]``, summed."""
    return math.fsum(
        math.comb(runs, k) * probability**k * (1 - probability) ** (runs - k) for k in range(successes, runs + 1)
    )


@pytest.mark.parametrize(("successes", "runs"), [(0, 20), (1, 20), (7, 20), (20, 20)])
def test_bounds_on_a_probability_are_exact(successes: int, runs: int) -> None:
    lower, upper = clopper_pearson(successes, runs, 0.01)
    assert 0 <= lower <= successes / runs <= upper <= 1
    if successes:
        assert _at_least(successes, runs, lower) == pytest.approx(0.01)
    if successes < runs:
        assert 1 - _at_least(successes + 1, runs, upper) == pytest.approx(0.01)


@pytest.mark.parametrize("confidence", [0.1, 0.9])
@pytest.mark.parametrize(("p", "q", "delta"), [(0.6, 0.3, 0.0), (0.7, 0.3, 0.1), (0.9, 0.9 / math.e, 0.0)])
def test_the_bound_on_epsilon_covers_as_it_says(confidence: float, p: float, q: float, delta: float) -> None:
    """Exactly, by summing over all counts of 80 runs: too high with probability at most 1 - confidence. Where the two
    bounds together may be wrong that often, but not each of them, which shows at a low confidence."""
    runs, truth = 80, math.log((p - delta) / q)
    masses_p, masses_q = (stats.binom.pmf(np.arange(runs + 1), runs, x) for x in (p, q))

    def wrong(error: float) -> float:
        lower = np.array([clopper_pearson(k, runs, error)[0] for k in range(runs + 1)])
        upper = np.array([clopper_pearson(k, runs, error)[1] for k in range(runs + 1)])
        return float(masses_p @ (lower[:, None] - delta > math.exp(truth) * upper) @ masses_q)

    likely_p, likely_q = (np.flatnonzero(masses > 1e-8) for masses in (masses_p, masses_q))
    attained = math.fsum(
        masses_p[first] * masses_q[second]
        for first in likely_p
        for second in likely_q
        if epsilon_lower_bound(int(first), int(second), runs, delta, confidence) > truth
    )
    assert 0 < attained <= 1 - confidence
    if confidence < 0.5:
        assert wrong(1 - confidence) > 1 - confidence, "a test that an error of 1 - confidence on each side fails"


def test_the_bound_on_epsilon_in_closed_form() -> None:
    """If all runs of one world show the event and none of the other, both bounds are powers of half the error."""
    runs, confidence, delta = 50, 0.9, 0.01
    root = ((1 - confidence) / 2) ** (1 / runs)
    expected = math.log((root - delta) / (1 - root))
    assert epsilon_lower_bound(runs, 0, runs, delta, confidence) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("masses", [(0.5, 0.5), (0.9, 0.1), (0.97, 0.02, 0.01)])
def test_a_false_alarm_is_as_rare_as_it_says_far_out_in_the_tail(masses: tuple[float, ...]) -> None:
    """Exactly: of two bins, by the sum over all counts; of three, each bin by itself. A chi-squared test is wrong ten
    times as often at 1e-8 where 50 are expected."""
    runs = 5_000
    for share in (1e-3, 1e-6, 1e-8):
        if len(masses) == 2:
            counts = np.arange(runs + 1)
            law = stats.binom.pmf(counts, runs, masses[0])
            near = np.flatnonzero(law > 1e-16)
            p_values = np.array([multinomial_p_value([n, runs - n], masses) for n in near.tolist()])
            assert law[near][p_values < share].sum() <= share
        else:
            least = int(stats.binom.isf(share / 2 / 3, runs, masses[2]))
            rest = np.array(masses[:2]) / sum(masses[:2]) * (runs - least + 5)
            assert multinomial_p_value([*rest.round(), least - 5], masses) > share
            assert multinomial_p_value([*rest.round(), 2 * least], masses) < share


def test_another_law_is_found() -> None:
    masses = np.array([0.5, 0.3, 0.2])
    assert multinomial_p_value([5_000, 3_000, 2_000], masses) == pytest.approx(1)
    assert multinomial_p_value([5_300, 2_800, 1_900], masses) < 1e-6
    assert multinomial_p_value([5_000, 3_000, 1_999, 1], [*masses, 0.0]) == 0, "what cannot be"
    # Rare outcomes are tested together, and a law with one outcome not at all.
    rare = np.array([0.9, *[0.1 / 500] * 500])
    counts = np.array([9_000, *[2] * 500])
    assert multinomial_p_value(counts, rare) > 0.99
    assert multinomial_p_value([10_000, *[0] * 500], rare) < 1e-6
    assert multinomial_p_value([10_000], [1.0]) == 1
    # Probabilities of some of what can happen: given that it did.
    assert multinomial_p_value([500, 500], [0.01, 0.01]) == pytest.approx(1)


def test_binomial_p_value_by_its_definition() -> None:
    masses = [_at_least(k, 15, 0.3) - _at_least(k + 1, 15, 0.3) for k in range(16)]
    for seen in (0, 4, 9):
        expected = math.fsum(mass for mass in masses if mass <= masses[seen] * (1 + 1e-7))
        assert binomial_p_value(seen, 15, 0.3) == pytest.approx(expected)
    assert binomial_p_value(10, 10, 1 + 1e-16) == 1
