"""Queries of the papers' mechanisms, and where their checks begin and end."""

import fractions
import functools
import itertools
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.accounting.discrete_laplace_law import MAX_EPSILON
from dp_transforms.papers.exponential_mechanism import ExponentialMechanism
from dp_transforms.papers.noise_source import SecretNoise
from dp_transforms.papers.private_computation import FiniteMechanism
from dp_transforms.papers.query import LARGEST_GRID, LinearQuery, Marginals, RealQuery, epsilon_per_unit, units_up
from dp_transforms.papers.synthetic_data import check_histogram

grids = st.one_of(st.integers(1, 20), st.sampled_from([1000, 1024, 999_983, LARGEST_GRID]))
counts = st.integers(0, 10**9)


@st.composite
def weights_and_counts(draw):
    grid, size = draw(grids), draw(st.integers(1, 6))
    weights = draw(st.lists(st.integers(0, grid), min_size=size, max_size=size))
    return grid, weights, draw(st.lists(counts, min_size=size, max_size=size))


@given(weights_and_counts())
def test_a_linear_answer_is_the_sum_of_its_weights(case):
    grid, weights, data = case
    answer = LinearQuery(np.array(weights), grid).answer(np.array(data))
    assert answer == sum(weight * count for weight, count in zip(weights, data, strict=True))
    assert type(answer) is int


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), grids)
def test_real_weights_are_rounded_to_the_nearest_unit(values, grid):
    query = LinearQuery.of(values, grid)
    for value, weight in zip(values, query.weights.tolist(), strict=True):
        assert abs(fractions.Fraction(value) * grid - weight) <= fractions.Fraction(1, 2) + fractions.Fraction(1, 10**9)
    assert query.weights.dtype == np.int64
    assert query.grid == grid


def test_weights_stay_what_was_checked():
    given_weights = np.array([1, 0])
    query = LinearQuery(given_weights)
    given_weights[0] = 1000
    assert query.answer([1, 0]) == 1
    with pytest.raises(ValueError, match="read-only"):
        query.weights[0] = 1000


LARGEST = 2.0**40
reals = st.floats(-LARGEST, LARGEST)


@given(reals, grids.filter(lambda grid: grid > 1))
def test_a_real_answer_is_rounded_down_exactly(value, grid):
    units = RealQuery(lambda data: data, grid).answer(value)
    assert units <= fractions.Fraction(value) * grid < units + 1


def test_the_extra_unit_is_needed_where_a_function_rounds():
    """0.1 added ten times is a little less than 1; with one user's 1.0 the sum is rounded to 2."""
    added = functools.partial(functools.reduce, operator.add)  # since Python 3.12 `sum` rounds once
    query = RealQuery(added, grid=10)
    here, there = [0.1] * 10, [0.1] * 10 + [1.0]
    assert query.answer(there) - query.answer(here) == query.sensitivity == 11
    assert RealQuery(added).sensitivity == 1


@given(reals, grids)
def test_a_threshold_is_rounded_up_exactly(value, grid):
    units = units_up(value, grid)
    assert units - 1 < fractions.Fraction(value) * grid <= units


@given(st.floats(1e-3, 50), st.integers(1, 10_000))
def test_all_units_together_cost_epsilon_at_most(epsilon, units):
    together = fractions.Fraction(epsilon_per_unit(epsilon, units)) * units
    assert together <= fractions.Fraction(epsilon)
    if epsilon / units < MAX_EPSILON:
        assert together > fractions.Fraction(epsilon) * (1 - fractions.Fraction(1, 2**51)), "and not less than needed"
    else:
        assert together == MAX_EPSILON * units


@pytest.mark.parametrize(("order", "exactly"), [(0, False), (2, True), (4, False)])
def test_marginals_are_what_counting_records_gives(order, exactly):
    records = np.random.default_rng(1).random((50, 4)) < [0.9, 0.5, 0.3, 0.7]
    marginals = Marginals(("a", "b", "c", "d"), order, exactly=exactly)
    expected = {
        " & ".join("abcd"[attribute] for attribute in subset) or "all": int(records[:, list(subset)].all(axis=1).sum())
        for size in ([order] if exactly else range(order + 1))
        for subset in itertools.combinations(range(4), size)
    }
    histogram = marginals.histogram(records)
    assert dict(zip([name for name, _ in marginals], marginals.answers(histogram).tolist(), strict=True)) == expected
    assert {name: query.answer(histogram) for name, query in marginals} == expected
    assert len(marginals) == len(expected)


SECRET = 31337


@pytest.mark.parametrize(
    "raises",
    [
        lambda: RealQuery(lambda data: SECRET + 0.5).answer(None),
        lambda: RealQuery(lambda data: SECRET * 2.0**62).answer(None),
        lambda: RealQuery(lambda data: f"{SECRET}").answer(None),
        lambda: LinearQuery([SECRET, 0]),
        lambda: LinearQuery([0.25 + SECRET]),
        lambda: LinearQuery.of([SECRET]),
        lambda: LinearQuery([1]).answer([-SECRET]),
        lambda: LinearQuery([1]).answer([SECRET * 2**45]),
        lambda: ExponentialMechanism([SECRET + 0.5], 1.0, 1),
        lambda: FiniteMechanism(("a", "b"), lambda data: [1] * SECRET, 1.0).run(None, SecretNoise()),
        lambda: FiniteMechanism(("a",), lambda data: [SECRET + 0.5], 1.0).run(None, SecretNoise()),
        lambda: Marginals(("a", "b"), 1).histogram(np.full((SECRET, 2), 2)),
        lambda: check_histogram([SECRET + 0.5, 1]),
    ],
)
def test_no_message_tells_a_value_of_the_data(raises):
    with pytest.raises((ValueError, TypeError)) as raised:
        raises()
    digits = f"{SECRET}"
    assert digits not in str(raised.value)
    assert str(SECRET * 2**62)[:8] not in str(raised.value)
