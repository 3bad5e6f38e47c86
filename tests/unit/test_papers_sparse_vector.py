"""AboveThreshold, Sparse and NumericSparse: laws against sums over all noise, budgets against optimal composition."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest

from dp_transforms.mechanisms.papers.query import LinearQuery, RealQuery
from dp_transforms.mechanisms.papers.sparse_vector import AboveThreshold, NumericSparse, Sparse
from tests.helpers.sparse_vector_runs import Silent, value_query

ALL = [
    functools.partial(AboveThreshold, epsilon=1.0, threshold=0),
    functools.partial(Sparse, epsilon=1.0, threshold=0, cutoff=1),
    functools.partial(NumericSparse, epsilon=1.0, threshold=0, cutoff=1),
]
each_mechanism = pytest.mark.parametrize("make", ALL, ids=lambda make: make.func.__name__)


# ---------------------------------------------------------------------------------------------------------------------
# The law, against sums over the noise of every threshold
# ---------------------------------------------------------------------------------------------------------------------


# ---------------------------------------------------------------------------------------------------------------------
# Queries, halting, accuracy
# ---------------------------------------------------------------------------------------------------------------------


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
