"""Scenarios of the linear-query mechanisms: tiny universes, one record more or another record instead."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from dp_transforms.papers.exponential_mechanism import ExponentialMechanism
from dp_transforms.papers.multiplicative_weights import (
    OfflineMultiplicativeWeights,
    OnlineMultiplicativeWeights,
)
from dp_transforms.papers.noise_source import NoiseSource
from dp_transforms.papers.query import LinearQuery
from dp_transforms.papers.sparse_vector import NumericSparse
from dp_transforms.papers.synthetic_data import SmallDatabase, SyntheticData
from tests.privacy.scenarios import Scenario

Run = Callable[[NoiseSource, bool], Hashable]

_FIRST, _BOTH_OF_THREE = LinearQuery([1, 0]), [LinearQuery([1, 0, 0]), LinearQuery([0, 1, 1])]
_FIRST_IN_HALVES = LinearQuery([2, 0], grid=2)
_HALVES = [LinearQuery([2, 0, 1], grid=2), LinearQuery([0, 1, 2], grid=2)]
_FOURTHS = [LinearQuery([4, 0, 1], grid=4), LinearQuery([0, 4, 1], grid=4)]
_ADDED = ((3, 1), (4, 1))  # a record more
_REPLACED = ((4, 1), (3, 2))  # another record instead
_REPLACED_OF_THREE = ((3, 0, 1), (2, 0, 2))


def _online(
    mechanism: type[OnlineMultiplicativeWeights],
    worlds: Sequence[Sequence[int]],
    queries: Sequence[LinearQuery],
    **arguments: Any,
) -> Run:
    """Asks the queries in turn, and the first one once more if it led to an update: a stream that adapts."""

    def run(noise: NoiseSource, with_user: bool) -> Hashable:
        online = mechanism(worlds[with_user], records=4, noise=noise, **arguments)
        transcript: list[Hashable] = []
        waiting = list(queries)
        while waiting and not online.halted:
            query = waiting.pop(0)
            answer = online.ask(query)
            transcript.append(answer)
            if answer.updated and len(transcript) == 1:
                waiting.append(query)
        return (*transcript, tuple(online.synthetic.shares.tolist()))

    return run


def _offline(
    mechanism: type[OfflineMultiplicativeWeights],
    worlds: Sequence[Sequence[int]],
    queries: Sequence[LinearQuery],
    **arguments: Any,
) -> Run:
    def run(noise: NoiseSource, with_user: bool) -> Hashable:
        offline = mechanism(worlds[with_user], queries, records=4, noise=noise, **arguments)
        shares = offline.release().shares.tolist()
        return tuple(offline.measured), tuple(shares)

    return run


def _small(mechanism: type[SmallDatabase], worlds: Sequence[Sequence[int]], **arguments: Any) -> Run:
    def run(noise: NoiseSource, with_user: bool) -> Hashable:
        small = mechanism(worlds[with_user], records=4, noise=noise, **arguments)
        return tuple(small.release().shares.tolist())

    return run


class _UpdatesWithTheTruth(OnlineMultiplicativeWeights):
    """Publishes a noisy answer, but learns from the exact one: what it says later tells it."""

    def __init__(self, histogram: Any, **arguments: Any) -> None:
        super().__init__(histogram, **arguments)
        self._histogram = histogram

    def _learn(self, query: LinearQuery, estimate: float, sign: int, noisy_error: float) -> None:
        error = query.answer(self._histogram) / self._records / self._grid - estimate
        super()._learn(query, estimate, sign, abs(error))


class _CountsTheRecords(OnlineMultiplicativeWeights):
    """Takes the number of records from the data: the answers' denominators tell it."""

    def __init__(self, histogram: Any, **arguments: Any) -> None:
        super().__init__(histogram, **{**arguments, "records": sum(histogram)})


class _ExactValues(NumericSparse):
    def ask(self, query: Any) -> float | None:
        answer = self._exact_answer(query)
        return answer / self._grid if self._is_above(answer) else None


class _OneUnit(NumericSparse):
    """Noise for a sensitivity of one unit of 1 / grid, whatever the query says."""

    def __init__(self, data: Any, **arguments: Any) -> None:
        super().__init__(data, **{**arguments, "sensitivity_units": 1})
        self._sensitivity = arguments["sensitivity_units"]


