"""What each user has paid, and who still counts: the counters of the mechanisms that charge users one by one.

Privacy rests on two properties of them: a user's counter depends on published results and on that user's own
contributions alone, and a user that has reached the limit never counts again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.checks import check_whole
from dp_transforms.mechanisms.papers.query import LinearQuery

_MOST_USERS = 2**40


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
