"""Where a mechanism's checks begin and end, and that it is given the data: each line here was once free to change."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dp_transforms.mechanisms.papers.multiplicative_weights import OnlineMultiplicativeWeights
from dp_transforms.mechanisms.papers.noise_source import SecretNoise
from dp_transforms.mechanisms.papers.query import LinearQuery
from dp_transforms.mechanisms.papers.sparse_vector import NumericSparse
from dp_transforms.mechanisms.papers.synthetic_data import (
    LARGEST_COUNT,
    SmallDatabase,
    small_database_records_needed,
    small_database_size,
)
from dp_transforms.mechanisms.papers.threshold_monitor import ThresholdMonitor


@pytest.mark.parametrize(("records", "is_refused"), [(2**40, True), (2**40 - 1, False)])
def test_a_small_database_whose_scores_could_overflow_is_refused(records: int, is_refused: bool) -> None:
    """At ``records * size * grid = 2^62`` a difference of two scores no longer fits 64 bits."""
    grid = 2**20

    def make() -> SmallDatabase:
        return SmallDatabase([3, 0], [LinearQuery([grid, 0], grid=grid)], records=records, size=4, epsilon=1.0)

    if is_refused:
        with pytest.raises(ValueError, match=r"below 2\^62"):
            make()
    else:
        scores = make()._scores()
        assert len(scores) == 5
        assert min(scores) == -(4 * grid * records - 4 * 3 * grid)


def test_records_that_a_small_database_of_a_given_size_needs() -> None:
    """The best size is the one with the fewest; one that cannot be accurate enough is refused."""
    asked = {"accuracy": 0.5, "beta": 0.1, "epsilon": 1.0, "universe": 3, "queries": 4}
    records, best = small_database_records_needed(**asked)
    assert small_database_records_needed(**asked, size=best) == (records, best)
    smallest = small_database_size(4, 0.5)
    needed = [small_database_records_needed(**asked, size=size)[0] for size in range(smallest + 1, 60)]
    assert min(needed) == records
    for size in (smallest, 0, LARGEST_COUNT + 1):
        with pytest.raises(ValueError, match=rf"size must be a whole number in {smallest + 1} \.\. {LARGEST_COUNT}"):
            small_database_records_needed(**asked, size=size)


class NoNoise:
    """As a source draws it when it draws the most likely value."""

    def discrete_laplace(self, epsilon: float) -> int:
        return 0

    def discrete_laplace_array(self, epsilon: float, count: int) -> np.ndarray:
        return np.zeros(count, dtype=np.int64)


def test_an_online_learner_moves_by_the_least_error_that_is_left() -> None:
    """A value may be off by 3 a/4, and an error that leads to an update is above a/2: it moves by the larger rest."""
    accuracy = 0.4
    learner = OnlineMultiplicativeWeights(
        [1000, 0, 0, 0], accuracy=accuracy, epsilon=50.0, delta=1e-6, records=1000, noise=NoNoise()
    )
    moved = []
    learner._learner.move = lambda query, goal: moved.append(goal)  # type: ignore[method-assign]
    for noisy_error in (0.95, 0.7, 0.45):
        learner._learn(LinearQuery([1, 0, 0, 0]), 0.25, 1, noisy_error)
        learner._learn(LinearQuery([1, 0, 0, 0]), 0.25, -1, noisy_error)
    wanted = [0.25 + sign * rest for rest in (0.65, 0.4, 0.2) for sign in (1, -1)]
    assert moved == pytest.approx(wanted)


def test_the_noise_of_a_source_is_that_of_the_wide_table_below_its_narrow_one() -> None:
    """At the smallest epsilon of the narrow table and at the next float below it: scales that a draw can tell."""
    for epsilon in (1e-4, float(np.nextafter(1e-4, 0)), 2e-4, 0.9e-4, 1e-8):
        draws = SecretNoise().discrete_laplace_array(epsilon, 400)
        assert draws.dtype == np.int64
        # The mean size is 1 / epsilon; of 400 it is off by half with a probability below 1e-20 (Chernoff).
        assert 0.5 / epsilon < np.abs(draws).mean() < 1.6 / epsilon


@pytest.mark.parametrize(("grid", "rounded"), [(1, 0), (2, 1), (10, 1)])
def test_values_are_off_by_their_noise_and_on_a_finer_grid_by_a_unit_of_rounding(grid: int, rounded: int) -> None:
    """That of c = 3 draws one exceeds k units has a probability of at most ``3 exp(-k value_epsilon)``."""
    sparse = NumericSparse([5] * 3, epsilon=1.0, threshold=0, cutoff=3, grid=grid)
    noise_units = round(sparse.value_accuracy(0.01) * grid) - rounded
    assert 3 * math.exp(-noise_units * sparse._value_epsilon) <= 0.01
    assert 3 * math.exp(-(noise_units - 1) * sparse._value_epsilon) > 0.01


def test_more_elements_than_a_monitor_can_have_are_refused_before_they_are_copied() -> None:
    """A view of one number: its copy would have eight terabytes."""
    noise = {"hits": 1, "threshold": 5.0, "wide_epsilon": 3e-5, "narrow_epsilon": 2e-3, "cap": 3300}
    with pytest.raises(ValueError, match="the number of elements"):
        ThresholdMonitor(np.broadcast_to(np.int64(1), (2**40 + 1,)), **noise)
