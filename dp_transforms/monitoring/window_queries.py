"""All queries of one window at once, with the answers that they have one after the other.

Each candidate is a query on the users that are active when its turn comes, in keyed-hash order. Between two queries
only a hit can exclude a user. So all are answered together on the first counters. A query is answered again at its turn
if one of its holders was excluded before it. Noise is a function of the window, the item and its active holders: an
answer depends on nothing else, and the result is the same.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.equal_rows import concatenated_ranges
from dp_transforms.monitoring.hit_settings import HitSettings
from dp_transforms.monitoring.item_holders import ItemHolders, pays_hits_of, sums_of_groups, weights_of
from dp_transforms.monitoring.query_noise import QueryNoise, digests_of_groups
from dp_transforms.monitoring.user_budgets import UserBudgets


@dataclasses.dataclass(frozen=True)
class WindowCharges:
    """The cost of one window: users uint64[n], ascending and distinct, and their new hits, uint32[n]."""

    users: npt.NDArray[np.uint64]
    hits: npt.NDArray[np.uint32]


class WindowQueries:
    """The candidates of one window, and the counters of their holders.

    is_known: bool[c], whether each candidate is a known item: these are tested even if no holder is active, and have
    the threshold of known items. None: all of them in a known domain, and none in an open one.
    """

    def __init__(
        self,
        window: int,
        candidates: ItemHolders,
        budgets: UserBudgets,
        settings: HitSettings,
        keys: StreamKeys,
        noise: QueryNoise,
        is_known: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self._candidates = candidates
        self._settings = settings
        self._draw = noise.draws_of(window)
        self._is_known = np.full(len(candidates), settings.domain_size > 0) if is_known is None else is_known
        self._thresholds = np.where(self._is_known, settings.known_threshold, settings.threshold)
        self._sums = candidates.sums
        self._users, user_of_row = np.unique(candidates.holders, return_inverse=True)
        self._user_of_row = user_of_row.reshape(-1)
        if candidates.terms is None:
            self._members = keys.widen_users(self._users)[self._user_of_row]
            self._weights = np.ones(len(self._user_of_row), dtype=np.int64)
            self._pays_hits = np.ones(len(self._user_of_row), dtype=np.bool_)
        else:
            self._members = candidates.members(keys)
            self._weights, self._pays_hits = weights_of(candidates.terms), pays_hits_of(candidates.terms)
        self._paid = budgets.hits(self._users)
        self._hits = self._paid.copy()
        self._rows_by_user: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None  # made when needed
        self._noisy_counts = self._ask(np.arange(len(candidates)))
        self._is_outdated = np.zeros(len(candidates), dtype=np.bool_)
        self._is_due = self._noisy_counts >= self._thresholds  # heavy or outdated

    def next_heavy(self, cell: int) -> int | None:
        """The first cell from this one on whose noisy count reaches the threshold."""
        while cell < len(self._is_due):
            cell += int(self._is_due[cell:].argmax())
            if not self._is_due[cell]:
                return None
            if self._is_outdated[cell]:
                self._noisy_counts[cell] = self._ask(np.array([cell]))[0]
            if self._noisy_counts[cell] >= self._thresholds[cell]:
                return cell
            cell += 1
        return None

    def noisy_count(self, cell: int) -> int:
        return int(self._noisy_counts[cell])

    def charge(self, cell: int) -> None:
        """Charges each active holder of a cell that pays for hits one hit. Later cells of users that this excludes
        become outdated."""
        first_row, next_row = self._candidates.splits[cell : cell + 2]
        holders = self._user_of_row[first_row:next_row][self._pays_hits[first_row:next_row]]
        active = holders[self._hits[holders] < self._settings.hits_per_user]
        self._hits[active] += 1
        excluded = active[self._hits[active] >= self._settings.hits_per_user]
        if not len(excluded):
            return
        rows = self._rows_of_users(excluded)
        changed = np.searchsorted(self._candidates.splits, rows[rows >= next_row], side="right") - 1
        self._is_outdated[changed] = self._is_due[changed] = True

    def _rows_of_users(self, users: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """All rows of these users, positions in ``self._users``."""
        if self._rows_by_user is None:
            order = np.argsort(self._user_of_row, kind="stable")
            self._rows_by_user = order, np.searchsorted(self._user_of_row[order], np.arange(len(self._users) + 1))
        order, splits = self._rows_by_user
        return order[concatenated_ranges(splits[users], splits[users + 1] - splits[users])[0]]

    def charges(self) -> WindowCharges:
        changed = np.flatnonzero(self._hits != self._paid)
        return WindowCharges(self._users[changed], self._hits[changed] - self._paid[changed])

    def _ask(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Noisy counts of these cells with the current counters; below the threshold for items that are not tested."""
        rows, splits = self._candidates.rows_of(cells)
        holders = self._user_of_row[rows]
        is_active = ~self._pays_hits[rows] | (self._hits[holders] < self._settings.hits_per_user)
        active_sums = sums_of_groups(self._weights[rows] * is_active, splits)
        digests = digests_of_groups(self._members[rows] * is_active[:, None], splits)
        hashes = self._candidates.table.hashes[self._candidates.items[cells]]
        noisy_counts = active_sums + self._draw(hashes, digests, self._sums[cells])
        # An item that is not known and has no active holder is not tested.
        return np.where((active_sums > 0) | self._is_known[cells], noisy_counts, self._thresholds[cells] - 1)
