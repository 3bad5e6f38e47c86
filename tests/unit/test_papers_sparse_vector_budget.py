"""Sparse vector: what noise is drawn, and that it is enough for the budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dp_transforms.accounting.composition import optimal_composition_delta
from dp_transforms.mechanisms.papers.noise_source import SecretNoise
from dp_transforms.mechanisms.papers.query import LinearQuery, RealQuery
from dp_transforms.mechanisms.papers.sparse_vector import AboveThreshold, NumericSparse, Sparse, epsilon_per_run
from tests.helpers.branching import exact_law
from tests.helpers.sparse_vector_runs import KEY, Fixed, Silent, ask_all, value_query

# ---------------------------------------------------------------------------------------------------------------------
# What is drawn
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grid", "sensitivity_units", "units"), [(1, None, 1), (8, None, 9), (8, 8, 8), (1, 5, 5)])
def test_the_scales_of_the_noise(grid: int, sensitivity_units: int | None, units: int) -> None:
    """In units; Lap(b) for a sensitivity of 1 is noise with 1 / (b units) for each unit."""
    shape = {"threshold": 0, "grid": grid, "sensitivity_units": sensitivity_units}
    low, high = Fixed(-grid, grid, units), Fixed(grid, grid, units)

    noise = Silent()
    mechanism: Any = AboveThreshold(None, epsilon=0.5, noise=noise, **shape)
    assert [mechanism.ask(low), mechanism.ask(low), mechanism.ask(high)] == [False, False, True]
    assert noise.asked == pytest.approx([scale / units for scale in (0.5 / 2, 0.5 / 4, 0.5 / 4, 0.5 / 4)])

    noise = Silent()
    mechanism = Sparse(None, epsilon=0.6, cutoff=2, noise=noise, **shape)
    sigma = 2 * 2 / 0.6
    assert [mechanism.ask(high), mechanism.ask(low), mechanism.ask(high)] == [True, False, True]
    scales = [sigma, 2 * sigma, sigma, 2 * sigma, 2 * sigma]
    assert noise.asked == pytest.approx([1 / scale / units for scale in scales]), "none for a third run"

    noise = Silent()
    mechanism = NumericSparse(None, epsilon=0.6, cutoff=2, noise=noise, **shape)
    sigma, values = 2 * 2 / (8 / 9 * 0.6), 2 * 2 / (2 / 9 * 0.6)
    assert [mechanism.ask(high), mechanism.ask(low), mechanism.ask(high)] == [1.0, None, 1.0]
    scales = [sigma, 2 * sigma, sigma, values, 2 * sigma, 2 * sigma, values]
    assert noise.asked == pytest.approx([1 / scale / units for scale in scales])


def test_the_published_scales_for_delta_above_0() -> None:
    epsilon, delta, cutoff = 0.7, 1e-3, 100
    noise = Silent()
    Sparse(None, epsilon=epsilon, delta=delta, threshold=0, cutoff=cutoff, noise=noise).ask(value_query(-1))
    sigma = math.sqrt(32 * cutoff * math.log(1 / delta)) / epsilon
    assert noise.asked == pytest.approx([1 / sigma, 1 / (2 * sigma)])

    noise = Silent()
    NumericSparse(None, epsilon=epsilon, delta=delta, threshold=0, cutoff=cutoff, noise=noise).ask(value_query(1))
    shares = [math.sqrt(512) / (math.sqrt(512) + 1), 2 / (math.sqrt(512) + 1)]
    first, second = (math.sqrt(32 * cutoff * math.log(2 / delta)) / (share * epsilon) for share in shares)
    assert noise.asked == pytest.approx([1 / first, 1 / (2 * first), 1 / first, 1 / second])


@given(st.floats(0.05, 20), st.integers(1, 50), st.integers(1, 1000))
def test_all_that_is_drawn_costs_epsilon_at_most(epsilon: float, cutoff: int, units: int) -> None:
    """delta = 0: for each run one shift of the threshold's noise and two of an answer's, and one of each value."""
    noise = Silent()
    mechanism = NumericSparse(
        None, epsilon=epsilon, threshold=0, cutoff=cutoff, sensitivity_units=units, grid=1, noise=noise
    )
    mechanism.ask(value_query(1))
    threshold, answer, value = noise.asked[0], noise.asked[1], noise.asked[-1]
    spent = cutoff * units * (threshold + 2 * answer + value)
    assert spent <= epsilon
    assert spent == pytest.approx(epsilon)


def test_epsilons_beyond_every_need_are_drawn_with_more_noise_and_tiny_ones_are_refused() -> None:
    noise = Silent()
    AboveThreshold(None, epsilon=1e6, threshold=0, noise=noise).ask(value_query(0))
    assert noise.asked == [32.0, 32.0]
    assert AboveThreshold([5], epsilon=1e6, threshold=3, noise=SecretNoise(KEY)).ask(RealQuery(sum)) is True
    with pytest.raises(ValueError, match="Use a larger epsilon, or a smaller cutoff or grid"):
        Sparse(None, epsilon=1e-3, threshold=0, cutoff=10**6)


def test_a_narrow_query_may_be_asked_with_wide_noise_but_not_the_other_way() -> None:
    narrow = LinearQuery([2, 1], grid=4)
    assert AboveThreshold([9, 9], epsilon=1.0, threshold=0, grid=4, noise=Silent()).ask(narrow) is True
    with pytest.raises(ValueError, match=r"by at most 4 units, got 5\. Build the mechanism with a larger"):
        AboveThreshold([9], epsilon=1.0, threshold=0, grid=4, sensitivity_units=4).ask(RealQuery(sum, grid=4))


# ---------------------------------------------------------------------------------------------------------------------
# The budget of one run
# ---------------------------------------------------------------------------------------------------------------------

DELTAS = [0.9, 0.5, 0.1, 1e-3, 1e-9]
CUTOFFS = [1, 2, 3, 10, 100, 3000]


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_cutoff_runs_are_within_the_budget_by_optimal_composition(delta: float, cutoff: int) -> None:
    """Around epsilon = 8 ln(1/delta), where the published noise stops being enough, and far from it."""
    edge = 8 * math.log(1 / delta)
    for epsilon in (1e-3, 0.5, 1.0, edge / 2, edge * 0.999, edge, edge * 1.001, 2 * edge, 10 * edge, 100 * edge):
        per_run = epsilon_per_run(epsilon, delta, cutoff)
        published = epsilon / math.sqrt(8 * cutoff * math.log(1 / delta))
        assert optimal_composition_delta(per_run, cutoff, epsilon) <= delta
        assert per_run < published, "never less noise than published"
        if epsilon <= edge or cutoff <= edge:
            assert per_run == pytest.approx(published)
        else:
            assert per_run < published * (1 - 1e-6)


def test_the_published_noise_is_too_small_where_more_is_drawn() -> None:
    """Not only by the proof: cutoff calls at the published epsilon' can exceed (epsilon, delta)."""
    for delta, cutoff, times in [(0.5, 3000, 3.0), (0.1, 3000, 2.0), (1e-3, 3000, 2.0)]:
        epsilon = times * 8 * math.log(1 / delta)
        published = epsilon / math.sqrt(8 * cutoff * math.log(1 / delta))
        assert optimal_composition_delta(published, cutoff, epsilon) > delta
        assert optimal_composition_delta(epsilon_per_run(epsilon, delta, cutoff), cutoff, epsilon) <= delta


