"""The (alpha, beta) theorems of the sparse vector technique, counted: how often do answers err by more than alpha?

Streams are as bad as the theorems allow: every answer lies just outside the margin. A correct mechanism is rejected
with probability at most 1e-6 a test over the key (fixed here); with a margin four times smaller it must be rejected.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dp_transforms.papers.noise_source import NoiseSource, SecretNoise
from dp_transforms.papers.query import RealQuery
from dp_transforms.papers.sparse_vector import AboveThreshold, NumericSparse, Sparse
from tests.helpers.sampling_checks import too_many

RUNS = 300
BETA = 0.2
KEY = bytes(range(32))
JUST = 1e-6  # outside the margin


@dataclasses.dataclass(frozen=True)
class Case:
    """queries: asked, at most. cutoff: of them are above the threshold, the last one too."""

    name: str
    make: Callable[[NoiseSource], Any]
    threshold: float
    queries: int
    cutoff: int = 1
    grid: int = 1

    def answers(self, alpha: float) -> list[float]:
        """Just below the margin, and `cutoff` times just above it."""
        step = math.ceil(self.queries / self.cutoff)
        low, high = self.threshold - alpha - JUST, self.threshold + alpha + JUST
        if self.grid == 1:
            low, high = math.floor(low), math.ceil(high)
        return [high if (self.queries - position) % step == 1 % step else low for position in range(self.queries)]


CASES = [
    Case(
        "AboveThreshold, grid 4",
        lambda noise: AboveThreshold(None, epsilon=3.0, threshold=0.3, grid=4, noise=noise),
        threshold=0.3,
        queries=40,
        grid=4,
    ),
    Case(
        "Sparse, delta > 0",
        lambda noise: Sparse(None, epsilon=2.0, delta=0.01, threshold=-7, cutoff=4, noise=noise),
        threshold=-7,
        queries=40,
        cutoff=4,
    ),
    Case(
        "NumericSparse, grid 3",
        lambda noise: NumericSparse(None, epsilon=2.0, threshold=1.5, cutoff=2, grid=3, noise=noise),
        threshold=1.5,
        queries=20,
        cutoff=2,
        grid=3,
    ),
    Case(
        "NumericSparse, delta > 0",
        lambda noise: NumericSparse(None, epsilon=2.0, delta=0.01, threshold=0, cutoff=4, noise=noise),
        threshold=0,
        queries=40,
        cutoff=4,
    ),
]


def errs(answer: Any, exact: float, threshold: float, alpha: float) -> bool:
    """Definition 3.9 and 3.10 of [DR14], and lecture 9 for values below the threshold."""
    if answer is None or answer is False:
        return exact > threshold + alpha
    return exact < threshold - alpha or (answer is not True and abs(answer - exact) > alpha)


def failures(case: Case, answers: Sequence[float], alpha: float, runs: int = RUNS) -> int:
    """In how many runs some answer errs by more than alpha."""
    noise = SecretNoise(KEY)
    queries = [(RealQuery(lambda _, exact=exact: exact, case.grid), exact) for exact in answers]
    failed = 0
    for _ in range(runs):
        mechanism = case.make(noise)
        for query, exact in queries:
            if mechanism.halted:
                break
            if errs(mechanism.ask(query), exact, case.threshold, alpha):
                failed += 1
                break
    return failed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answers_err_by_more_than_alpha_with_probability_beta_at_most(case: Case) -> None:
    alpha = case.make(SecretNoise(KEY)).accuracy(case.queries, BETA)
    assert not too_many(failures(case, case.answers(alpha), alpha), RUNS, BETA)
    assert too_many(failures(case, case.answers(alpha / 4), alpha / 4), RUNS, BETA)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_released_value_is_as_near_as_stated(delta: float) -> None:
    """One query, far above the threshold: only the value can err. For delta > 0 the formula of [DR14] Theorem 3.28 is
    too small: the value's noise is sqrt(8) times wider than it allows for."""
    epsilon = 1.0
    case = Case(
        "one value",
        lambda noise: NumericSparse(None, epsilon=epsilon, delta=delta, threshold=0, cutoff=1, noise=noise),
        threshold=0,
        queries=1,
    )
    logarithms = math.log(4 / BETA)
    if delta == 0:
        published = 9 * logarithms / epsilon
    else:
        published = (math.sqrt(512) + 1) * math.sqrt(math.log(2 / delta)) * logarithms / epsilon
    alpha = case.make(SecretNoise(KEY)).accuracy(1, BETA)
    assert alpha > 0.9 * published
    assert not too_many(failures(case, [10**9], alpha), RUNS, BETA)
    assert too_many(failures(case, [10**9], published), RUNS, BETA) == (delta > 0)
