"""The small database: its candidates, their scores, and how many records it needs."""

from __future__ import annotations

import fractions
import itertools
import math

import numpy as np
import pytest

from dp_transforms.mechanisms.papers.query import LinearQuery
from dp_transforms.mechanisms.papers.synthetic_data import (
    SmallDatabase,
    small_database_records_needed,
    small_database_size,
)
from tests.helpers.linear_queries import random_queries

# --- The small database


def test_every_database_of_the_size_is_a_candidate_once_and_scored_exactly() -> None:
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
def test_some_small_database_is_good(queries: int, accuracy: float) -> None:
    """The sampling lemma, for all databases of 7 records over 3 values. It has room: Hoeffding and a union bound."""
    size = small_database_size(queries, accuracy)
    assert size == math.ceil(math.log(2 * queries) / (2 * accuracy**2)) >= 1
    pool = [LinearQuery(weights) for weights in itertools.product((0, 1), repeat=3) if 0 < sum(weights) < 3][:queries]
    for bag in itertools.combinations_with_replacement(range(3), 7):
        histogram = np.bincount(bag, minlength=3)
        small = SmallDatabase(histogram, pool, records=7, size=size, epsilon=1.0)
        assert -max(small._scores()) <= accuracy * 7 * size


def test_records_needed_by_the_small_database_are_enough_and_fewest() -> None:
    records, size = small_database_records_needed(accuracy=0.5, beta=0.1, epsilon=1.0, universe=3, queries=4)
    queries = [LinearQuery([1, 0, 0]), LinearQuery([0, 1, 0]), LinearQuery([0, 0, 1]), LinearQuery([1, 1, 0])]

    def accuracy(records: int, size: int) -> float:
        return SmallDatabase([records, 0, 0], queries, records=records, size=size, epsilon=1.0).accuracy(0.1)

    assert accuracy(records, size) <= 0.5
    assert all(accuracy(records - 1, other) > 0.5 for other in range(1, 60))
    best, candidates = math.sqrt(math.log(8) / (2 * size)), math.comb(size + 2, size)
    assert accuracy(records, size) == pytest.approx(best + 2 * math.log(candidates / 0.1) / records)
