"""SmallDB: a small synthetic database that answers all queries of a known set (lecture notes on linear queries)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.checks import check_fraction, check_positive, check_whole
from dp_transforms.mechanisms.papers.exponential_mechanism import ExponentialMechanism
from dp_transforms.mechanisms.papers.halting import Halted
from dp_transforms.mechanisms.papers.noise_source import NoiseSource, SecretNoise
from dp_transforms.mechanisms.papers.query import LinearQuery
from dp_transforms.mechanisms.papers.synthetic_data import (
    LARGEST_COUNT,
    LARGEST_UNIVERSE,
    SyntheticData,
    check_histogram,
    check_queries,
    check_records,
)

LARGEST_CANDIDATES = 2**17
_LARGEST_ENTRIES = 2**23
_LARGEST_PRODUCT = 2**62


def small_database_size(queries: int, accuracy: float) -> int:
    """The size m at which some database of m records answers every query to within `accuracy` (normalised).

    ``m = ceil(ln(2 queries) / (2 accuracy^2))``. Proof: of m records drawn at random from the true database, by
    Hoeffding some answer is off by more than a with probability at most ``2 queries exp(-2 m a^2)``, which is below 1
    for each a > accuracy; there are finitely many databases, so one is off by at most accuracy. The notes take
    ``ln(queries) / accuracy^2``, which is larger from 3 queries on, the same for 2, and 0, too small, for 1.
    """
    check_whole("queries", queries, 1, LARGEST_COUNT)
    return math.ceil(math.log(2 * queries) / (2 * check_fraction("accuracy", accuracy) ** 2))


class SmallDatabase:
    """Chooses one of all databases of `size` records by the exponential mechanism: the better it answers, the likelier.

    Guarantee: epsilon-DP, for histograms that differ in one record: one more, one fewer, or another one instead. The
    score of a candidate is minus its largest error over the queries, on an exact grid; one record changes it by at most
    ``1 / records``. Conditions: queries, records and size are public; `records` is declared, and never compared with
    the data. Where it is their true number, the release answers every query to within `accuracy`. Source: lecture
    notes on linear queries, Algorithm SmallDB; [DR14] section 4.1.

    histogram: int64[universe], how many records have each value. queries: all on one grid. There are C(universe + size
    - 1, size) candidates, which are all scored: for tiny universes only.

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
        self._queries = list(queries)
        self._histogram = check_histogram(histogram)
        self._universe = len(self._histogram)
        self._grid = check_queries(self._queries, self._universe)
        self._records = check_records(records)
        self._size = _check_size(size, self._universe)
        if self._records * self._size * self._grid >= _LARGEST_PRODUCT:
            raise ValueError("records * size * grid must be below 2^62. Use a coarser grid.")
        self._epsilon = check_positive("epsilon", epsilon)
        self._noise = SecretNoise() if noise is None else noise
        self._halted = False

    def release(self) -> SyntheticData:
        """The chosen database as a distribution. Once: raises Halted afterwards."""
        if self._halted:
            raise Halted("the small database has been released. Keep it: its answers are free.")
        self._halted = True
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

    ``2 (ln |R| + ln(1/beta)) / (epsilon (accuracy - sqrt(ln(2 |Q|) / (2 size))))``, with |R| counted exactly. The notes
    take a size for half of the accuracy and |R| <= universe^size, which gives ``(16 ln|X| ln|Q| + 4 a^2 ln(1/beta)) /
    (epsilon a^3)``.
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