def test_sparse_itself_breaks_its_claim_at_the_published_noise() -> None:
    """[DR14] Theorem 3.25 ("for any epsilon") at delta = 1/2: ten low answers that the user raises, then one far above,
    and again after every top. The rounds are independent, so Chebyshev's inequality bounds the sum of their losses: for
    the event E that it exceeds epsilon + 3, ``P(E) - e^epsilon Q(E) >= P(E) (1 - e^-3)``, far above delta."""
    delta, cutoff, per_run = 0.5, 8000, 2.0
    epsilon = per_run * math.sqrt(8 * cutoff * math.log(1 / delta))

    def mean_and_variance(per_run: float) -> tuple[float, float]:
        law_with, law_without = (
            exact_law(
                ask_all(
                    lambda noise: AboveThreshold(None, epsilon=per_run, threshold=0, noise=noise),
                    [user - 1] * 10 + [10**6],
                ),
                cut=1e-12,
            )
            for user in (1, 0)
        )
        losses = [(p, math.log(p / law_without[bits])) for bits, p in law_with.items() if p > 0]
        mean = sum(p * loss for p, loss in losses)
        return mean, sum(p * (loss - mean) ** 2 for p, loss in losses)

    mean, variance = mean_and_variance(per_run)
    missed_by = cutoff * mean - (epsilon + 3)
    assert missed_by > 0
    likely = 1 - cutoff * variance / missed_by**2
    assert likely * (1 - math.exp(-3)) > 1.5 * delta

    mean, variance = mean_and_variance(epsilon_per_run(epsilon, delta, cutoff))
    assert cutoff * mean + 5 * math.sqrt(cutoff * variance) < epsilon, "the same attack on what the code draws"


@given(st.floats(1e-6, 100), st.integers(1, 10**6))
def test_without_delta_the_budget_is_divided(epsilon: float, cutoff: int) -> None:
    per_run = epsilon_per_run(epsilon, 0.0, cutoff)
    assert per_run * cutoff <= epsilon
    assert per_run * cutoff == pytest.approx(epsilon)


@pytest.mark.parametrize("delta", [0.0, *DELTAS])
@pytest.mark.parametrize("cutoff", [1, 2, 10, 300])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 30.0])
def test_runs_and_values_of_numeric_sparse_are_within_the_budget_together(
    delta: float, cutoff: int, epsilon: float
) -> None:
    """Every call is worth one randomised response at its epsilon, so all losses are those of two binomials."""
    noise = Silent()
    mechanism = NumericSparse(None, epsilon=epsilon, delta=delta, threshold=0, cutoff=cutoff, noise=noise)
    mechanism.ask(value_query(1))
    each = [2 * noise.asked[0], noise.asked[-1]]
    wins = np.arange(cutoff + 1)
    losses = [call * (2 * wins - cutoff) for call in each]
    masses = [stats.binom.pmf(wins, cutoff, 1 / (1 + math.exp(-call))) for call in each]
    loss = losses[0][:, None] + losses[1][None, :]
    attained = (masses[0][:, None] * masses[1][None, :] * -np.expm1(np.minimum(epsilon - loss, 0))).sum()
    assert attained <= delta * (1 + 1e-9)
