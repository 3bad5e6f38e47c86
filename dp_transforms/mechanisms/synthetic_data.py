"""What private multiplicative weights and the small database publish: a distribution over the universe."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.query import LinearQuery, check_counts

LARGEST_UNIVERSE = 2**20
LARGEST_RECORDS = 2**40


@dataclasses.dataclass(frozen=True, eq=False)
class SyntheticData:
    """A public stand-in for a database: which share of its records has each value.

    Computed from published numbers alone, so floating-point arithmetic is harmless here, and any number of answers is
    free. shares: float64[universe], each >= 0, adding up to 1.

    >>> SyntheticData(np.array([0.5, 0.25, 0.25, 0.0])).answer(LinearQuery.of([1, 0.5, 0, 0], grid=2))
    0.625
    """

    shares: npt.NDArray[np.float64]

    def answer(self, query: LinearQuery) -> float:
        """The normalised answer, in [0, 1]: the mean of f(x) over the distribution."""
        if len(query.weights) != len(self.shares):
            raise ValueError(f"the query has {len(query.weights)} weights, the universe {len(self.shares)} values.")
        return min(1.0, max(0.0, float(query.weights @ self.shares) / query.grid))


class MultiplicativeWeights:
    """Moves a distribution towards the true one, one query after the other. Sees public numbers only.

    Lemma: let e = f(D) - f(p) be the error of the present distribution p, and D the true one. An update brings the
    relative entropy KL(D || p) down by at least ``step e - step^2 / 8``: it falls by ``step f(D) - ln sum p(x)
    exp(step f(x))``, and by Hoeffding's lemma the logarithm is at most ``step f(p) + step^2 / 8``, as f lies in [0, 1].
    At the start it is at most ln(universe), and it is never negative. So with ``step = 4 g`` for any g <= e, of e's
    sign, an update gains at least 2 g^2, and there are at most ``ln(universe) / (2 g^2)`` updates with such g.
    """

    def __init__(self, universe: int) -> None:
        if not 1 <= universe <= LARGEST_UNIVERSE:
            raise ValueError(f"the universe must have 1 .. {LARGEST_UNIVERSE} values, got {universe!r}.")
        self._log_shares = np.zeros(universe)  # not normalised; logarithms, as shares may become very small
        self.synthetic = SyntheticData(np.full(universe, 1 / universe))

    def update(self, query: LinearQuery, step: float) -> None:
        """Shares become proportional to ``share(x) exp(step f(x))``. step > 0 raises the answer to the query."""
        self._log_shares = self._log_shares + query.weights * (step / query.grid)
        self._log_shares -= self._log_shares.max()
        shares = np.exp(self._log_shares)
        self.synthetic = SyntheticData(shares / shares.sum())


def check_histogram(histogram: Any) -> npt.NDArray[np.int64]:
    """int64[universe]: how many records have each value."""
    counts = np.asarray(histogram)
    if not 1 <= counts.size <= LARGEST_UNIVERSE:
        raise ValueError(f"the histogram must have 1 .. {LARGEST_UNIVERSE} values, got shape {counts.shape}.")
    return check_counts(counts, counts.size)


def check_records(records: int) -> int:
    """The public number of records, by which answers are normalised."""
    if not isinstance(records, (int, np.integer)) or isinstance(records, bool) or not 1 <= records <= LARGEST_RECORDS:
        raise ValueError(f"records must be a whole number in 1 .. 2^40, got {records!r}.")
    return int(records)


def check_share(name: str, value: float) -> float:
    """A number strictly between 0 and 1: an accuracy of normalised answers, or a probability."""
    if isinstance(value, bool) or not 0 < value < 1:
        raise ValueError(f"{name} must lie in (0, 1), got {value!r}.")
    return float(value)


def check_epsilon(name: str, value: float) -> float:
    if isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be finite and > 0, got {value!r}.")
    return float(value)


def check_queries(queries: list[LinearQuery], universe: int) -> int:
    """Raises ValueError unless all queries fit the universe and share one grid. Returns the grid."""
    if not queries:
        raise ValueError("there must be at least one query.")
    for query in queries:
        if len(query.weights) != universe or query.grid != queries[0].grid:
            raise ValueError(
                f"all queries must have {universe} weights on one grid, {queries[0].grid}, "
                f"got {len(query.weights)} weights on the grid {query.grid}."
            )
    return queries[0].grid