def _online_with(sparse: type[NumericSparse]) -> type[OnlineMultiplicativeWeights]:
    class Online(OnlineMultiplicativeWeights):
        def __init__(self, histogram: Any, *, records: int, grid: int = 1, **arguments: Any) -> None:
            super().__init__(histogram, records=records, grid=grid, **arguments)
            budget = {name: arguments[name] for name in ("epsilon", "noise")}
            self._sparse = sparse(
                np.array(histogram),
                threshold=self._threshold * records,
                cutoff=arguments["updates"],
                grid=grid,
                sensitivity_units=grid,
                **budget,
            )

    return Online


class _MeasuresExactly(OfflineMultiplicativeWeights):
    def _measure(self, position: int) -> int:
        return int(self._answers[position])


class _ChoosesTheWorst(OfflineMultiplicativeWeights):
    def _choose_worst(self, estimates: Any) -> int:
        return int(np.abs(self._answers - estimates).argmax())


class _MeasuresOneUnit(OfflineMultiplicativeWeights):
    """Noise for a sensitivity of one unit of 1 / grid."""

    def _measure(self, position: int) -> int:
        return int(int(self._answers[position]) + self._noise.discrete_laplace(self._epsilon))


class _ChoosesByOneUnit(OfflineMultiplicativeWeights):
    def _choose_worst(self, estimates: Any) -> int:
        scores = np.abs(self._answers - estimates).tolist()
        return ExponentialMechanism(scores, self._epsilon, 1).choose(self._noise)


class _ChoosesAtTwiceTheEpsilon(OfflineMultiplicativeWeights):
    def _choose_worst(self, estimates: Any) -> int:
        scores = np.abs(self._answers - estimates).tolist()
        return ExponentialMechanism(scores, 2 * self._epsilon, self._grid).choose(self._noise)


class _HalfTheSensitivity(SmallDatabase):
    """Weights exp(epsilon score / sensitivity) for scores that move in both directions."""

    def release(self) -> SyntheticData:
        self._epsilon *= 2
        return super().release()


class _TakesTheBest(SmallDatabase):
    def _scores(self) -> list[int]:
        scores = super()._scores()
        best = max(scores)
        return [10**6 if score == best else 0 for score in scores]


def _choice(noise: NoiseSource, with_user: bool, sensitivity: int = 1) -> Hashable:
    scores = [2, 0, 1] if with_user else [1, 1, 2]
    return ExponentialMechanism(scores, 1.0, sensitivity).choose(noise)


def _half_choice(noise: NoiseSource, with_user: bool) -> Hashable:
    """The sensitivity in halves of what it is."""
    scores = [4, 0, 2] if with_user else [2, 2, 4]
    return ExponentialMechanism(scores, 1.0, 1).choose(noise)


_ONLINE = {"epsilon": 8.0, "accuracy": 0.4, "updates": 1}
_OFFLINE = {"epsilon_per_call": 3.0, "accuracy": 0.4, "updates": 2}
_FOURTHS_OFFLINE = {"epsilon_per_call": 1.0, "accuracy": 0.4, "updates": 1}
_SMALL = {"queries": _BOTH_OF_THREE, "size": 3, "epsilon": 1.0}

