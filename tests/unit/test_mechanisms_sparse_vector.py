"""AboveThreshold, Sparse and NumericSparse: laws against sums over all noise, budgets against optimal composition."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dp_transforms.accounting.composition import optimal_composition_delta
from dp_transforms.mechanisms.halting import Halted
from dp_transforms.mechanisms.noise_source import NoiseSource, SecretNoise
from dp_transforms.mechanisms.query import LinearQuery, Query, RealQuery
from dp_transforms.mechanisms.sparse_vector import AboveThreshold, NumericSparse, Sparse, epsilon_per_run
from tests.privacy.branching import exact_law
from tests.statistical.tools import laplace_probability, laplace_tail

KEY = bytes(range(32))
REACH = 120
ALL = [
    functools.partial(AboveThreshold, epsilon=1.0, threshold=0),
    functools.partial(Sparse, epsilon=1.0, threshold=0, cutoff=1),
    functools.partial(NumericSparse, epsilon=1.0, threshold=0, cutoff=1),
]
each_mechanism = pytest.mark.parametrize("make", ALL, ids=lambda make: make.func.__name__)


class Silent:
    """Draws 0 and notes what was asked for."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def discrete_laplace(self, epsilon: float) -> int:
        self.asked.append(epsilon)
        return 0

    def bernoulli(self, probability: float) -> bool:
        raise AssertionError("these mechanisms toss no coins")

    def choose(self, weights: Sequence[int]) -> int:
        raise AssertionError("these mechanisms choose nothing")


@dataclasses.dataclass
class Fixed:
    """A query of one's own: anything with these names will do. asked: how often."""

    units: int
    grid: int = 1
    sensitivity: int = 1
    asked: int = 0

    def answer(self, data: Any) -> int:
        self.asked += 1
        return self.units


def value_query(answer: float, grid: int = 1) -> RealQuery:
    return RealQuery(lambda data: answer, grid)


def ask_all(make: Callable[[NoiseSource], Any], answers: Sequence[int]) -> Callable[[NoiseSource], Hashable]:
    def run(noise: NoiseSource) -> Hashable:
        mechanism = make(noise)
        published = []
        for answer in answers:
            if not mechanism.halted:
                published.append(mechanism.ask(value_query(answer)))
        return tuple(published)

    return run


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
# What is drawn
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grid", "sensitivity_units", "units"), [(1, None, 1), (8, None, 9), (8, 8, 8), (1, 5, 5)])
def test_the_scales_of_the_noise(grid: int, sensitivity_units: int | None, units: int) -> None:
    """In units; Lap(b) for a sensitivity of 1 is noise with 1 / (b units) for each unit."""
    shape = {"threshold": 0, "grid": grid, "sensitivity_units": sensitivity_units}
    low, high = Fixed(-grid, grid, units), Fixed(grid, grid, units)

    noise = Silent()
    mechanism: Any = AboveThreshold(None, epsilon=0.5, noise=noise, **shape)
    assert [mechanism.ask(low), mechanism.ask(low), mechanism.ask(high)] == [False, False, True]
    assert noise.asked == pytest.approx([scale / units for scale in (0.5 / 2, 0.5 / 4, 0.5 / 4, 0.5 / 4)])

    noise = Silent()
    mechanism = Sparse(None, epsilon=0.6, cutoff=2, noise=noise, **shape)
    sigma = 2 * 2 / 0.6
    assert [mechanism.ask(high), mechanism.ask(low), mechanism.ask(high)] == [True, False, True]
    scales = [sigma, 2 * sigma, sigma, 2 * sigma, 2 * sigma]
    assert noise.asked == pytest.approx([1 / scale / units for scale in scales]), "none for a third run"

    noise = Silent()
    mechanism = NumericSparse(None, epsilon=0.6, cutoff=2, noise=noise, **shape)
    sigma, values = 2 * 2 / (8 / 9 * 0.6), 2 * 2 / (2 / 9 * 0.6)
    assert [mechanism.ask(high), mechanism.ask(low), mechanism.ask(high)] == [1.0, None, 1.0]
    scales = [sigma, 2 * sigma, sigma, values, 2 * sigma, 2 * sigma, values]
    assert noise.asked == pytest.approx([1 / scale / units for scale in scales])


def test_the_published_scales_for_delta_above_0() -> None:
    epsilon, delta, cutoff = 0.7, 1e-3, 100
    noise = Silent()
    Sparse(None, epsilon=epsilon, delta=delta, threshold=0, cutoff=cutoff, noise=noise).ask(value_query(-1))
    sigma = math.sqrt(32 * cutoff * math.log(1 / delta)) / epsilon
    assert noise.asked == pytest.approx([1 / sigma, 1 / (2 * sigma)])

    noise = Silent()
    NumericSparse(None, epsilon=epsilon, delta=delta, threshold=0, cutoff=cutoff, noise=noise).ask(value_query(1))
    shares = [math.sqrt(512) / (math.sqrt(512) + 1), 2 / (math.sqrt(512) + 1)]
    first, second = (math.sqrt(32 * cutoff * math.log(2 / delta)) / (share * epsilon) for share in shares)
    assert noise.asked == pytest.approx([1 / first, 1 / (2 * first), 1 / first, 1 / second])


