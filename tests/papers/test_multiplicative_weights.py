"""Private multiplicative weights, online and offline: what they draw, learn and publish, and their accuracy."""

import numpy as np
import pytest

from dp_transforms.papers.multiplicative_weights import (
    OfflineMultiplicativeWeights,
    OnlineMultiplicativeWeights,
    update_limit,
)
from dp_transforms.papers.noise_source import Halted
from dp_transforms.papers.query import LinearQuery, epsilon_per_unit
from dp_transforms.papers.sparse_vector import NumericSparse
from dp_transforms.papers.synthetic_data import MultiplicativeWeights, SmallDatabase
from tests.papers.scripted import Given

FIRST = LinearQuery([1, 0, 0, 0])
HISTOGRAM = [900, 0, 0, 100]


class WithinBounds(Given):
    """Noise as large as is allowed, of either sign: values of the online learner, of a smaller epsilon, may have 6
    times as much."""

    def __init__(self, random, most, epsilon_of_values=0.0):
        super().__init__()
        self._random, self._most, self._epsilon_of_values = random, most, epsilon_of_values

    def discrete_laplace(self, epsilon):
        return int(self._random.choice([-self._most, self._most])) * (6 if epsilon <= self._epsilon_of_values else 1)


RECORDS, ACCURACY = 100_000, 0.2


def _log(seed, grid):
    random = np.random.default_rng(seed)
    histogram = random.multinomial(RECORDS, random.dirichlet(np.full(16, 0.1)))
    queries = [LinearQuery(random.integers(0, grid + 1, 16), grid) for _ in range(60)]
    return random, histogram, queries, int(ACCURACY / 8 * RECORDS * grid) - 2


def _share(query, histogram):
    return query.answer(histogram) / query.grid / RECORDS


@pytest.mark.parametrize(("grid", "seed"), [(1, 0), (8, 1)])
def test_online_answers_are_accurate_whatever_the_noise_within_its_bounds(grid, seed):
    """The deterministic half of Theorem 5: comparisons are right up to accuracy / 4, values up to 3/4 of it. The
    adversary knows the data, and asks the worst query next."""
    random, histogram, queries, most = _log(seed, grid)
    noise = WithinBounds(random, most, 1 / 9 / update_limit(16, ACCURACY) / grid)
    online = OnlineMultiplicativeWeights(
        histogram, records=RECORDS, epsilon=1.0, accuracy=ACCURACY, grid=grid, noise=noise
    )
    updates = 0
    for _ in range(150):
        query = max(queries, key=lambda q: abs(_share(q, histogram) - online.synthetic.answer(q)))
        answer = online.ask(query)
        assert abs(answer.share - _share(query, histogram)) <= ACCURACY
        updates += answer.updated
    assert 0 < updates == online.updates < update_limit(16, ACCURACY)
    assert not online.halted


@pytest.mark.parametrize(("grid", "seed"), [(1, 0), (8, 1)])
def test_the_released_distribution_is_accurate_whatever_the_noise_within_its_bounds(grid, seed):
    random, histogram, queries, most = _log(seed, grid)
    offline = OfflineMultiplicativeWeights(
        histogram,
        queries,
        records=RECORDS,
        epsilon_per_call=1.0,
        accuracy=ACCURACY,
        noise=WithinBounds(random, most),
    )
    synthetic = offline.release()
    assert max(abs(synthetic.answer(query) - _share(query, histogram)) for query in queries) <= ACCURACY
    assert len(offline.measured) < update_limit(16, ACCURACY), "it ended by itself"
    for position, share in offline.measured:
        assert abs(share - _share(queries[position], histogram)) == pytest.approx(most / grid / RECORDS)


@pytest.mark.parametrize(("updates", "cutoff"), [(None, update_limit(4, 0.4)), (3, 3)])
def test_an_online_learner_hands_its_budget_on(updates, cutoff):
    """Its noise is that of `NumericSparse` with the same numbers."""
    budget = {"epsilon": 1.5, "delta": 1e-6, "grid": 4}
    ours, theirs = Given(), Given()
    online = OnlineMultiplicativeWeights(HISTOGRAM, records=1000, accuracy=0.4, updates=updates, noise=ours, **budget)
    online.ask(LinearQuery([4, 0, 0, 0], grid=4))
    sparse = NumericSparse([1000], threshold=300, cutoff=cutoff, sensitivity_units=4, noise=theirs, **budget)
    sparse.ask(LinearQuery([4], grid=4))
    assert ours.epsilons == theirs.epsilons


def test_an_online_answer_is_the_estimate_and_its_noisy_error():
    """Draws: of the threshold, then of a comparison and, where it is above, of the next threshold and its value."""
    noise = Given(0, 0, 0, 20, 0, 0)
    online = OnlineMultiplicativeWeights(HISTOGRAM, records=1000, epsilon=5.0, accuracy=0.4, noise=noise)
    first = online.ask(FIRST)
    assert (first.share, first.updated) == (pytest.approx(0.92), True)
    assert online.synthetic.shares[0] == pytest.approx(0.25 + 0.67 - 0.3), "by what the error was at the least"
    second = online.ask(FIRST)
    assert (second.share, second.updated) == (pytest.approx(0.62), False)
    assert online.updates == 1


def test_updates_are_limited_and_what_was_learned_stays():
    online = OnlineMultiplicativeWeights(HISTOGRAM, records=1000, epsilon=1.0, accuracy=0.2, updates=1, noise=Given())
    assert online.ask(FIRST).updated
    with pytest.raises(Halted, match="halted"):
        online.ask(FIRST)
    assert online.synthetic.answer(FIRST) > 0.7
    noise = Given(0, -100, 0, -300, 0, -500)  # the answer to the first query never settles
    offline = OfflineMultiplicativeWeights(
        HISTOGRAM,
        [FIRST, LinearQuery([0, 1, 1, 0])],
        records=1000,
        epsilon_per_call=1.0,
        accuracy=0.01,
        updates=3,
        noise=noise,
    )
    offline.release()
    assert len(offline.measured) == 3


def test_an_offline_learner_measures_the_worst_query_and_moves_by_what_is_left():
    queries = [FIRST, LinearQuery([1, 1, 0, 0])]
    noise = Given(0, 20, 1, 0)
    learner = OfflineMultiplicativeWeights(
        HISTOGRAM, queries, records=1000, epsilon_per_call=0.5, accuracy=0.4, updates=2, noise=noise
    )
    synthetic = learner.release()
    assert learner.measured == [(0, pytest.approx(0.92)), (1, pytest.approx(0.9))]
    assert noise.epsilons == [epsilon_per_unit(0.5, 1)] * 2
    assert [len(weights) for weights in noise.weights] == [2, 2]
    moved = MultiplicativeWeights(4)
    moved.move(queries[0], 0.92 - 0.05)
    assert synthetic.shares == pytest.approx(moved.synthetic.shares), "the second error was small: it ended there"
    with pytest.raises(Halted, match="released"):
        learner.release()


def test_the_declared_number_of_records_is_not_compared_with_the_data():
    """Not even where the data have more: an error would tell who is in them."""
    query = LinearQuery([1, 0])
    online = OnlineMultiplicativeWeights([5000, 0], records=1000, epsilon=1.0, accuracy=0.2, noise=Given())
    assert online.ask(query) == (1.0, True)
    small = SmallDatabase([5000, 0], [query], records=1000, size=2, epsilon=1.0, noise=Given())
    assert small.release().shares.tolist() == [1.0, 0.0]
