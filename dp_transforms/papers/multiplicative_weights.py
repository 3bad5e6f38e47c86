"""Private multiplicative weights: many linear queries from one budget, which grows with ln(queries) only.

Both variants keep a public distribution p over the universe, uniform at first, and move it whenever a query is found
to have a large error under it; a query with a small error costs nearly nothing. Answers are normalised: shares of the
declared number of records, in [0, 1].

Unit of privacy, for both: one record. Neighbours are histograms that differ in one record: one more, one fewer, or
another one instead. Each changes ``sum f(x)`` by at most 1. `records` is public: it is declared, and never compared
with the data. Theorems on accuracy hold where it is the true number. What meets noise is ``f(D) - records f(p)`` in
whole units of 1 / grid; only its public part, ``records f(p)``, is rounded, to the nearest unit.

Proofs of accuracy: docs/proofs.md, "Multiplicative weights".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.checks import check_fraction, check_whole
from dp_transforms.papers.exponential_mechanism import ExponentialMechanism
from dp_transforms.papers.noise_source import NoiseSource
from dp_transforms.papers.query import LinearQuery, epsilon_per_unit
from dp_transforms.papers.sparse_vector import NumericSparse
from dp_transforms.papers.synthetic_data import (
    LARGEST_COUNT,
    LARGEST_UNIVERSE,
    MultiplicativeWeights,
    OneRelease,
    SyntheticData,
    check_histogram,
    check_records,
)


def update_limit(universe: int, accuracy: float) -> int:
    """``floor(2 ln(universe) / accuracy^2) + 1``: updates until every error is below accuracy / 2, and one more."""
    check_whole("universe", universe, 1, LARGEST_UNIVERSE)
    return math.floor(2 * math.log(universe) / check_fraction("accuracy", accuracy) ** 2) + 1


class LinearAnswer(NamedTuple):
    """share: the normalised answer; measured with noise where `updated`, else that of the distribution."""

    share: float
    updated: bool


class OnlineMultiplicativeWeights:
    """Answers one linear query after the other, each chosen as you like, from what was published before.

    Guarantee: (epsilon, delta)-DP, for any number of queries. Only `NumericSparse` sees the data: its query is
    ``f(D) - f(p)`` and then, if that is not above the threshold, ``f(p) - f(D)``. Unit of privacy and meaning of
    `records`: see the module. Accuracy: with at least `online_records_needed` records all of the first `queries`
    answers are within `accuracy` with probability 1 - beta, and it does not halt. Source: lecture 9, Online Private
    Multiplicative Weights, Theorem 5; [DR14] section 4.2.

    histogram: int64[universe]. grid: of all queries. updates: the most there may be (default: `update_limit`; fewer
    mean less noise and equal privacy, but the theorem no longer holds). After the last one `ask` raises `Halted`. What
    was learned stays: `synthetic` answers any query at no cost.

    >>> online = OnlineMultiplicativeWeights([90_000, 0, 0, 10_000], records=100_000, epsilon=1.0, accuracy=0.5)
    >>> answers = [online.ask(LinearQuery([1, 0, 0, 0])), online.ask(LinearQuery([1, 1, 0, 0]))]
    >>> [(round(answer.share, 1), answer.updated) for answer in answers]
    [(0.9, True), (0.7, False)]
    """

    def __init__(
        self,
        histogram: Any,
        *,
        records: int,
        epsilon: float,
        accuracy: float,
        delta: float = 0.0,
        updates: int | None = None,
        grid: int = 1,
        noise: NoiseSource | None = None,
    ) -> None:
        counts = check_histogram(histogram)
        self._records = check_records(records)
        self._grid = grid
        limit = update_limit(len(counts), accuracy)
        # Comparisons may be off by a/4: errors up to a pass, and those that lead to an update are above a/2. Values may
        # be off by 3 a/4: they have more noise, and may.
        self._threshold, self._least_error, self._value_slack = accuracy * 3 / 4, accuracy / 2, accuracy * 3 / 4
        self._sparse = NumericSparse(
            counts,
            epsilon=epsilon,
            delta=delta,
            threshold=self._threshold * self._records,
            cutoff=limit if updates is None else check_whole("updates", updates, 1, LARGEST_COUNT),
            grid=grid,
            sensitivity_units=grid,
            noise=noise,
        )
        self._learner = MultiplicativeWeights(len(counts))

    @property
    def synthetic(self) -> SyntheticData:
        """The current distribution. Public, as every answer is."""
        return self._learner.synthetic

    @property
    def updates(self) -> int:
        """The number of updates so far. Public, as every answer is."""
        return self._sparse.tops

    @property
    def halted(self) -> bool:
        return self._sparse.halted

    def ask(self, query: LinearQuery) -> LinearAnswer:
        """The normalised answer to one query. Raises Halted after the last update."""
        estimate = self.synthetic.answer(query)
        estimate_units = round(self._records * self._grid * estimate)
        for sign in (1, -1):
            error = self._sparse.ask(_Error(query, estimate_units, sign))
            if error is not None:
                self._learn(query, estimate, sign, error / self._records)
                share = (estimate_units / self._grid + sign * error) / self._records
                return LinearAnswer(min(1.0, max(0.0, share)), updated=True)
        return LinearAnswer(estimate, updated=False)

    def _learn(self, query: LinearQuery, estimate: float, sign: int, noisy_error: float) -> None:
        """noisy_error: published. The answer is moved by the least true error that it leaves possible."""
        at_least = max(noisy_error - self._value_slack, self._least_error)
        self._learner.move(query, estimate + sign * at_least)


@dataclasses.dataclass(frozen=True, eq=False)
class _Error:
    """One side of the error of a public estimate: a query like any other, since the estimate is a constant."""

    query: LinearQuery
    estimate_units: int
    sign: int

    @property
    def grid(self) -> int:
        return self.query.grid

    @property
    def sensitivity(self) -> int:
        return self.query.sensitivity

    def answer(self, data: Any) -> int:
        return self.sign * (self.query.answer(data) - self.estimate_units)


def online_records_needed(
    *, accuracy: float, beta: float, epsilon: float, universe: int, queries: int, delta: float = 0.0, grid: int = 1
) -> int:
    """The fewest records for the accuracy of `OnlineMultiplicativeWeights`: Theorem 5 of lecture 9 with its constants.

    ``4 s / accuracy``, where s is up to what `NumericSparse` compares right with c = `update_limit` values and two
    questions a query: ``9 c (ln(2 queries) + ln(4 c/beta)) / epsilon`` for delta = 0 and ``(sqrt(512) + 1) sqrt(c
    ln(2/delta)) (ln(2 queries) + ln(4 c/beta)) / epsilon`` for delta > 0, and one unit of 1 / grid for what is rounded.
    """
    check_fraction("beta", beta)
    check_whole("queries", queries, 1, LARGEST_COUNT)
    cutoff = update_limit(universe, accuracy)
    sparse = NumericSparse(
        None, epsilon=epsilon, delta=delta, threshold=0, cutoff=cutoff, grid=grid, sensitivity_units=grid
    )
    comparisons = 4 * (sparse.comparison_accuracy(2 * queries, beta / 2) + 1 / grid)
    values = 4 / 3 * (sparse.value_accuracy(beta / 2) + 1 / grid)
    return math.ceil(max(comparisons, values) / accuracy)


class OfflineMultiplicativeWeights(OneRelease):
    """Learns a distribution that answers every query of a known set: finds the worst one, measures it, moves, repeats.

    Guarantee: at most ``2 updates`` adaptive calls of epsilon_per_call-DP mechanisms, half of them choices of a query
    by `ExponentialMechanism`, half of them noisy answers: ``2 updates epsilon_per_call``-DP, and (epsilon, delta)-DP as
    any composition theorem says. Unit of privacy and meaning of `records`:
    see the module. Accuracy: with at least `offline_records_needed` records every answer of the released
    distribution is within `accuracy` with probability 1 - beta. Source: lecture 9, offline private multiplicative
    weights.

    Arguments: as in `OneRelease`. updates: the most rounds (default: `update_limit`; fewer leave more budget to each,
    but the theorem no longer holds). It ends early once the worst error, measured, is small. `measured` holds what was
    published on the way: for each round the position of the query and its noisy answer, normalised.

    >>> is_high, is_even = LinearQuery([0, 0, 1, 1]), LinearQuery([1, 0, 1, 0])
    >>> offline = OfflineMultiplicativeWeights(
    ...     [90_000, 0, 0, 10_000], [is_high, is_even], records=100_000, epsilon_per_call=0.05, accuracy=0.1
    ... )
    >>> synthetic = offline.release()
    >>> abs(synthetic.answer(is_high) - 0.1) < 0.1, abs(synthetic.answer(is_even) - 0.9) < 0.1
    (True, True)
    """

    def __init__(
        self,
        histogram: Any,
        queries: Iterable[LinearQuery],
        *,
        records: int,
        epsilon_per_call: float,
        accuracy: float,
        updates: int | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        super().__init__(histogram, queries, records, noise)
        universe = len(self._histogram)
        self._epsilon = epsilon_per_call
        self._epsilon_per_unit = epsilon_per_unit(epsilon_per_call, self._grid, name="epsilon_per_call")
        limit = update_limit(universe, accuracy)
        self._rounds = limit if updates is None else check_whole("updates", updates, 1, LARGEST_COUNT)
        # An update needs a true error above a/2. The noise of a measurement may take a/8 on both sides, and the choice
        # of the worst query a/4: 1/2 + 1/8 + 1/8 + 1/4 = 1.
        self._stop_below, self._slack = accuracy * 5 / 8, accuracy / 8
        self._answers = np.array([query.answer(self._histogram) for query in self._queries])
        self._weights = np.stack([query.weights for query in self._queries]).astype(np.float64)
        self._learner = MultiplicativeWeights(universe)
        self.measured: list[tuple[int, float]] = []

    def _release(self) -> SyntheticData:
        one = self._grid * self._records
        for _ in range(self._rounds):
            # Public numbers: rounding them, or how a sum is ordered, touches no guarantee.
            estimates = np.rint(self._weights @ self._learner.synthetic.shares * self._records).astype(np.int64)
            worst = self._choose_worst(estimates)
            noisy_answer = self._measure(worst)
            self.measured.append((worst, noisy_answer / one))
            error = (noisy_answer - int(estimates[worst])) / one
            if abs(error) < self._stop_below:
                break
            # By the least true error that the measurement leaves possible.
            self._learner.move(self._queries[worst], noisy_answer / one - math.copysign(self._slack, error))
        return self._learner.synthetic

    def _choose_worst(self, estimates: npt.NDArray[np.int64]) -> int:
        scores = np.abs(self._answers - estimates).tolist()
        return ExponentialMechanism(scores, self._epsilon, self._grid).choose(self._noise)

    def _measure(self, position: int) -> int:
        return int(int(self._answers[position]) + self._noise.discrete_laplace(self._epsilon_per_unit))


def offline_records_needed(
    *, accuracy: float, beta: float, epsilon_per_call: float, universe: int, queries: int
) -> int:
    """The fewest records for the accuracy of `OfflineMultiplicativeWeights`.

    ``8 ((ln(queries) + ln(2 R/beta)) / epsilon_per_call + 2) / accuracy``, R = `update_limit`.
    """
    epsilon_per_unit(epsilon_per_call, 1, name="epsilon_per_call")
    check_whole("queries", queries, 1, LARGEST_COUNT)
    tail = math.log(2 * update_limit(universe, accuracy) / check_fraction("beta", beta))
    return math.ceil(8 * ((math.log(queries) + tail) / epsilon_per_call + 2) / accuracy)
