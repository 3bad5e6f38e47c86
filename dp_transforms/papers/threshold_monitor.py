"""ThresholdMonitor and ThresholdMonitorEvolving, to be used alone: tests of queries that never halt ([KMS21]).

A user pays only for answers "top", and only as much as it contributed to them. A user that has paid `hits` is removed,
and the rest of the stream goes on.

Guarantee: (epsilon, delta)-DP for one user with all of its contributions (neighbours: with and without the user), for
any number of queries, each chosen after the answers before it. Conditions: noise that satisfies docs/proofs.md,
"The monitor"; a user's weight depends on nothing but this user's own data and published answers; whether making a query
raises does not depend on the data; one thread at a time asks. Numbers from a budget, and back:

    noise = dp_transforms.accounting.kms21_accountant.calibrate_threshold_monitor(epsilon, delta, hits, grid)
    noise.epsilon(delta)

Privacy rests on two properties of `UserCounters`, which `individual_charging` shares: a user's counter depends on
published results and on that user's own contributions alone, and a user that has reached the limit never counts again.

The constants are those of the paper, and large: `individual_charging` does the same with far less noise.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import (
    MAX_EPSILON,
    MIN_WIDE_EPSILON,
    UNIFORM_BITS,
    capped_sum_tail_integer,
    smallest_whole,
)
from dp_transforms.checks import check_fraction, check_range, check_whole
from dp_transforms.papers.noise_source import NoiseSource, SecretNoise
from dp_transforms.papers.query import LinearQuery, check_counts, check_grid, units_up

_MOST_USERS = 2**40
_LONGEST_CAP = 2**40


class UserCounters:
    """Counters of users 0 .. n - 1, at first 0. A user whose counter has reached `limit` is removed forever.

    limit: whole number >= 1. 8 bytes a user.

    >>> counters = UserCounters(3, limit=2)
    >>> counters.charge(np.array([1, 2, 0]))
    >>> counters.active().tolist(), counters.paid().tolist()
    ([True, False, True], [1, 2, 0])
    """

    def __init__(self, users: int, limit: int) -> None:
        check_whole("users", users, 1, _MOST_USERS)
        check_whole("limit", limit, 1, 2**60)
        self._limit = int(limit)
        self._paid = np.zeros(users, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._paid)

    def paid(self) -> npt.NDArray[np.int64]:
        """int64[n]: what each user has paid so far. Private: it can show that a user takes part."""
        return self._paid.copy()

    def active(self) -> npt.NDArray[np.bool_]:
        """bool[n]: users that still count."""
        return self._paid < self._limit

    def charge(self, amounts: npt.NDArray[Any]) -> None:
        """Adds to the counters of those that still count. The others pay no more. amounts: whole numbers[n]."""
        if amounts.shape != self._paid.shape or amounts.min() < 0:
            raise ValueError(f"amounts must be whole numbers >= 0, one for each of {len(self)} users.")
        self._paid += np.where(self.active(), amounts, 0)

    def check_query(self, query: LinearQuery, grid: int) -> None:
        """Raises ValueError unless the query has a weight for each user, on this grid."""
        if query.grid != grid:
            raise ValueError(f"the query must have grid {grid}, as the mechanism has, got {query.grid}.")
        if len(query.weights) != len(self):
            raise ValueError(f"the query must have a weight for each of {len(self)} users, got {len(query.weights)}.")


class ThresholdMonitor:
    """Which queries of a stream about one database are above a threshold; it never halts ([KMS21] Algorithm 3).

    Guarantee: (epsilon, delta)-DP for one record, condition and numbers: see the module. Each element pays its weight
    f(x) for a "top", and all of its copies are deleted once it has paid `hits`.

    The first argument, the records: int64[n], how often each element is in the database (1 for each user, if records
    are users); a query has a weight for each. threshold: rounded up to the grid. wide_epsilon, narrow_epsilon, cap: the
    noise ``W + min(V, cap)`` in units of ``1 / grid``. Source: [KMS21] Theorem 3.2.

    >>> monitor = ThresholdMonitor([10**7, 10**7], hits=1, threshold=5e6, wide_epsilon=3e-5, narrow_epsilon=2e-3,
    ...                            cap=3300)
    >>> [monitor.ask(LinearQuery(weights)) for weights in ([1, 0], [1, 0], [0, 1])]
    [True, False, True]
    """

    def __init__(
        self,
        members: Any,
        /,
        *,
        hits: int,
        threshold: float,
        wide_epsilon: float,
        narrow_epsilon: float,
        cap: int,
        grid: int = 1,
        noise: NoiseSource | None = None,
    ) -> None:
        copies = self._copies_of(members)
        check_grid(grid)
        check_whole("hits", hits, 1, 2**32)
        check_whole("cap", cap, 0, _LONGEST_CAP)
        for name, epsilon in (("wide_epsilon", wide_epsilon), ("narrow_epsilon", narrow_epsilon)):
            check_range(name, epsilon, MIN_WIDE_EPSILON, MAX_EPSILON)
        self._copies = copies
        self._counters = UserCounters(len(copies), hits * grid)
        self._threshold = units_up(threshold, grid)
        self._threshold_shift = float(Fraction(self._threshold, grid) - Fraction(float(threshold)))
        self._wide_epsilon, self._narrow_epsilon, self._cap = wide_epsilon, narrow_epsilon, cap
        self._grid = grid
        self._noise = SecretNoise() if noise is None else noise

    @staticmethod
    def _copies_of(members: Any) -> npt.NDArray[np.int64]:
        """int64[n]: how many times each record or user is there."""
        copies = np.asarray(members)
        check_whole("the number of elements", copies.size, 1, _MOST_USERS)
        return check_counts(copies, copies.size)

    def ask(self, query: LinearQuery) -> bool:
        """Whether the noisy sum of the weights of all that are not removed reaches the threshold: "top"."""
        self._counters.check_query(query, self._grid)
        total = query.answer_to_counts(self._copies * self._counters.active())
        wide = self._noise.discrete_laplace(self._wide_epsilon)
        narrow = self._noise.discrete_laplace(self._narrow_epsilon)
        top = bool(total + wide + min(narrow, self._cap) >= self._threshold)
        if top:
            self._counters.charge(query.weights)
        return top

    def active(self) -> npt.NDArray[np.bool_]:
        """bool[n]: who has paid less than `hits`. For tests and operators: do not publish it."""
        return self._counters.active()

    def accuracy(self, queries: int, beta: float) -> float:
        """An alpha up to which, with probability at least 1 - beta, the first `queries` answers are all right.

        All "top" have ``f >= threshold - alpha`` and all others ``f <= threshold + alpha``, where f is the sum over
        those not removed, on the grid. [KMS21] Theorem 3.1 with the exact tails of ``W + min(V, cap)``.
        """
        check_whole("queries", queries, 1, 2**60)
        allowed = int(Fraction(check_fraction("beta", beta)) / queries * (1 << UNIFORM_BITS))

        def errs_seldom(units: int) -> bool:
            # One query errs in one direction only. The lower tail is the heavier one: V is cut off above.
            upper_tail = capped_sum_tail_integer(
                -units, wide_epsilon=self._wide_epsilon, narrow_epsilon=self._narrow_epsilon, cap=self._cap
            )
            return (1 << UNIFORM_BITS) - upper_tail + 1 <= allowed

        return smallest_whole(errs_seldom, 0, 1) / self._grid + self._threshold_shift


class ThresholdMonitorEvolving(ThresholdMonitor):
    """The same for data that changes with every step: each query brings what each user contributes at this step.

    Guarantee: (epsilon, delta)-DP for one user with all it ever contributes, condition and numbers: see the module. A
    user that is absent at a step has weight 0. Source: [KMS21] Algorithm 5 and Theorem 4.4. Replacing a user's data,
    which is how the theorem is worded, is twice that step: (2 epsilon, (1 + e^epsilon) delta).

    The first argument, the users: how many; they are positions 0 .. users - 1 of every query's weights. The rest is as
    in `ThresholdMonitor`.

    >>> monitor = ThresholdMonitorEvolving(2000, hits=1, threshold=500, wide_epsilon=0.05, narrow_epsilon=0.5, cap=2)
    >>> [monitor.ask(LinearQuery(np.arange(2000) % 2 == step % 2)) for step in range(4)]  # each user pays once
    [True, True, False, False]
    """

    @staticmethod
    def _copies_of(members: Any) -> npt.NDArray[np.int64]:
        return np.ones(check_whole("users", members, 1, _MOST_USERS), dtype=np.int64)
