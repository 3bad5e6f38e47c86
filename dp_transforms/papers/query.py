"""The one definition of a query: a question whose exact answer one user changes by at most 1, on a grid of integers.

Real numbers never meet noise here. An answer is a whole number of *units* of ``1 / grid``, one user changes it by at
most `sensitivity` units, and discrete Laplace noise with ``epsilon / sensitivity`` for each unit is added to it: that
is epsilon-DP, exactly, with no floating-point arithmetic between the data and what is published.

Rounding comes before the noise: for each record on its own (`LinearQuery`), or for the answer as a whole (`RealQuery`).
What the papers prove for real queries and continuous noise carries over (docs/proofs.md, "Queries on a grid").

A query must be pure and total: it looks at nothing but the data, and it does not raise on any data that one user can
bring about. Whether it raises depends on the data, so an exception publishes something that nothing has paid for. The
messages here say what is allowed, and never a value.

`Marginals` are linear queries over {0, 1}^d: the share of records that have all of a few yes-or-no attributes.
"""

from __future__ import annotations

import dataclasses
import fractions
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import MAX_EPSILON, MIN_WIDE_EPSILON
from dp_transforms.checks import check_positive, check_whole

DEFAULT_GRID = 1024
LARGEST_GRID = 2**20
_LARGEST_ANSWER = 2**62
_MAX_ATTRIBUTES = 20


