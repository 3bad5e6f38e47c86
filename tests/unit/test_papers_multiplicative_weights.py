"""Multiplicative weights, small databases and the exponential mechanism: lemmas, laws, accuracy."""

import fractions
import itertools
import math

import numpy as np
import pytest

from dp_transforms.papers.exponential_mechanism import ExponentialMechanism
from dp_transforms.papers.multiplicative_weights import (
    OfflineMultiplicativeWeights,
    OnlineMultiplicativeWeights,
    update_limit,
)
from dp_transforms.papers.noise_source import Halted
from dp_transforms.papers.query import LinearQuery
from dp_transforms.papers.synthetic_data import (
    MultiplicativeWeights,
    SmallDatabase,
    SyntheticData,
    small_database_records_needed,
    small_database_size,
)
from tests.helpers.branching import attained_epsilon, exact_law
from tests.helpers.linear_queries import ChosenNoise, random_queries


def _relative_entropy(truth, shares):
    held = truth > 0
    return float((truth[held] * np.log(truth[held] / shares[held])).sum())


def _skewed(random, universe):
    """Shares of which some are tiny and some are 0."""
    shares = random.dirichlet(np.full(universe, random.choice([0.02, 0.2, 1.0])))
    return np.where(shares < 1e-12, 0, shares) / shares[shares >= 1e-12].sum()


def test_every_move_gains_what_the_lemma_says():
    random = np.random.default_rng(2)
    ratios = []
    for universe in (2, 5, 40):
        for _ in range(200):
            truth, learner = _skewed(random, universe), MultiplicativeWeights(universe)
            for query in random_queries(random, 6, universe, grid=random.choice([1, 8])):
                before = learner.synthetic
                answer, exact = before.answer(query), min(1.0, float(query.weights @ truth) / query.grid)
                target = answer + (exact - answer) * random.choice([0.3, 0.99, 1.0])
                learner.move(query, target)
                gain = _relative_entropy(truth, before.shares) - _relative_entropy(truth, learner.synthetic.shares)
                assert gain > 2 * (target - answer) ** 2 - 1e-9
                if abs(target - answer) > 1e-3:
                    ratios.append(gain / (2 * (target - answer) ** 2))
                assert learner.synthetic.shares.sum() == pytest.approx(1)
                if query.grid == 1 and 1e-6 < answer < 1 - 1e-6:
                    assert learner.synthetic.answer(query) == pytest.approx(target, abs=1e-6)
    assert 1 <= min(ratios) < 1.01, "the lemma is tight"


