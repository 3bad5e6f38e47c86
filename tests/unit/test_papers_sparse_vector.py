"""AboveThreshold, Sparse and NumericSparse: what they ask and draw, accuracy, budgets against optimal composition."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dp_transforms.accounting.composition import optimal_composition_delta
from dp_transforms.papers.noise_source import SecretNoise
from dp_transforms.papers.query import LinearQuery, RealQuery
from dp_transforms.papers.sparse_vector import AboveThreshold, NumericSparse, Sparse, epsilon_per_run


class Silent:
    """Draws 0 and notes what was asked for."""

    def __init__(self):
        self.asked = []

    def discrete_laplace(self, epsilon):
        self.asked.append(epsilon)
        return 0


def value_query(answer, grid=1):
    """A query with one answer for all data."""
    return RealQuery(lambda data: answer, grid)


ALL = [
    functools.partial(AboveThreshold, epsilon=1.0, threshold=0),
    functools.partial(Sparse, epsilon=1.0, threshold=0, cutoff=1),
    functools.partial(NumericSparse, epsilon=1.0, threshold=0, cutoff=1),
]
each_mechanism = pytest.mark.parametrize("make", ALL, ids=lambda make: make.func.__name__)


@each_mechanism
def test_a_query_that_is_refused_costs_nothing(make):
    noise = Silent()
    mechanism = make([1, 2], noise=noise)
    with pytest.raises(ValueError, match="must have grid 1, as the mechanism has, got 5"):
        mechanism.ask(value_query(1, grid=5))
    with pytest.raises(ValueError, match="data must be whole numbers"):
        mechanism.ask(LinearQuery([1, 1, 1]))
    assert len(noise.asked) == 1
    assert not mechanism.halted
    mechanism.ask(LinearQuery([1, 1]))
    assert mechanism.halted


@pytest.mark.parametrize(("threshold", "units"), [(0.5, 2), (0.51, 3), (-0.51, -2), (0, 0), (7, 28)])
def test_thresholds_are_rounded_up_to_the_grid(threshold, units):
    def above(answer):
        mechanism = AboveThreshold(None, epsilon=1.0, threshold=threshold, grid=4, noise=Silent())
        return mechanism.ask(value_query(answer / 4, grid=4))

    assert above(units)
    assert not above(units - 1)


@pytest.mark.parametrize(("queries", "beta"), [(1, 0.5), (50, 0.1), (10**6, 1e-9)])
@pytest.mark.parametrize("cutoff", [1, 3, 200])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_alpha_is_that_of_the_theorems(queries, beta, cutoff, delta):
    """Rounded up by less than two units; on grid 8, with 9 units for a user, 9/8 times as much, and less than 2/8."""
    epsilon = 0.5
    logarithms = math.log(queries) + math.log(2 * cutoff / beta)
    if delta:
        published = math.sqrt(512 * cutoff * math.log(1 / delta)) * logarithms / epsilon
    else:
        published = 8 * cutoff * logarithms / epsilon
    shape = {"epsilon": epsilon, "delta": delta, "cutoff": cutoff}
    for grid in (1, 8):
        alpha = Sparse(None, threshold=1, grid=grid, **shape).accuracy(queries, beta)
        factor = 1 if grid == 1 else 9 / 8
        assert published * factor <= alpha <= published * factor + 2 / grid
        shifted = Sparse(None, threshold=1.3 - 1.0, grid=8, **shape).accuracy(queries, beta)
    assert shifted == pytest.approx(alpha + 0.075), "0.3 is rounded up to 3/8"
    if cutoff == 1 and not delta:
        single = AboveThreshold(None, epsilon=epsilon, threshold=1).accuracy(queries, beta)
        assert published <= single <= published + 2
    numeric = NumericSparse(None, threshold=1, **shape).accuracy(queries, beta)
    logarithms += math.log(2)
    if delta == 0:
        published = 9 * cutoff * logarithms / epsilon
    else:
        scale = (math.sqrt(512) + 1) * math.sqrt(cutoff * math.log(2 / delta)) / epsilon
        published = scale * max(logarithms, math.sqrt(8) * math.log(2 * cutoff / beta))
    assert published <= numeric <= published + 2


@each_mechanism
def test_without_a_source_noise_is_secret(make):
    answers = {str([make(None).ask(value_query(0)) for _ in range(60)]) for _ in range(2)}
    assert len(answers) == 2


def test_a_query_that_raises_uses_up_no_noise():
    def refuse(data):
        raise KeyError("no such item")

    for make in (AboveThreshold, Sparse, NumericSparse):
        arguments = {"epsilon": 1.0, "threshold": 3} | ({} if make is AboveThreshold else {"cutoff": 1})
        noise = Silent()
        mechanism = make([5], noise=noise, **arguments)
        before = list(noise.asked)
        with pytest.raises(KeyError):
            mechanism.ask(RealQuery(refuse))
        assert noise.asked == before
        assert mechanism.ask(RealQuery(sum))


@given(st.floats(0.05, 20), st.integers(1, 50), st.integers(1, 1000))
def test_all_that_is_drawn_costs_epsilon_at_most(epsilon, cutoff, units):
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


def test_epsilons_beyond_every_need_are_drawn_with_more_noise_and_tiny_ones_are_refused():
    noise = Silent()
    AboveThreshold(None, epsilon=1e6, threshold=0, noise=noise).ask(value_query(0))
    assert noise.asked == [32.0, 32.0]
    assert AboveThreshold([5], epsilon=1e6, threshold=3, noise=SecretNoise(bytes(32))).ask(RealQuery(sum)) is True
    with pytest.raises(ValueError, match="Use a larger epsilon, or a smaller cutoff or grid"):
        Sparse(None, epsilon=1e-3, threshold=0, cutoff=10**6)


DELTAS = [0.9, 0.5, 0.1, 1e-3, 1e-9]
CUTOFFS = [1, 2, 3, 10, 100, 3000]


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_cutoff_runs_are_within_the_budget_by_optimal_composition(delta, cutoff):
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


def test_the_published_noise_is_too_small_where_more_is_drawn():
    """Not only by the proof: cutoff calls at the published epsilon' can exceed (epsilon, delta)."""
    for delta, cutoff, times in [(0.5, 3000, 3.0), (0.1, 3000, 2.0), (1e-3, 3000, 2.0)]:
        epsilon = times * 8 * math.log(1 / delta)
        published = epsilon / math.sqrt(8 * cutoff * math.log(1 / delta))
        assert optimal_composition_delta(published, cutoff, epsilon) > delta
        assert optimal_composition_delta(epsilon_per_run(epsilon, delta, cutoff), cutoff, epsilon) <= delta


@pytest.mark.parametrize("delta", [0.0, *DELTAS])
@pytest.mark.parametrize("cutoff", [1, 2, 10, 300])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 30.0])
def test_runs_and_values_of_numeric_sparse_are_within_the_budget_together(delta, cutoff, epsilon):
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