class Query(Protocol):
    """A question to data. grid: units in 1. sensitivity: the most units by which one user changes the answer."""

    @property
    def grid(self) -> int: ...

    @property
    def sensitivity(self) -> int: ...

    def answer(self, data: Any) -> int:
        """The exact answer in units."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class LinearQuery:
    """``f(S) = sum over the records x of S of f(x)``, with f(x) in [0, 1]: weights ``f(x) * grid``, whole numbers.

    weights: int64[n], one for each record, or for each kind of record, each in 0 .. grid. The data are int64[n]: how
    often each (kind of) record is there; with one user a record, 1 for those that count.

    Condition: a user has at most one record. With r records a user, epsilon becomes r epsilon.

    >>> LinearQuery.of([0.25, 1, 0.5], grid=4).answer([1, 1, 0])  # 5 quarters
    5
    """

    weights: npt.NDArray[np.int64]
    grid: int = 1

    def __post_init__(self) -> None:
        check_grid(self.grid)
        weights = np.asarray(self.weights)
        if weights.ndim != 1 or weights.dtype.kind not in "iub" or not len(weights):
            raise ValueError(f"weights must be whole numbers int64[n], n >= 1, got {weights.dtype}{weights.shape}.")
        if weights.min() < 0 or weights.max() > self.grid:
            raise ValueError(
                f"weights must lie in 0 .. {self.grid}, the grid. For weights on a finer grid, pass that grid."
            )
        weights = weights.astype(np.int64)  # a read-only copy: what was checked stays true
        weights.flags.writeable = False
        object.__setattr__(self, "weights", weights)

    @classmethod
    def of(cls, values: Sequence[float] | npt.NDArray, grid: int = DEFAULT_GRID) -> LinearQuery:
        """From real values in [0, 1], each rounded to the nearest multiple of 1 / grid."""
        check_grid(grid)
        numbers = np.asarray(values, dtype=np.float64)
        if numbers.ndim != 1 or not len(numbers) or not ((numbers >= 0) & (numbers <= 1)).all():
            raise ValueError("values must be float[n], n >= 1, each in [0, 1].")
        return cls(np.rint(numbers * grid).astype(np.int64), grid)

    @property
    def sensitivity(self) -> int:
        return self.grid

    def answer(self, data: Any) -> int:
        return self.answer_to_counts(check_counts(data, len(self.weights)))

    def answer_to_counts(self, counts: npt.NDArray[np.int64]) -> int:
        """The same for data that have been checked by `check_counts` for this number of weights."""
        return int(self.weights @ counts)


@dataclasses.dataclass(frozen=True)
class RealQuery:
    """Any function of the data that one user changes by at most 1: rounded down to the grid.

    With grid 1 the function must return whole numbers, and its sensitivity is 1 unit; else it is grid + 1 units.

    Condition: what the function *computes*, with all rounding of its floats, differs by at most ``1 + 1 / grid``
    between data with and without any one user (with grid 1: by at most 1). A coarser grid leaves more room.

    >>> RealQuery(lambda heights: sum(min(h, 2.0) / 2 for h in heights), grid=1000).answer([1.7, 1.0])
    1350
    """

    function: Callable[[Any], float]
    grid: int = 1

    def __post_init__(self) -> None:
        check_grid(self.grid)

    @property
    def sensitivity(self) -> int:
        return 1 if self.grid == 1 else self.grid + 1

    def answer(self, data: Any) -> int:
        value = self.function(data)
        ratio = _ratio(value)
        if ratio is None or not abs(ratio[0]) * self.grid < _LARGEST_ANSWER * ratio[1]:
            raise ValueError(
                "the answer to a query must be a finite number below 2^62 / grid in absolute value, "
                f"got a {type(value).__name__} that is not."
            )
        if self.grid == 1 and ratio[1] != 1:
            raise ValueError(
                f"a query with grid 1 must have whole answers, got a {type(value).__name__} that is not whole. "
                "Use a finer grid."
            )
        # In whole numbers: a product of floats would be rounded, by more than a unit for large values.
        return ratio[0] * self.grid // ratio[1]


def epsilon_per_unit(epsilon: float, units: int, *, name: str = "epsilon") -> float:
    """The epsilon of noise for each unit, such that `units` of them together cost at most `epsilon`.

    ``epsilon / units``, rounded down exactly: more noise, never less; at most MAX_EPSILON. Raises ValueError if the
    noise would be too wide to be drawn. name: the argument that the message names.
    """
    per_unit = min(check_positive(name, epsilon) / units, MAX_EPSILON)
    if fractions.Fraction(per_unit) * units > fractions.Fraction(float(epsilon)):
        per_unit = math.nextafter(per_unit, 0)
    if per_unit < MIN_WIDE_EPSILON:
        raise ValueError(
            f"the noise would be too wide: {name} must leave at least {MIN_WIDE_EPSILON} for each unit of an answer, "
            f"got {per_unit:.3g}. Use a larger epsilon, or a smaller cutoff or grid."
        )
    return per_unit


def check_grid(grid: int) -> None:
    """Raises ValueError unless 1 can be cut into this many units."""
    check_whole("grid", grid, 1, LARGEST_GRID)


def check_counts(data: Any, length: int) -> npt.NDArray[np.int64]:
    """The data of a linear query: int64[length], each >= 0, small enough that no sum can overflow."""
    counts = np.asarray(data)
    if counts.shape != (length,) or counts.dtype.kind not in "iub":
        raise ValueError(f"data must be whole numbers int64[{length}], got {counts.dtype}{counts.shape}.")
    counts = counts.astype(np.int64)
    if counts.min() < 0 or float(counts.sum(dtype=np.float64)) * LARGEST_GRID >= _LARGEST_ANSWER:
        raise ValueError(f"data must be counts >= 0 that add up to less than 2^62 / {LARGEST_GRID}.")
    return counts


def units_up(value: float, grid: int) -> int:
    """A threshold in units, rounded up: fewer answers reach it. value: finite, at most 2^40 in absolute value."""
    ratio = _ratio(value)
    if ratio is None or isinstance(value, (bool, np.bool_)) or not abs(ratio[0]) <= 2**40 * ratio[1]:
        raise ValueError(f"a threshold must be a number in [-2^40, 2^40], got {value!r}.")
    return -(-ratio[0] * grid // ratio[1])


def _ratio(value: object) -> tuple[int, int] | None:
    """A finite number as numerator and denominator, exactly, in lowest terms; None for anything else."""
    if isinstance(value, (int, fractions.Fraction)):
        return value.as_integer_ratio()
    if isinstance(value, (float, np.floating)):
        return float(value).as_integer_ratio() if math.isfinite(value) else None
    return (int(value), 1) if isinstance(value, (np.integer, np.bool_)) else None


@dataclasses.dataclass(frozen=True)
class Marginals:
    """The queries ``q_s(x) = product over i in s of x_i`` for the sets s of at most (or exactly) `order` attributes.

    The value x of a record is a whole number in 0 .. 2^d - 1, whose bit i says whether the record has attribute i; a
    histogram is int64[2^d]. There are ``sum over j <= order of C(d, j)`` queries, the empty set included, which all
    records have. Nothing here is private: hand the queries to a mechanism. `answers` are exact, for tests and figures.

    attributes: their names, d of them, 1 <= d <= 20. Source: lecture notes on linear queries, "Marginals".

    >>> marginals = Marginals(("citizen", "graduate"), order=2)
    >>> [(name, query.weights.tolist()) for name, query in marginals]
    [('all', [1, 1, 1, 1]), ('citizen', [0, 1, 0, 1]), ('graduate', [0, 0, 1, 1]), ('citizen & graduate', [0, 0, 0, 1])]
    >>> marginals.answers(marginals.histogram([[1, 0], [1, 1], [0, 0]])).tolist()
    [3, 2, 1, 1]
    """

    attributes: tuple[str, ...]
    order: int
    exactly: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", tuple(self.attributes))
        if not 1 <= len(self.attributes) <= _MAX_ATTRIBUTES or len(set(self.attributes)) < len(self.attributes):
            raise ValueError(f"attributes must be 1 .. {_MAX_ATTRIBUTES} different names, got {self.attributes!r}.")
        check_whole("order", self.order, 0, len(self.attributes))

    @property
    def universe(self) -> int:
        """2^d, the number of values that a record can have."""
        return 1 << len(self.attributes)

    @functools.cached_property
    def masks(self) -> npt.NDArray[np.int64]:
        """int64[n_queries]: the set s of each query as bits, by size and then in order of the attributes."""
        sizes = [self.order] if self.exactly else range(self.order + 1)
        chosen = itertools.chain.from_iterable(
            itertools.combinations(range(len(self.attributes)), size) for size in sizes
        )
        return np.array([sum(1 << attribute for attribute in subset) for subset in chosen], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.masks)

    def __iter__(self) -> Iterator[tuple[str, LinearQuery]]:
        """Name and query of each, one after the other: together they would take 8 n_queries 2^d bytes."""
        values = np.arange(self.universe)
        for mask in self.masks.tolist():
            names = [name for bit, name in enumerate(self.attributes) if mask >> bit & 1]
            yield " & ".join(names) or "all", LinearQuery((values & mask == mask).astype(np.int64))

    def histogram(self, records: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """int64[2^d]: how many records have each value. records: [n_records, d] of 0 and 1, or of booleans."""
        bits = np.asarray(records)
        if bits.ndim != 2 or bits.shape[1] != len(self.attributes) or not np.isin(bits, (0, 1)).all():
            raise ValueError(f"records must be zeros and ones of shape [n, {len(self.attributes)}].")
        values = bits.astype(np.int64) @ (1 << np.arange(len(self.attributes)))
        return np.bincount(values, minlength=self.universe)

    def answers(self, histogram: Any) -> npt.NDArray[np.int64]:
        """int64[n_queries]: the exact, unnormalised answers, in d 2^d additions for all of them."""
        counts = check_counts(histogram, self.universe).reshape((2,) * len(self.attributes))
        for axis in range(counts.ndim):  # sums over the supersets, one attribute after the other
            counts = np.stack([counts.sum(axis=axis), counts.take(1, axis=axis)], axis=axis)
        answers: npt.NDArray[np.int64] = counts.reshape(-1)[self.masks]
        return answers
