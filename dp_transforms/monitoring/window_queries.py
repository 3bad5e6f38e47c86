"""All queries of one window at once, with the answers that they have when they are asked one after the other.

Each candidate is a query on the users that are active when its turn comes, in keyed-hash order. Nobody is excluded
between two queries but by a hit in between, so all are answered together on the counters as they stand, and a hit
that excludes somebody has only those answered again that follow it and that this user holds. Noise is a function of the
window, the item and its active holders: an answer depends on nothing else, and the result is the same.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.query_noise import QueryNoise, digests_of_groups
from dp_transforms.monitoring.settings import MonitorSettings
from dp_transforms.monitoring.user_budgets import UserBudgets


@dataclasses.dataclass(frozen=True)
class WindowCharges:
    """What one window cost: users uint64[n], ascending and distinct, and their new hits, uint32[n]."""

    users: npt.NDArray[np.uint64]
    hits: npt.NDArray[np.uint32]


class WindowQueries:
    """The candidates of one window, and the counters of their holders."""

    def __init__(
        self,
        window: int,
        candidates: ItemHolders,
        budgets: UserBudgets,
        settings: MonitorSettings,
        keys: StreamKeys,
        noise: QueryNoise,
    ) -> None:
        self._window = window
        self._candidates = candidates
        self._settings = settings
        self._noise = noise
        self._counts = candidates.counts
        self._users, user_of_row = np.unique(candidates.holders, return_inverse=True)
        self._user_of_row = user_of_row.reshape(-1)
        self._widened = keys.widen_users(self._users)
        self._paid = budgets.hits(self._users)
        self._hits = self._paid.copy()
        self._noisy_counts = self._ask(np.arange(len(candidates)))
        self._is_heavy = self._noisy_counts >= settings.threshold

    def next_heavy(self, cell: int) -> int | None:
        """The first cell from this one on whose noisy count reaches the threshold."""
        ahead = self._is_heavy[cell:]
        step = int(ahead.argmax()) if len(ahead) else 0
        return cell + step if len(ahead) and ahead[step] else None

    def noisy_count(self, cell: int) -> int:
        return int(self._noisy_counts[cell])

    def charge(self, cell: int) -> None:
        """Gives each active holder of a cell a hit, and answers again what follows and a user that this excludes."""
        first_row, next_row = self._candidates.splits[cell : cell + 2]
        holders = self._user_of_row[first_row:next_row]
        active = holders[self._hits[holders] < self._settings.hits_per_user]
        self._hits[active] += 1
        excluded = active[self._hits[active] >= self._settings.hits_per_user]
        if not len(excluded):
            return
        is_excluded = np.zeros(len(self._users), dtype=np.bool_)
        is_excluded[excluded] = True
        rows = next_row + np.flatnonzero(is_excluded[self._user_of_row[next_row:]])
        if not len(rows):
            return
        changed = np.unique(np.searchsorted(self._candidates.splits, rows, side="right") - 1)
        self._noisy_counts[changed] = self._ask(changed)
        self._is_heavy[changed] = self._noisy_counts[changed] >= self._settings.threshold

    def charges(self) -> WindowCharges:
        changed = np.flatnonzero(self._hits != self._paid)
        return WindowCharges(self._users[changed], self._hits[changed] - self._paid[changed])

    def _ask(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Noisy counts of these cells as the counters stand; below the threshold where an item is not tested."""
        rows, splits = self._candidates.rows_of(cells)
        holders = self._user_of_row[rows]
        is_active = self._hits[holders] < self._settings.hits_per_user
        active_counts = np.diff(np.concatenate([[0], np.cumsum(is_active)])[splits])
        digests = digests_of_groups(self._widened[holders] * is_active[:, None], splits)
        hashes = self._candidates.table.hashes[self._candidates.items[cells]]
        noisy_counts = active_counts + self._noise.draw(self._window, hashes, digests, self._counts[cells])
        if self._settings.domain_size:
            return noisy_counts
        # In an open domain an item without an active holder is not tested.
        return np.where(active_counts > 0, noisy_counts, self._settings.threshold - 1)
