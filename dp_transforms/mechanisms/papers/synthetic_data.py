"""What private multiplicative weights and the small database publish: a distribution over the universe."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.checks import check_whole
from dp_transforms.mechanisms.papers.query import LinearQuery, check_counts

LARGEST_UNIVERSE = 2**20
LARGEST_COUNT = 2**31  # of queries, updates or records of a small database
_LARGEST_RECORDS = 2**40
_LARGEST_STEP = 30.0
_INFINITE_LOGIT = 1000.0


@dataclasses.dataclass(frozen=True, eq=False)
class SyntheticData:
    """A public stand-in for a database: the share of its records that has each value.

    Computed from published numbers alone, so floating-point arithmetic is harmless here, and any number of answers is
    free. shares: float64[universe], each >= 0, adding up to 1.

    >>> SyntheticData(np.array([0.5, 0.25, 0.25, 0.0])).answer(LinearQuery.of([1, 0.5, 0, 0], grid=2))
    0.625
    """

    shares: npt.NDArray[np.float64]

    def answer(self, query: LinearQuery) -> float:
        """The normalised answer, in [0, 1]: the mean of f(x) over the distribution."""
        if len(query.weights) != len(self.shares):
            raise ValueError(
                f"the query must have a weight for each of the {len(self.shares)} values, got {len(query.weights)}."
            )
        return min(1.0, max(0.0, float(query.weights @ self.shares) / query.grid))


class MultiplicativeWeights:
    """Moves a distribution towards the true one, one query after the other. Sees public numbers only.

    Lemma: let p be the present distribution, D the true one, and m a number between f(p) and f(D). A move of the answer
    to m brings the relative entropy KL(D || p) down by at least ``2 (m - f(p))^2``. At the start it is at most
    ln(universe), and it is never negative; so there are at most ``ln(universe) / (2 g^2)`` moves by g or more.

    Proof: shares become proportional to ``share(x) exp(s f(x))`` with ``s = logit(m) - logit(f(p))``. The entropy falls
    by ``s f(D) - ln sum p(x) exp(s f(x))``. The exponential is convex and f lies in [0, 1], so the sum is at most
    ``1 - f(p) + f(p) e^s = (1 - f(p)) / (1 - m)``, and ``s m`` minus its logarithm is ``kl(m || f(p))``, at least
    ``2 (m - f(p))^2`` by Pinsker's inequality; ``s (f(D) - m) >= 0`` comes on top. Steps are cut to |s| <= 30, which
    leaves a gain of at least 2 g^2, since it bites only where much more is gained.
    """

    def __init__(self, universe: int) -> None:
        if not 1 <= universe <= LARGEST_UNIVERSE:
            raise ValueError(f"the universe must have 1 .. {LARGEST_UNIVERSE} values, got {universe!r}.")
        self._log_shares = np.zeros(universe)  # not normalised; logarithms, as shares may become very small
        self.synthetic = SyntheticData(np.full(universe, 1 / universe))

    def move(self, query: LinearQuery, target: float) -> None:
        """Moves the answer to `target`, cut to [0, 1]; exactly there if all f(x) are 0 or 1, else at most so far."""
        step = _logit(min(1.0, max(0.0, target))) - _logit(self.synthetic.answer(query))
        step = min(_LARGEST_STEP, max(-_LARGEST_STEP, step))
        self._log_shares = self._log_shares + query.weights * (step / query.grid)
        self._log_shares -= self._log_shares.max()
        shares = np.exp(self._log_shares)
        self.synthetic = SyntheticData(shares / shares.sum())


def _logit(share: float) -> float:
    """``ln(x / (1 - x))``, with large numbers for its infinities."""
    if not 0 < share < 1:
        return math.copysign(_INFINITE_LOGIT, share - 0.5)
    return math.log(share) - math.log1p(-share)


def check_histogram(histogram: Any) -> npt.NDArray[np.int64]:
    """int64[universe]: how many records have each value."""
    counts = np.asarray(histogram)
    if not 1 <= counts.size <= LARGEST_UNIVERSE:
        raise ValueError(f"the histogram must have 1 .. {LARGEST_UNIVERSE} values, got shape {counts.shape}.")
    return check_counts(counts, counts.size)


def check_records(records: int) -> int:
    """The public number of records, by which answers are normalised."""
    return check_whole("records", records, 1, _LARGEST_RECORDS)


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
