"""Sparse vector: what noise is drawn, and that it is enough for the budget."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dp_transforms.accounting.composition import optimal_composition_delta
from dp_transforms.mechanisms.papers.noise_source import SecretNoise
from dp_transforms.mechanisms.papers.query import RealQuery
from dp_transforms.mechanisms.papers.sparse_vector import AboveThreshold, NumericSparse, Sparse, epsilon_per_run
from tests.helpers.sparse_vector_runs import KEY, Silent, value_query

# ---------------------------------------------------------------------------------------------------------------------
# What is drawn
# ---------------------------------------------------------------------------------------------------------------------


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
