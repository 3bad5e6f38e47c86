"""A distribution over the universe that stands in for a database: how it learns, and SmallDB, which chooses one.

Private multiplicative weights publish one, and the small database does: a database of a few records that answers all
queries of a known set (lecture notes on linear queries).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.checks import check_fraction, check_positive, check_whole
from dp_transforms.papers.exponential_mechanism import ExponentialMechanism
from dp_transforms.papers.noise_source import Halted, NoiseSource, SecretNoise
from dp_transforms.papers.query import LinearQuery, check_counts

LARGEST_UNIVERSE = 2**20
LARGEST_COUNT = 2**31  # of queries, updates or records of a small database
_LARGEST_RECORDS = 2**40
_LARGEST_STEP = 30.0
_INFINITE_LOGIT = 1000.0
LARGEST_CANDIDATES = 2**17
_LARGEST_ENTRIES = 2**23
_LARGEST_PRODUCT = 2**62


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

    Shares become proportional to ``share(x) exp(s f(x))`` with ``s = logit(m) - logit(f(p))``, cut to |s| <= 30. If
    each move goes from f(p) by g or more towards the true answer, and not beyond it, there are at most
    ``ln(universe) / (2 g^2)`` (docs/proofs.md, "Multiplicative weights").
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


class OneRelease:
    """What publishes one distribution for a known set of queries.

    histogram: int64[universe], how many records have each value. queries: all on one grid. records: their public
    number.
    """

    def __init__(self, histogram: Any, queries: Iterable[LinearQuery], records: int, noise: NoiseSource | None) -> None:
        self._histogram = check_histogram(histogram)
        self._queries = list(queries)
        if not self._queries:
            raise ValueError("there must be at least one query.")
        self._grid = self._queries[0].grid
        for query in self._queries:
            if len(query.weights) != len(self._histogram) or query.grid != self._grid:
                raise ValueError(
                    f"all queries must have {len(self._histogram)} weights on one grid, {self._grid}, "
                    f"got {len(query.weights)} weights on the grid {query.grid}."
                )
        self._records = check_records(records)
        self._noise = SecretNoise() if noise is None else noise
        self._halted = False

    def release(self) -> SyntheticData:
        """The distribution. Once: raises Halted afterwards."""
        if self._halted:
            raise Halted("the distribution has been released. Keep it: its answers are free.")
        self._halted = True
        return self._release()

    def _release(self) -> SyntheticData:
        raise NotImplementedError


def small_database_size(queries: int, accuracy: float) -> int:
    """The size m at which some database of m records answers every query to within `accuracy` (normalised).

    ``m = ceil(ln(2 queries) / (2 accuracy^2))`` (docs/proofs.md, "Small databases").
    """
    check_whole("queries", queries, 1, LARGEST_COUNT)
    return math.ceil(math.log(2 * queries) / (2 * check_fraction("accuracy", accuracy) ** 2))


class SmallDatabase(OneRelease):
    """Chooses one of all databases of `size` records by the exponential mechanism: the better it answers, the likelier.

    Guarantee: epsilon-DP, for histograms that differ in one record: one more, one fewer, or another one instead. The
    score of a candidate is minus its largest error over the queries, on an exact grid; one record changes it by at most
    ``1 / records``. Conditions: queries, records and size are public; `records` is declared, and never compared with
    the data. Where it is their true number, the release answers every query to within `accuracy`. Source: lecture
    notes on linear queries, Algorithm SmallDB; [DR14] section 4.1.

    Arguments: as in `OneRelease`. There are C(universe + size - 1, size) candidates, which are all scored: for tiny
    universes only.

    >>> is_high, is_even = LinearQuery([0, 0, 1, 1]), LinearQuery([1, 0, 1, 0])
    >>> small = SmallDatabase([0, 500, 0, 500], [is_high, is_even], records=1000, size=2, epsilon=1.0)
    >>> released = small.release()
    >>> released.answer(is_high), released.answer(is_even)
    (0.5, 0.0)
    """

    def __init__(
        self,
        histogram: Any,
        queries: Iterable[LinearQuery],
        *,
        records: int,
        size: int,
        epsilon: float,
        noise: NoiseSource | None = None,
    ) -> None:
        super().__init__(histogram, queries, records, noise)
        self._universe = len(self._histogram)
        self._size = _check_size(size, self._universe)
        if self._records * self._size * self._grid >= _LARGEST_PRODUCT:
            raise ValueError("records * size * grid must be below 2^62. Use a coarser grid.")
        self._epsilon = check_positive("epsilon", epsilon)

    def _release(self) -> SyntheticData:
        # One record moves size * f(D) by at most size * grid units of 1 / (size * records * grid).
        mechanism = ExponentialMechanism(self._scores(), self._epsilon, self._size * self._grid)
        chosen = mechanism.choose(self._noise)
        return SyntheticData(_databases(self._universe, self._size)[chosen] / self._size)

    def accuracy(self, beta: float) -> float:
        """The largest error of a normalised answer, except with probability beta.

        ``sqrt(ln(2 |Q|) / (2 size)) + 2 (ln C(universe + size - 1, size) + ln(1/beta)) / (epsilon records)``: what the
        best candidate lacks (`small_database_size`), and what the chosen one lacks of the best.
        """
        best = math.sqrt(math.log(2 * len(self._queries)) / (2 * self._size))
        candidates = math.log(math.comb(self._universe + self._size - 1, self._size))
        return best + 2 * (candidates - math.log(check_fraction("beta", beta))) / (self._epsilon * self._records)

    def _scores(self) -> list[int]:
        """Minus the largest ``|size f(D) - records f(candidate)|`` in units of 1 / grid, for each candidate."""
        databases = _databases(self._universe, self._size).astype(np.float64)
        largest = np.zeros(len(databases), dtype=np.int64)
        for query in self._queries:
            # An answer beyond records * grid, which only a wrong `records` allows, is cut: nothing may overflow, and
            # cutting brings no two answers further apart.
            answer = self._size * min(query.answer(self._histogram), self._records * self._grid)
            candidates = (databases @ query.weights).astype(np.int64)  # exact: whole numbers below 2^53
            np.maximum(largest, np.abs(answer - self._records * candidates), out=largest)
        scores: list[int] = (-largest).tolist()
        return scores


def small_database_records_needed(
    *, accuracy: float, beta: float, epsilon: float, universe: int, queries: int, size: int | None = None
) -> tuple[int, int]:
    """The fewest records for every answer of `SmallDatabase` to be within `accuracy` except with probability beta, and
    the size with which they are enough. size: None for the best one, which may have too many candidates to run.

    ``2 (ln |R| + ln(1/beta)) / (epsilon (accuracy - sqrt(ln(2 |Q|) / (2 size))))``, with |R| counted exactly.
    """
    check_fraction("accuracy", accuracy)
    check_fraction("beta", beta)
    check_positive("epsilon", epsilon)
    check_whole("universe", universe, 2, LARGEST_UNIVERSE)
    smallest = small_database_size(queries, accuracy)
    if size is not None:
        check_whole("size", size, smallest + 1, LARGEST_COUNT)

    def records(size: int, missed: float = 0.0) -> float:
        """missed: what the best candidate may be off by."""
        return 2 * (_log_candidates(universe, size) - math.log(beta)) / (epsilon * (accuracy - missed))

    def best_error(size: int) -> float:
        return math.sqrt(math.log(2 * queries) / (2 * size))

    if size is not None:
        return math.ceil(records(size, best_error(size)) * (1 + 1e-12)), size
    tried, best = smallest + 1, (math.inf, 0)
    while records(tried) <= best[0]:  # beyond, no size needs fewer
        best = min(best, (records(tried, best_error(tried)), tried))
        tried += max(1, tried // 1000)
    return math.ceil(best[0] * (1 + 1e-12)), best[1]


def _log_candidates(universe: int, size: int) -> float:
    return math.lgamma(universe + size) - math.lgamma(size + 1) - math.lgamma(universe)


def _check_size(size: int, universe: int) -> int:
    log_candidates = _log_candidates(universe, check_whole("size", size, 1, _LARGEST_ENTRIES))
    allowed = min(LARGEST_CANDIDATES, _LARGEST_ENTRIES // universe)
    if log_candidates > math.log(allowed):
        raise ValueError(
            f"there may be at most {allowed} databases of {size} records over {universe} values, got about "
            f"e^{log_candidates:.0f}. Use a smaller universe or size, or multiplicative weights."
        )
    return int(size)


@functools.lru_cache(maxsize=4)
def _databases(universe: int, size: int) -> npt.NDArray[np.int64]:
    """int64[n_candidates, universe]: all histograms with `size` records; bars between `size` stars."""
    candidates = math.comb(universe + size - 1, size)
    bars = itertools.chain.from_iterable(itertools.combinations(range(universe + size - 1), universe - 1))
    places = np.fromiter(bars, dtype=np.int64, count=candidates * (universe - 1)).reshape(candidates, universe - 1)
    edges = np.pad(places, ((0, 0), (1, 1)), constant_values=-1)
    edges[:, -1] = universe + size - 1
    return np.diff(edges, axis=1) - 1
