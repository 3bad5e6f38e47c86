"""Distinct counts by a sketch: its law, along every path of its hash; its price; its estimate."""

import itertools
import math

import pytest

from dp_transforms.papers.distinct_count import DistinctCount
from tests.reference.exact_law import attained_epsilon, exact_law


def _sketch(epsilon, **sizes):
    return DistinctCount(lambda ids: ids, epsilon, **sizes)


def _law(sketch, ids):
    return exact_law(lambda noise: sketch.registers(ids, noise))


def _at_most(sketch, level):
    """Pr[level of one id <= level]."""
    return 1 - 2.0**-level if level < sketch.levels else 1.0


def _register(sketch, phantoms_and_ids):
    """The law of one bucket that has so many ids."""
    below, law = 0.0, {}
    for level in range(sketch.floor, sketch.levels + 1):
        reached = _at_most(sketch, level) ** phantoms_and_ids
        law[level], below = reached - below, reached
    return law


@pytest.mark.parametrize("epsilon", [0.4, 0.7, math.log(3), 3.0])
@pytest.mark.parametrize("levels", [3, 4])
def test_one_id_more_costs_epsilon_and_the_law_is_that_of_the_maximum(epsilon, levels):
    sketch = _sketch(epsilon, buckets=1, levels=levels)
    laws = [_law(sketch, range(ids)) for ids in range(4 if epsilon > 0.5 else 3)]
    for ids, law in enumerate(laws):
        expected = _register(sketch, sketch.phantoms + ids)
        assert {level: law.get((level,), 0.0) for level in expected} == pytest.approx(expected, abs=1e-12)
    for fewer, more in itertools.pairwise(laws):
        assert attained_epsilon(fewer, more) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("buckets", [2, 3])
def test_with_buckets_it_costs_no_more(buckets):
    sketch = _sketch(math.log(3), buckets=buckets, levels=3)
    laws = [_law(sketch, range(ids)) for ids in range(3)]
    for fewer, more in itertools.pairwise(laws):
        assert 0.3 < attained_epsilon(fewer, more) <= sketch.epsilon


def test_an_id_counts_once():
    sketch = _sketch(math.log(3), buckets=2, levels=3)
    assert _law(sketch, ["a", "b", "a", "a"]) == pytest.approx(_law(sketch, ["a", "b"]))


@pytest.mark.parametrize("epsilon", [1e-3, 0.03, 0.1, 0.5, 1.0, 2.0, 20.0, 800.0])
def test_no_fewer_phantoms_and_no_lower_floor_would_do(epsilon):
    """The worst is one id among the phantoms, in an endless number of levels: by the formulas, to all digits."""
    sketch = _sketch(epsilon)
    k, floor = sketch.phantoms, sketch.floor
    assert math.log1p(1 / k) <= epsilon
    assert k == 1 or math.log1p(1 / (k - 1)) > epsilon
    assert -math.log1p(-(2.0**-floor)) <= epsilon
    assert floor == 1 or -math.log1p(-(2.0 ** -(floor - 1))) > epsilon
    if k < 50:
        wide = _sketch(epsilon, levels=floor + 12)
        without, with_user = _register(wide, k), _register(wide, k + 1)
        ratios = [math.log(with_user[level] / without[level]) for level in range(floor, floor + 12)]
        assert max(map(abs, ratios)) <= epsilon
        assert max(ratios) == pytest.approx(math.log1p(1 / k), rel=0.01)
        assert min(ratios) == pytest.approx(math.log1p(-(2.0**-floor)))


def test_the_estimate_is_the_number_whose_average_it_is():
    """Of every sketch of a small world: the smallest number of ids whose registers add up to as much, on average."""
    sketch = _sketch(math.log(3), buckets=2, levels=3)
    averages = [
        math.fsum(sum(registers) * share for registers, share in _law(sketch, range(ids)).items()) for ids in range(5)
    ]
    for registers in itertools.product(range(1, 4), repeat=2):
        expected = [ids for ids, average in enumerate(averages) if average >= sum(registers) - 1e-9]
        assert sketch.estimate(registers) == expected[0] if expected else sketch.estimate(registers) >= 5