@given(st.floats(0.05, 20), st.integers(1, 50), st.integers(1, 1000))
def test_all_that_is_drawn_costs_epsilon_at_most(epsilon: float, cutoff: int, units: int) -> None:
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


def test_epsilons_beyond_every_need_are_drawn_with_more_noise_and_tiny_ones_are_refused() -> None:
    noise = Silent()
    AboveThreshold(None, epsilon=1e6, threshold=0, noise=noise).ask(value_query(0))
    assert noise.asked == [32.0, 32.0]
    assert AboveThreshold([5], epsilon=1e6, threshold=3, noise=SecretNoise(KEY)).ask(RealQuery(sum)) is True
    with pytest.raises(ValueError, match="Use a larger epsilon, or a smaller cutoff or grid"):
        Sparse(None, epsilon=1e-3, threshold=0, cutoff=10**6)


def test_a_narrow_query_may_be_asked_with_wide_noise_but_not_the_other_way() -> None:
    narrow = LinearQuery([2, 1], grid=4)
    assert AboveThreshold([9, 9], epsilon=1.0, threshold=0, grid=4, noise=Silent()).ask(narrow) is True
    with pytest.raises(ValueError, match=r"by at most 4 units, got 5\. Give the mechanism a larger sensitivity_units"):
        AboveThreshold([9], epsilon=1.0, threshold=0, grid=4, sensitivity_units=4).ask(RealQuery(sum, grid=4))


# ---------------------------------------------------------------------------------------------------------------------
# The budget of one run
# ---------------------------------------------------------------------------------------------------------------------

DELTAS = [0.9, 0.5, 0.1, 1e-3, 1e-9]
CUTOFFS = [1, 2, 3, 10, 100, 3000]


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_cutoff_runs_are_within_the_budget_by_optimal_composition(delta: float, cutoff: int) -> None:
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


def test_the_published_noise_is_too_small_where_more_is_drawn() -> None:
    """Not only by the proof: cutoff calls at the published epsilon' can exceed (epsilon, delta)."""
    for delta, cutoff, times in [(0.5, 3000, 3.0), (0.1, 3000, 2.0), (1e-3, 3000, 2.0)]:
        epsilon = times * 8 * math.log(1 / delta)
        published = epsilon / math.sqrt(8 * cutoff * math.log(1 / delta))
        assert optimal_composition_delta(published, cutoff, epsilon) > delta
        assert optimal_composition_delta(epsilon_per_run(epsilon, delta, cutoff), cutoff, epsilon) <= delta


def test_sparse_itself_breaks_its_claim_at_the_published_noise() -> None:
    """[DR14] Theorem 3.25 ("for any epsilon") at delta = 1/2: ten low answers that the user raises, then one far above,
    and again after every top. The rounds are independent, so Chebyshev's inequality bounds the sum of their losses: for
    the event E that it exceeds epsilon + 3, ``P(E) - e^epsilon Q(E) >= P(E) (1 - e^-3)``, far above delta."""
    delta, cutoff, per_run = 0.5, 8000, 2.0
    epsilon = per_run * math.sqrt(8 * cutoff * math.log(1 / delta))

    def mean_and_variance(per_run: float) -> tuple[float, float]:
        law_with, law_without = (
            exact_law(
                ask_all(
                    lambda noise: AboveThreshold(None, epsilon=per_run, threshold=0, noise=noise),
                    [user - 1] * 10 + [10**6],
                ),
                cut=1e-12,
            )
            for user in (1, 0)
        )
        losses = [(p, math.log(p / law_without[bits])) for bits, p in law_with.items() if p > 0]
        mean = sum(p * loss for p, loss in losses)
        return mean, sum(p * (loss - mean) ** 2 for p, loss in losses)

    mean, variance = mean_and_variance(per_run)
    missed_by = cutoff * mean - (epsilon + 3)
    assert missed_by > 0
    likely = 1 - cutoff * variance / missed_by**2
    assert likely * (1 - math.exp(-3)) > 1.5 * delta

    mean, variance = mean_and_variance(epsilon_per_run(epsilon, delta, cutoff))
    assert cutoff * mean + 5 * math.sqrt(cutoff * variance) < epsilon, "the same attack on what the code draws"


@given(st.floats(1e-6, 100), st.integers(1, 10**6))
def test_without_delta_the_budget_is_divided(epsilon: float, cutoff: int) -> None:
    per_run = epsilon_per_run(epsilon, 0.0, cutoff)
    assert per_run * cutoff <= epsilon
    assert per_run * cutoff == pytest.approx(epsilon)


@pytest.mark.parametrize("delta", [0.0, *DELTAS])
@pytest.mark.parametrize("cutoff", [1, 2, 10, 300])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 30.0])
def test_runs_and_values_of_numeric_sparse_are_within_the_budget_together(
    delta: float, cutoff: int, epsilon: float
) -> None:
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