@pytest.mark.parametrize("start", [1e-300, 1e-14, 1e-9, 1e-3, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("target", [1e-3, 0.12, 0.5, 0.999, 1 - 1e-12, 1.0])
def test_steps_that_are_cut_gain_enough(start, target):
    """The largest moves that there are, with a true answer that is the target itself: nothing comes on top."""
    learner, query = MultiplicativeWeights(2), LinearQuery([1, 0])
    learner.synthetic = SyntheticData(np.array([start, 1 - start]))
    learner._log_shares = np.log(learner.synthetic.shares)
    truth = np.array([target, 1 - target])
    before = _relative_entropy(truth, learner.synthetic.shares)
    learner.move(query, target)
    assert before - _relative_entropy(truth, learner.synthetic.shares) >= 2 * (target - start) ** 2 - 1e-12


def test_shares_may_become_far_smaller_than_a_float_and_come_back():
    learner, query = MultiplicativeWeights(2), LinearQuery([1, 0])
    for target, shares in ((1.0, [1, 0]), (0.0, [0, 1])):
        for _ in range(60):  # in logarithms each share moves by up to 30, again and again
            learner.move(query, target)
        assert learner.synthetic.shares == pytest.approx(shares, abs=1e-12)
    for _ in range(60):
        learner.move(query, 0.25)
    assert learner.synthetic.shares == pytest.approx([0.25, 0.75])


def _worst(queries, histogram, synthetic):
    """What an adversary who knows the data asks next."""
    records = int(histogram.sum())
    return max(queries, key=lambda q: abs(q.answer(histogram) / q.grid / records - synthetic.answer(q)))


@pytest.mark.parametrize("grid", [1, 8])
@pytest.mark.parametrize("seed", range(3))
def test_online_answers_are_accurate_whatever_the_noise_within_its_bounds(grid, seed):
    """The deterministic half of Theorem 5: comparisons are right up to accuracy / 4, values up to 3/4 of it."""
    random = np.random.default_rng(seed)
    records, accuracy = 100_000, 0.2
    histogram = random.multinomial(records, random.dirichlet(np.full(16, 0.1)))
    queries = random_queries(random, 60, 16, grid)
    most = int(accuracy / 8 * records * grid) - 2  # for the threshold, and for the answer that meets it
    epsilon_of_values = 1 / 9 / update_limit(16, accuracy) / grid

    def draw(epsilon):
        return int(random.choice([-most, most])) * (6 if epsilon <= epsilon_of_values else 1)

    online = OnlineMultiplicativeWeights(
        histogram, records=records, epsilon=1.0, accuracy=accuracy, grid=grid, noise=ChosenNoise(draw)
    )
    updates = 0
    for _ in range(150):
        query = _worst(queries, histogram, online.synthetic)
        answer = online.ask(query)
        assert abs(answer.share - query.answer(histogram) / grid / records) <= accuracy
        updates += answer.updated
    assert 0 < updates == online.updates < update_limit(16, accuracy)
    assert not online.halted


def test_after_its_last_update_it_halts_and_what_was_learned_stays():
    online = OnlineMultiplicativeWeights(
        [1000, 0], records=1000, epsilon=1.0, accuracy=0.2, updates=1, noise=ChosenNoise()
    )
    query = LinearQuery([1, 0])
    assert online.ask(query).updated
    assert online.halted
    with pytest.raises(Halted, match="halted"):
        online.ask(query)
    assert online.synthetic.answer(query) > 0.7


def test_the_declared_number_of_records_is_not_compared_with_the_data():
    """Not even where the data have more: an error would tell who is in them."""
    online = OnlineMultiplicativeWeights([5000, 0], records=1000, epsilon=1.0, accuracy=0.2, noise=ChosenNoise())
    assert online.ask(LinearQuery([1, 0])) == (1.0, True)
    small = SmallDatabase([5000, 0], [LinearQuery([1, 0])], records=1000, size=2, epsilon=1.0, noise=ChosenNoise())
    assert small.release().shares.tolist() == [1.0, 0.0]
    OfflineMultiplicativeWeights(
        [5000, 0], [LinearQuery([1, 0])], records=1000, epsilon_per_call=1.0, accuracy=0.2, noise=ChosenNoise()
    ).release()


@pytest.mark.parametrize("grid", [1, 8])
@pytest.mark.parametrize("seed", range(3))
def test_the_released_distribution_is_accurate_whatever_the_noise_within_its_bounds(grid, seed):
    random = np.random.default_rng(seed)
    records, accuracy = 100_000, 0.2
    histogram = random.multinomial(records, random.dirichlet(np.full(16, 0.1)))
    queries = random_queries(random, 60, 16, grid)
    most = int(accuracy / 8 * records * grid) - 2
    offline = OfflineMultiplicativeWeights(
        histogram,
        queries,
        records=records,
        epsilon_per_call=1.0,
        accuracy=accuracy,
        noise=ChosenNoise(lambda _: int(random.choice([-most, most]))),
    )
    synthetic = offline.release()
    errors = [abs(synthetic.answer(query) - query.answer(histogram) / grid / records) for query in queries]
    assert max(errors) <= accuracy
    assert len(offline.measured) < update_limit(16, accuracy), "it ended by itself"
    for position, share in offline.measured:
        exact = queries[position].answer(histogram) / grid / records
        assert abs(share - exact) == pytest.approx(most / grid / records)
    with pytest.raises(Halted, match="released"):
        offline.release()


def test_offline_rounds_are_limited():
    noise = iter([-100, -300, -500])  # the answer to the first query never settles
    offline = OfflineMultiplicativeWeights(
        [1000, 0, 0, 0],
        [LinearQuery([1, 0, 0, 0]), LinearQuery([0, 1, 1, 0])],
        records=1000,
        epsilon_per_call=1.0,
        accuracy=0.01,
        updates=3,
        noise=ChosenNoise(lambda _: next(noise)),
    )
    offline.release()
    assert len(offline.measured) == 3


_ONLINE = {"histogram": [1, 2], "records": 3, "epsilon": 1.0, "accuracy": 0.5}


def test_every_database_of_the_size_is_a_candidate_once_and_scored_exactly():
    random = np.random.default_rng(5)
    for universe, size, grid in ((1, 3, 1), (2, 4, 1), (3, 3, 4), (4, 2, 8)):
        queries = random_queries(random, 3, universe, grid)
        histogram = random.integers(0, 5, universe)
        records = int(histogram.sum()) + 1
        small = SmallDatabase(histogram, queries, records=records, size=size, epsilon=1.0)
        expected = []
        for bag in itertools.combinations_with_replacement(range(universe), size):
            database = np.bincount(bag, minlength=universe)
            errors = [
                abs(
                    fractions.Fraction(query.answer(histogram), records * grid)
                    - fractions.Fraction(query.answer(database), size * grid)
                )
                for query in queries
            ]
            expected.append(-max(errors) * size * records * grid)
        assert sorted(small._scores()) == sorted(expected)
        assert len(expected) == math.comb(universe + size - 1, size)


@pytest.mark.parametrize(("queries", "accuracy"), [(1, 0.3), (2, 0.4), (3, 0.35), (6, 0.45)])
def test_some_small_database_is_good(queries, accuracy):
    """The sampling lemma, for all databases of 7 records over 3 values. It has room: Hoeffding and a union bound."""
    size = small_database_size(queries, accuracy)
    assert size == math.ceil(math.log(2 * queries) / (2 * accuracy**2)) >= 1
    pool = [LinearQuery(weights) for weights in itertools.product((0, 1), repeat=3) if 0 < sum(weights) < 3][:queries]
    for bag in itertools.combinations_with_replacement(range(3), 7):
        histogram = np.bincount(bag, minlength=3)
        small = SmallDatabase(histogram, pool, records=7, size=size, epsilon=1.0)
        assert -max(small._scores()) <= accuracy * 7 * size


def test_records_needed_by_the_small_database_are_enough_and_fewest():
    records, size = small_database_records_needed(accuracy=0.5, beta=0.1, epsilon=1.0, universe=3, queries=4)
    queries = [LinearQuery([1, 0, 0]), LinearQuery([0, 1, 0]), LinearQuery([0, 0, 1]), LinearQuery([1, 1, 0])]

    def accuracy(records, size):
        return SmallDatabase([records, 0, 0], queries, records=records, size=size, epsilon=1.0).accuracy(0.1)

    assert accuracy(records, size) <= 0.5
    assert all(accuracy(records - 1, other) > 0.5 for other in range(1, 60))
    asked = {"accuracy": 0.5, "beta": 0.1, "epsilon": 1.0, "universe": 3, "queries": 4}
    assert small_database_records_needed(**asked, size=size) == (records, size)
    with pytest.raises(ValueError, match="size must be a whole number in"):
        small_database_records_needed(**asked, size=small_database_size(4, 0.5))
    best, candidates = math.sqrt(math.log(8) / (2 * size)), math.comb(size + 2, size)
    assert accuracy(records, size) == pytest.approx(best + 2 * math.log(candidates / 0.1) / records)


def _exponential(x):
    """exp(x) for -64 <= x <= 0: the series of exp(x / 64) in integers of 400 bits, to the power 64."""
    one = 1 << 400
    term = total = one
    for k in range(1, 120):
        term = term * x.numerator // (x.denominator * 64 * k)
        total += term
    for _ in range(6):
        total = total * total // one
    return fractions.Fraction(total, one)


@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize(("scores", "epsilon", "sensitivity"), [([0, 3, -5, 3], 0.7, 2), ([10, 0, 40], 1.5, 3)])
def test_weights_are_those_of_the_formula_to_more_than_a_hundred_bits(scores, epsilon, sensitivity, monotonic):
    mechanism = ExponentialMechanism(scores, epsilon, sensitivity, monotonic=monotonic)
    rate = fractions.Fraction(epsilon) / (sensitivity if monotonic else 2 * sensitivity)
    exact = [_exponential(rate * (score - max(scores))) for score in scores]
    drawn = [fractions.Fraction(weight, sum(mechanism.weights)) for weight in mechanism.weights]
    distance = sum(abs(one - two / sum(exact)) for one, two in zip(drawn, exact, strict=True)) / 2
    assert distance < fractions.Fraction(1, 2**127)
    assert mechanism.probabilities == pytest.approx([float(weight) for weight in drawn], rel=1e-15)


@pytest.mark.parametrize("monotonic", [False, True])
def test_epsilon_is_attained_by_the_worst_neighbours_and_never_exceeded(monotonic):
    """All pairs of scores of three candidates that neighbours may have."""
    moves = (0, 1, 2) if monotonic else (-2, -1, 0, 1, 2)
    attained = []
    for base in ([0, 0, 0], [9, 0, 0], [40, 0, 1]):
        for move in itertools.product(moves, repeat=3):
            laws = [
                exact_law(ExponentialMechanism(scores, 1.0, 2, monotonic=monotonic).choose)
                for scores in (base, [b + m for b, m in zip(base, move, strict=True)])
            ]
            attained.append(attained_epsilon(*laws))
    assert 0.95 < max(attained) <= 1 + 1e-12


def test_the_accuracy_is_that_of_the_theorem_and_true():
    for scores, epsilon, beta in itertools.product(([0] * 50 + [30], [5, 4, 3, 2, 1, 0]), (0.5, 2.0), (0.01, 0.3)):
        mechanism = ExponentialMechanism(scores, epsilon, 2)
        lowest = max(scores) - mechanism.accuracy(beta)
        pairs = zip(scores, mechanism.probabilities, strict=True)
        assert sum(probability for score, probability in pairs if score <= lowest) <= beta
    assert ExponentialMechanism([0, 1, 2, 3, 4], 1.0, 1).accuracy(0.1) == pytest.approx(2 * math.log(50))
