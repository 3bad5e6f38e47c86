"""AboveThreshold, Sparse and NumericSparse: laws against sums over all noise, budgets against optimal composition."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from dp_transforms.mechanisms.papers.noise_source import Halted
from dp_transforms.mechanisms.papers.query import LinearQuery, Query, RealQuery
from dp_transforms.mechanisms.papers.sparse_vector import AboveThreshold, NumericSparse, Sparse
from tests.helpers.branching import exact_law
from tests.helpers.sampling_checks import laplace_probability, laplace_tail
from tests.helpers.sparse_vector_runs import Fixed, Silent, ask_all, value_query

REACH = 120
ALL = [
    functools.partial(AboveThreshold, epsilon=1.0, threshold=0),
    functools.partial(Sparse, epsilon=1.0, threshold=0, cutoff=1),
    functools.partial(NumericSparse, epsilon=1.0, threshold=0, cutoff=1),
]
each_mechanism = pytest.mark.parametrize("make", ALL, ids=lambda make: make.func.__name__)


# ---------------------------------------------------------------------------------------------------------------------
# The law, against sums over the noise of every threshold
# ---------------------------------------------------------------------------------------------------------------------


def run_probability(epsilon: float, answers: Sequence[int], threshold: int, ends: bool) -> float:
    """That one run of Algorithm 1 says "below" to all answers, but "above" to the last if it ends there."""
    total = 0.0
    for noise in range(-REACH, REACH + 1):
        product = laplace_probability(epsilon / 2, noise)
        for position, answer in enumerate(answers):
            above = laplace_tail(epsilon / 4, threshold + noise - answer)
            product *= above if ends and position == len(answers) - 1 else 1 - above
        total += product
    return total


def law_of_sparse(epsilon: float, cutoff: int, answers: Sequence[int], threshold: int) -> dict[Hashable, float]:
    """Cuts the transcript after every top: what lies between are independent runs at epsilon / cutoff."""
    law: dict[Hashable, float] = {}
    for length in range(1, len(answers) + 1):
        for bits in itertools.product([False, True], repeat=length):
            tops = sum(bits)
            if not (tops == cutoff and bits[-1]) and not (tops < cutoff and length == len(answers)):
                continue
            probability, start = 1.0, 0
            for position, bit in enumerate(bits):
                if bit or position == length - 1:
                    run = answers[start : position + 1]
                    probability *= run_probability(epsilon / cutoff, run, threshold, bit)
                    start = position + 1
            law[bits] = probability
    return law


ANSWERS = [-1, 2, 0, 3]


@pytest.mark.parametrize(("epsilon", "cutoff"), [(1.0, 1), (6.0, 2), (15.0, 3)])
def test_sparse_has_the_law_of_algorithm_2(epsilon: float, cutoff: int) -> None:
    law = exact_law(
        ask_all(lambda noise: Sparse(None, epsilon=epsilon, threshold=1, cutoff=cutoff, noise=noise), ANSWERS),
        cut=1e-12 if cutoff < 3 else 1e-7,
    )
    expected = law_of_sparse(epsilon, cutoff, ANSWERS, threshold=1)
    assert set(law) == set(expected)
    for bits, probability in expected.items():
        assert law[bits] == pytest.approx(probability, abs=1e-11 if cutoff < 3 else 1e-6)


def test_above_threshold_has_the_law_of_algorithm_1() -> None:
    law = exact_law(ask_all(lambda noise: AboveThreshold(None, epsilon=1.0, threshold=1, noise=noise), ANSWERS))
    expected = law_of_sparse(1.0, 1, ANSWERS, threshold=1)
    assert law == pytest.approx(expected, abs=1e-12)


def test_numeric_sparse_has_the_law_of_algorithm_3() -> None:
    """The comparisons of Sparse at 8/9 epsilon, and after each top noise of its own with epsilon / 9."""
    epsilon = 9.0
    law = exact_law(
        ask_all(lambda noise: NumericSparse(None, epsilon=epsilon, threshold=1, cutoff=1, noise=noise), ANSWERS)
    )
    comparisons = law_of_sparse(8 / 9 * epsilon, 1, ANSWERS, threshold=1)
    for bits, probability in comparisons.items():
        if not bits[-1]:
            assert law[(None,) * len(bits)] == pytest.approx(probability, abs=1e-12)
            continue
        for value in range(-8, 9):
            expected = probability * laplace_probability(epsilon / 9, value - ANSWERS[len(bits) - 1])
            assert law[(*(None for _ in bits[:-1]), float(value))] == pytest.approx(expected, abs=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Queries, halting, accuracy
# ---------------------------------------------------------------------------------------------------------------------


@each_mechanism
def test_it_halts_after_the_last_top_and_says_so(make: Callable[..., Any]) -> None:
    noise = Silent()
    mechanism = make(None, noise=noise)
    mechanism.ask(value_query(-1))
    assert (mechanism.halted, mechanism.tops) == (False, 0)
    mechanism.ask(value_query(1))
    assert (mechanism.halted, mechanism.tops) == (True, 1)
    drawn = len(noise.asked)
    for query in (value_query(1), value_query(-1), value_query(1, grid=7)):
        with pytest.raises(Halted, match="has halted after 1 answers"):
            mechanism.ask(query)
    assert len(noise.asked) == drawn


def test_halted_is_a_runtime_error() -> None:
    assert issubclass(Halted, RuntimeError)


@pytest.mark.parametrize("kind", [Sparse, NumericSparse])
def test_the_cutoff_counts_tops_not_queries(kind: type) -> None:
    mechanism = kind(None, epsilon=1.0, threshold=10, cutoff=3, noise=Silent())
    published = []
    for answer in itertools.cycle([9, 10, 11]):
        if mechanism.halted:
            break
        published.append(mechanism.ask(value_query(answer)))
    tops = [answer for answer in published if answer]
    assert (len(published), len(tops), mechanism.tops) == (5, 3, 3)


@each_mechanism
def test_a_query_that_is_refused_costs_nothing(make: Callable[..., Any]) -> None:
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


@each_mechanism
def test_the_data_are_asked_once_for_each_query(make: Callable[..., Any]) -> None:
    query: Query = Fixed(7)
    make(None, noise=Silent()).ask(query)
    assert query == Fixed(7, asked=1)


def test_values_are_multiples_of_the_grid() -> None:
    mechanism = NumericSparse([0.3, 0.45], epsilon=1.0, threshold=0.5, cutoff=1, grid=4, noise=Silent())
    assert mechanism.ask(RealQuery(sum, grid=4)) == 0.75


@pytest.mark.parametrize(("threshold", "units"), [(0.5, 2), (0.51, 3), (-0.51, -2), (0, 0), (7, 28)])
def test_thresholds_are_rounded_up_to_the_grid(threshold: float, units: int) -> None:
    def above(answer: int) -> bool:
        mechanism = AboveThreshold(None, epsilon=1.0, threshold=threshold, grid=4, noise=Silent())
        return mechanism.ask(value_query(answer / 4, grid=4))

    assert above(units)
    assert not above(units - 1)


@pytest.mark.parametrize(("queries", "beta"), [(1, 0.5), (50, 0.1), (10**6, 1e-9)])
@pytest.mark.parametrize("cutoff", [1, 3, 200])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_alpha_is_that_of_the_theorems(queries: int, beta: float, cutoff: int, delta: float) -> None:
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


# ---------------------------------------------------------------------------------------------------------------------
# Hostile arguments
# ---------------------------------------------------------------------------------------------------------------------

NOT_POSITIVE = [0, -1.0, math.nan, math.inf, -math.inf, True]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("epsilon", NOT_POSITIVE, "epsilon must be finite and > 0"),
        ("delta", [-1e-9, 1, 1.5, math.nan, math.inf, True], r"delta must lie in \[0, 1\)"),
        ("cutoff", [0, -1, 1.5, 2**31 + 1, math.nan, True, None], "cutoff must be a whole number in 1"),
        ("threshold", [math.nan, math.inf, 2.0**41, True, None], "a threshold must be a number"),
        ("grid", [0, -1, 1.5, 2**20 + 1, True, None], "grid must be a whole number"),
        ("sensitivity_units", [0, -1, 1.5, math.nan, True], "sensitivity_units must be a whole number >= 1"),
    ],
)
@each_mechanism
def test_arguments_out_of_range(make: Any, name: str, values: list[Any], message: str) -> None:
    for value in values:
        if make.func is AboveThreshold and name in ("delta", "cutoff"):
            continue
        with pytest.raises(ValueError, match=message):
            make(None, **{name: value})


@each_mechanism
def test_accuracy_of_nothing(make: Callable[..., Any]) -> None:
    mechanism = make(None)
    for beta in (0, 1, -0.1, math.nan, True):
        with pytest.raises(ValueError, match=r"beta must lie strictly between 0 and 1"):
            mechanism.accuracy(10, beta)
    for queries in (0, -1, 1.5, math.nan, True):
        with pytest.raises(ValueError, match="queries must be a whole number >= 1"):
            mechanism.accuracy(queries, 0.1)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    mechanism = Sparse(
        np.array([3, 4]),
        epsilon=np.float64(1.0),
        threshold=np.int64(2),
        cutoff=np.int64(2),
        grid=np.int32(1),
        sensitivity_units=np.int64(1),
        noise=Silent(),
    )
    assert mechanism.ask(LinearQuery(np.array([1, 1]))) is True
    assert mechanism.accuracy(np.int64(3), 0.1) > 0


@each_mechanism
def test_without_a_source_noise_is_secret(make: Callable[..., Any]) -> None:
    answers = {str([make(None).ask(value_query(0)) for _ in range(60)]) for _ in range(2)}
    assert len(answers) == 2


def test_a_query_that_raises_uses_up_no_noise() -> None:
    def refuse(data: list[int]) -> int:
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
