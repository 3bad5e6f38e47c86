"""AboveThreshold, Sparse and NumericSparse: what they draw and answer, accuracy, budgets against optimal composition.

Exact laws of whole streams are in tests/privacy/test_sparse_vector.py.
"""

import functools
import math

import numpy as np
import pytest
import scipy

from dp_transforms.papers.noise_source import Halted
from dp_transforms.papers.query import LinearQuery, RealQuery, epsilon_per_unit
from dp_transforms.papers.sparse_vector import AboveThreshold, NumericSparse, Sparse, epsilon_per_run
from tests.papers.scripted import Given

DATA = [100, 7]
ANSWER = LinearQuery([1, 0])

each_mechanism = pytest.mark.parametrize(
    "make",
    [
        functools.partial(AboveThreshold, epsilon=1.0, threshold=0),
        functools.partial(Sparse, epsilon=1.0, threshold=0, cutoff=1),
        functools.partial(NumericSparse, epsilon=1.0, threshold=0, cutoff=1),
    ],
    ids=lambda make: make.func.__name__,
)


@pytest.mark.parametrize("cutoff", [1, 2, 3])
def test_an_answer_at_the_threshold_is_above_it_and_the_last_one_ends_the_stream(cutoff):
    run = epsilon_per_run(1.0, 0.0, cutoff)
    threshold, answer = epsilon_per_unit(run / 2, 1), epsilon_per_unit(run / 4, 1)
    noise = Given(*[4, 3, 4] * cutoff)  # the threshold's, an answer just below it, and one at it
    make = AboveThreshold if cutoff == 1 else functools.partial(Sparse, cutoff=cutoff)
    stream = make(DATA, epsilon=1.0, threshold=100, noise=noise)
    assert [stream.ask(ANSWER) for _ in range(2 * cutoff)] == [False, True] * cutoff
    assert noise.epsilons == [threshold, answer, answer] * cutoff
    assert (stream.halted, stream.tops) == (True, cutoff)
    with pytest.raises(Halted):
        stream.ask(ANSWER)


@pytest.mark.parametrize(("grid", "units", "delta"), [(1, 1, 0.0), (4, 5, 0.0), (1, 1, 1e-6)])
def test_a_value_has_noise_of_its_own(grid, units, delta):
    noise = Given(0, 9, 0, 5, -9, 7, -6)
    stream = NumericSparse(DATA, epsilon=2.0, delta=delta, threshold=100, cutoff=2, grid=grid, noise=noise)
    query = LinearQuery([grid, 0], grid=grid)
    assert [stream.ask(query) for _ in range(3)] == [100 + 5 / grid, None, 100 - 6 / grid]
    share = 8 / 9 if delta == 0 else math.sqrt(512) / (math.sqrt(512) + 1)
    run = epsilon_per_run(share * 2.0, delta / 2, 2)
    threshold, answer = epsilon_per_unit(run / 2, units), epsilon_per_unit(run / 4, units)
    value = epsilon_per_unit(epsilon_per_run((1 - share) * 2.0, delta / 2, 2), units)
    assert noise.epsilons == [threshold, answer, threshold, value, answer, answer, value]


def _raises(data):
    raise KeyError("no such item")


@each_mechanism
def test_a_query_that_is_refused_or_raises_costs_nothing(make):
    noise = Given()
    mechanism = make([1, 2], noise=noise, grid=4, sensitivity_units=4)
    for query, error in (
        (LinearQuery([1, 1]), "must have grid 4, as the mechanism has, got 1"),
        (LinearQuery([1, 1, 1], grid=4), "data must be whole numbers"),
        (RealQuery(lambda data: data[0], grid=4), "at most 4 units, got 5"),
        (LinearQuery([1], grid=4), "data must be whole numbers"),
    ):
        with pytest.raises(ValueError, match=error):
            mechanism.ask(query)
    with pytest.raises(KeyError):
        make([1, 2], noise=noise).ask(RealQuery(_raises))
    assert len(noise.epsilons) == 2, "those of two thresholds"
    assert not mechanism.halted
    mechanism.ask(LinearQuery([4, 4], grid=4))
    assert mechanism.halted


@each_mechanism
def test_without_a_source_noise_is_secret(make):
    answers = {str([make(None).ask(RealQuery(lambda data: 0)) for _ in range(60)]) for _ in range(2)}
    assert len(answers) == 2


@pytest.mark.parametrize(("queries", "beta", "cutoff"), [(1, 0.5, 1), (50, 0.1, 3), (10**6, 1e-9, 200)])
def test_alpha_is_that_of_the_theorems(queries, beta, cutoff):
    """Rounded up by less than two units; on grid 8, with 9 units for a user, 9/8 times as much, and less than 2/8."""
    logarithms = math.log(queries) + math.log(2 * cutoff / beta)
    for grid, factor in ((1, 1), (8, 9 / 8)):
        alpha = Sparse(None, threshold=1, grid=grid, epsilon=0.5, cutoff=cutoff).accuracy(queries, beta)
        published = 16 * cutoff * logarithms * factor
        assert published <= alpha <= published + 2 / grid
    numeric = NumericSparse(None, threshold=1, epsilon=0.5, cutoff=cutoff).accuracy(queries, beta)
    published = 18 * cutoff * (logarithms + math.log(2))
    assert published <= numeric <= published + 2


def optimal_composition_delta(epsilon_per_query, calls, epsilon):
    """Each of the calls is worth one randomised response ([KOV15])."""
    ups = np.arange(calls + 1)
    mass = scipy.stats.binom.pmf(ups, calls, 1 / (1 + math.exp(-epsilon_per_query)))
    return float(-np.sum(mass * np.expm1(np.minimum(epsilon - epsilon_per_query * (2 * ups - calls), 0))))


DELTAS = [0.9, 0.5, 0.1, 1e-3, 1e-9]


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("cutoff", [1, 2, 3, 10, 100, 3000])
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


@pytest.mark.parametrize("delta", [0.0, *DELTAS])
@pytest.mark.parametrize("cutoff", [1, 10, 300])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 30.0])
def test_runs_and_values_of_numeric_sparse_are_within_the_budget_together(delta, cutoff, epsilon):
    """Every call is worth one randomised response at its epsilon, so all losses are those of two binomials."""
    noise = Given()
    mechanism = NumericSparse(None, epsilon=epsilon, delta=delta, threshold=0, cutoff=cutoff, noise=noise)
    mechanism.ask(RealQuery(lambda data: 1))
    each = [2 * noise.epsilons[0], noise.epsilons[-1]]
    wins = np.arange(cutoff + 1)
    losses = [call * (2 * wins - cutoff) for call in each]
    masses = [scipy.stats.binom.pmf(wins, cutoff, 1 / (1 + math.exp(-call))) for call in each]
    loss = losses[0][:, None] + losses[1][None, :]
    attained = (masses[0][:, None] * masses[1][None, :] * -np.expm1(np.minimum(epsilon - loss, 0))).sum()
    assert attained <= delta * (1 + 1e-9)
