"""k-way marginals: the share of records that have all of a few yes-or-no attributes (linear queries over {0, 1}^d)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.checks import check_whole
from dp_transforms.mechanisms.papers.query import LinearQuery, check_counts

_MAX_ATTRIBUTES = 20


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