SCENARIOS = [
    Scenario("exponential mechanism", "ExponentialMechanism, [DR14] Theorem 3.10", 1.0, 0.0, _choice),
    Scenario(
        "exponential mechanism, half the sensitivity",
        "ExponentialMechanism with half of the sensitivity that the scores have",
        1.0,
        0.0,
        _half_choice,
        private=False,
    ),
    Scenario(
        "online multiplicative weights, a record more",
        "OnlineMultiplicativeWeights, lecture 9, Theorem 5",
        8.0,
        0.0,
        _online(OnlineMultiplicativeWeights, _ADDED, [_FIRST, _FIRST], **_ONLINE),
    ),
    Scenario(
        "online multiplicative weights, queries in halves",
        "OnlineMultiplicativeWeights, lecture 9, Theorem 5",
        12.0,
        0.0,
        _online(OnlineMultiplicativeWeights, _ADDED, [_FIRST_IN_HALVES], **{**_ONLINE, "epsilon": 12.0}, grid=2),
    ),
    Scenario(
        "online multiplicative weights that learn from the exact answer",
        "OnlineMultiplicativeWeights with the update made by the true error",
        8.0,
        0.0,
        _online(_UpdatesWithTheTruth, _REPLACED, [_FIRST], **{**_ONLINE, "accuracy": 0.2}),
        private=False,
    ),
    Scenario(
        "online multiplicative weights that count the records",
        "OnlineMultiplicativeWeights with the number of records taken from the data",
        8.0,
        0.0,
        _online(_CountsTheRecords, _ADDED, [_FIRST], **_ONLINE),
        private=False,
    ),
    Scenario(
        "online multiplicative weights, exact values",
        "OnlineMultiplicativeWeights on a NumericSparse that adds no noise to its values",
        8.0,
        0.0,
        _online(_online_with(_ExactValues), _REPLACED, [_FIRST], **_ONLINE),
        private=False,
    ),
    Scenario(
        "online multiplicative weights, noise for one unit of the grid",
        "OnlineMultiplicativeWeights on a NumericSparse that takes the unit of the grid for the sensitivity",
        8.0,
        0.0,
        _online(_online_with(_OneUnit), _ADDED, [LinearQuery([8, 0], grid=8)], **_ONLINE, grid=8),
        private=False,
    ),
    Scenario(
        "offline multiplicative weights, another record",
        "OfflineMultiplicativeWeights, lecture 9; 2 updates, so 4 calls",
        12.0,
        0.0,
        _offline(OfflineMultiplicativeWeights, _REPLACED_OF_THREE, _BOTH_OF_THREE, **_OFFLINE),
    ),
    *(
        Scenario(
            f"offline multiplicative weights, fourths{fault}",
            f"{mechanism.__name__}: weights in units of 1 / 4, and one user moves an answer by all four",
            2.0,
            0.0,
            _offline(mechanism, ((3, others, 0), (4, others - 1, 0)), _FOURTHS, **_FOURTHS_OFFLINE),
            private=mechanism is OfflineMultiplicativeWeights,
        )
        for mechanism, others, fault in (
            (OfflineMultiplicativeWeights, 4, ""),
            (_MeasuresOneUnit, 4, ", noise for one unit"),
            (_ChoosesByOneUnit, 4, ", choice for one unit"),
            # An unlikely choice attains nearly all of its epsilon.
            (OfflineMultiplicativeWeights, 8, ", unlikely choice"),
            (_ChoosesAtTwiceTheEpsilon, 8, ", choice at twice the epsilon"),
        )
    ),
    Scenario(
        "offline multiplicative weights, exact measurements",
        "OfflineMultiplicativeWeights without noise in what it measures",
        12.0,
        0.0,
        _offline(_MeasuresExactly, _REPLACED_OF_THREE, _BOTH_OF_THREE, **_OFFLINE),
        private=False,
    ),
    Scenario(
        "offline multiplicative weights, the worst query itself",
        "OfflineMultiplicativeWeights with the worst query chosen without noise",
        12.0,
        0.0,
        _offline(_ChoosesTheWorst, _REPLACED_OF_THREE, _HALVES, **_OFFLINE),
        private=False,
    ),
    Scenario(
        "small database, another record",
        "SmallDatabase, lecture notes on linear queries",
        1.0,
        0.0,
        _small(SmallDatabase, _REPLACED_OF_THREE, **_SMALL),
    ),
    Scenario(
        "small database, fourths",
        "SmallDatabase: weights in units of 1 / 4, and one user moves an answer by all four",
        1.0,
        0.0,
        _small(SmallDatabase, ((4, 0, 0), (3, 1, 0)), queries=_FOURTHS, size=2, epsilon=1.0),
    ),
    Scenario(
        "small database, half the sensitivity",
        "SmallDatabase with the exponential mechanism at half of the sensitivity",
        1.0,
        0.0,
        _small(_HalfTheSensitivity, _REPLACED_OF_THREE, **_SMALL),
        private=False,
    ),
    Scenario(
        "small database, the best one itself",
        "SmallDatabase that always releases a best candidate",
        1.0,
        0.0,
        _small(_TakesTheBest, _REPLACED_OF_THREE, **_SMALL),
        private=False,
    ),
]
