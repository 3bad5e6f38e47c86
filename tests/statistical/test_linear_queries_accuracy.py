"""The theorems on accuracy, with real noise: as many records as they ask for are enough, far fewer are not.

Each run is one mechanism against an adversary who knows the data and asks for the worst query. A theorem allows a run
to fail with probability beta; more failures than a Binomial(runs, beta) has with probability 1e-6 are an alarm. The
twin of each test, with a small part of the records, must raise it.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from dp_transforms.mechanisms.papers.multiplicative_weights import (
    OfflineMultiplicativeWeights,
    OnlineMultiplicativeWeights,
    offline_records_needed,
    online_records_needed,
)
from dp_transforms.mechanisms.papers.noise_source import Halted, SecretNoise
from dp_transforms.mechanisms.papers.query import LinearQuery
from dp_transforms.mechanisms.papers.synthetic_data import SmallDatabase, SyntheticData, small_database_records_needed
from tests.helpers.sampling_checks import too_many

_BETA = 0.1
_RUNS = 60


@dataclasses.dataclass(frozen=True)
class _Data:
    """A skewed database over a small universe, and all queries that an adversary may ask."""

    histogram: np.ndarray
    queries: tuple[LinearQuery, ...]

    @classmethod
    def of(cls, records: int, universe: int, queries: int) -> _Data:
        random = np.random.default_rng(11)
        shares = np.sort(random.dirichlet(np.full(universe, 0.3)))
        histogram = np.rint(shares * records).astype(np.int64)
        histogram[-1] += records - histogram.sum()
        return cls(histogram, tuple(LinearQuery(weights) for weights in random.integers(0, 2, (queries, universe))))

    @property
    def records(self) -> int:
        return int(self.histogram.sum())

    @functools.cached_property
    def _answers(self) -> tuple[np.ndarray, np.ndarray]:
        weights = np.stack([query.weights for query in self.queries])
        return weights, weights @ self.histogram / self.records

    def worst(self, synthetic: SyntheticData) -> int:
        weights, answers = self._answers
        return int(np.abs(weights @ synthetic.shares - answers).argmax())

    def error(self, position: int, share: float) -> float:
        return float(abs(self._answers[1][position] - share))


def _key(run: int) -> bytes:
    return run.to_bytes(32, "big")


def _online_failures(data: _Data, accuracy: float, asked: int, delta: float) -> int:
    failures = 0
    for run in range(_RUNS):
        online = OnlineMultiplicativeWeights(
            data.histogram,
            records=data.records,
            epsilon=1.0,
            delta=delta,
            accuracy=accuracy,
            noise=SecretNoise(_key(run)),
        )
        try:
            errors = []
            for _ in range(asked):
                position = data.worst(online.synthetic)
                errors.append(data.error(position, online.ask(data.queries[position]).share))
            failures += max(errors) > accuracy
        except Halted:
            failures += 1
    return failures


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_online_answers_are_accurate_with_the_records_that_theorem_5_asks_for(delta: float) -> None:
    accuracy, universe, asked = 0.3, 8, 40
    needed = online_records_needed(
        accuracy=accuracy, beta=_BETA, epsilon=1.0, delta=delta, universe=universe, queries=asked
    )
    assert not too_many(_online_failures(_Data.of(needed, universe, 30), accuracy, asked, delta), _RUNS, _BETA)
    assert too_many(_online_failures(_Data.of(needed // 40, universe, 30), accuracy, asked, delta), _RUNS, _BETA)


def _offline_failures(data: _Data, accuracy: float, epsilon_per_call: float) -> int:
    failures = 0
    for run in range(_RUNS):
        synthetic = OfflineMultiplicativeWeights(
            data.histogram,
            data.queries,
            records=data.records,
            epsilon_per_call=epsilon_per_call,
            accuracy=accuracy,
            noise=SecretNoise(_key(run)),
        ).release()
        worst = data.worst(synthetic)
        failures += data.error(worst, synthetic.answer(data.queries[worst])) > accuracy
    return failures


def test_offline_distributions_are_accurate_with_the_records_that_were_promised_to_be_enough() -> None:
    accuracy, universe, queries, epsilon = 0.2, 16, 50, 0.1
    needed = offline_records_needed(
        accuracy=accuracy, beta=_BETA, epsilon_per_call=epsilon, universe=universe, queries=queries
    )
    assert not too_many(_offline_failures(_Data.of(needed, universe, queries), accuracy, epsilon), _RUNS, _BETA)
    assert too_many(_offline_failures(_Data.of(needed // 40, universe, queries), accuracy, epsilon), _RUNS, _BETA)


def _small_failures(data: _Data, accuracy: float, size: int) -> int:
    failures = 0
    for run in range(_RUNS):
        synthetic = SmallDatabase(
            data.histogram,
            data.queries,
            records=data.records,
            size=size,
            epsilon=1.0,
            noise=SecretNoise(_key(run)),
        ).release()
        worst = data.worst(synthetic)
        failures += data.error(worst, synthetic.answer(data.queries[worst])) > accuracy
    return failures


def test_small_databases_are_accurate_with_the_records_that_were_promised_to_be_enough() -> None:
    accuracy, universe, queries, size = 0.4, 4, 12, 25
    needed, _ = small_database_records_needed(
        accuracy=accuracy, beta=_BETA, epsilon=1.0, universe=universe, queries=queries, size=size
    )
    assert not too_many(_small_failures(_Data.of(needed, universe, queries), accuracy, size), _RUNS, _BETA)
    assert too_many(_small_failures(_Data.of(needed // 15, universe, queries), accuracy, size), _RUNS, _BETA)
