"""How a distribution learns, by its lemma; and small databases: candidates, scores, sizes."""

import fractions
import itertools
import math

import numpy as np
import pytest

from dp_transforms.papers.noise_source import Halted
from dp_transforms.papers.query import LinearQuery
from dp_transforms.papers.synthetic_data import (
    LARGEST_UNIVERSE,
    MultiplicativeWeights,
    SmallDatabase,
    _check_size,
    small_database_records_needed,
    small_database_size,
)
from tests.papers.scripted import Given


def _relative_entropy(truth, shares):
    held = truth > 0
    return float((truth[held] * np.log(truth[held] / shares[held])).sum())


def _skewed(random, universe):
    """Shares of which some are tiny and some are 0."""
    shares = random.dirichlet(np.full(universe, random.choice([0.02, 0.2, 1.0])))
    return np.where(shares < 1e-12, 0, shares) / shares[shares >= 1e-12].sum()


def _random_queries(random, count, universe, grid):
    return [LinearQuery(random.integers(0, grid + 1, universe), grid) for _ in range(count)]


def test_every_move_gains_what_the_lemma_says():
    random = np.random.default_rng(2)
    ratios = []
    for universe in (2, 5, 40):
        for _ in range(100):
            truth, learner = _skewed(random, universe), MultiplicativeWeights(universe)
            for query in _random_queries(random, 6, universe, random.choice([1, 8])):
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


def test_shares_may_become_far_smaller_than_a_float_and_come_back():
    learner, query = MultiplicativeWeights(2), LinearQuery([1, 0])
    for target, shares in ((1.0, [1, 0]), (0.0, [0, 1]), (0.25, [0.25, 0.75])):
        for _ in range(60):  # in logarithms each share moves by up to 30, again and again
            learner.move(query, target)
        assert learner.synthetic.shares == pytest.approx(shares, abs=1e-12)


def test_every_database_of_the_size_is_a_candidate_once_and_scored_exactly():
    random = np.random.default_rng(5)
    for universe, size, grid in ((1, 3, 1), (2, 4, 1), (3, 3, 4), (4, 2, 8)):
        queries = _random_queries(random, 3, universe, grid)
        histogram = random.integers(0, 5, universe)
        records = int(histogram.sum()) + 1
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
        small = SmallDatabase(histogram, queries, records=records, size=size, epsilon=1.0)
        assert sorted(small._scores()) == sorted(expected)


def test_the_chosen_database_is_released_once():
    queries, noise = [LinearQuery([1, 0]), LinearQuery([0, 1])], Given(1)
    small = SmallDatabase([3, 1], queries, records=4, size=2, epsilon=1.0, noise=noise)
    assert small._scores() == [-6, -2, -2], "of 0, 1 and 2 of two records with the first value"
    assert small.release().shares.tolist() == [0.5, 0.5]
    assert len(noise.weights[0]) == 3
    with pytest.raises(Halted):
        small.release()


def test_records_needed_by_the_small_database_are_enough_and_fewest():
    asked = {"accuracy": 0.5, "beta": 0.1, "epsilon": 1.0, "universe": 3, "queries": 4}
    records, size = small_database_records_needed(**asked)
    assert small_database_size(6, 0.45) == math.ceil(math.log(2 * 6) / (2 * 0.45**2))
    queries = [LinearQuery(weights) for weights in ([1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0])]

    def accuracy(records, size):
        return SmallDatabase([records, 0, 0], queries, records=records, size=size, epsilon=1.0).accuracy(0.1)

    assert accuracy(records, size) <= 0.5
    assert all(accuracy(records - 1, other) > 0.5 for other in range(1, 60))
    assert small_database_records_needed(**asked, size=size) == (records, size)
    with pytest.raises(ValueError, match="size must be a whole number in"):
        small_database_records_needed(**asked, size=small_database_size(4, 0.5))
    best, candidates = math.sqrt(math.log(8) / (2 * size)), math.comb(size + 2, size)
    assert accuracy(records, size) == pytest.approx(best + 2 * math.log(candidates / 0.1) / records)


def test_the_largest_universes_sizes_and_scores():
    for universe in (0, LARGEST_UNIVERSE + 1):
        with pytest.raises(ValueError, match=r"the universe must have 1 \.\. 1048576 values"):
            MultiplicativeWeights(universe)
    assert len(MultiplicativeWeights(LARGEST_UNIVERSE).synthetic.shares) == LARGEST_UNIVERSE
    assert _check_size(2**16, 2) == 2**16
    for size, universe in ((2**18, 2), (1, 2**16), (2, 2**10)):
        with pytest.raises(ValueError, match="there may be at most"):
            _check_size(size, universe)
    grid, records = 2**20, 2**40 - 1  # one record more, and a difference of two scores does not fit 64 bits
    arguments = {"queries": [LinearQuery([grid, 0], grid=grid)], "size": 4, "epsilon": 1.0}
    assert min(SmallDatabase([3, 0], records=records, **arguments)._scores()) == -4 * grid * (records - 3)
    with pytest.raises(ValueError, match=r"below 2\^62"):
        SmallDatabase([3, 0], records=records + 1, **arguments)
