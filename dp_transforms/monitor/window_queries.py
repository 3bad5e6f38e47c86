"""All queries of one window at once, with the answers that they have one after the other.

Each candidate is a query on the users that are active when its turn comes, in keyed-hash order. Between two queries
only a hit can exclude a user. So all are answered together on the first counters. A query is answered again at its turn
if one of its holders was excluded before it. Noise is a function of the window, the item and its active holders: an
answer depends on nothing else, and the result is the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.equal_rows import concatenated_ranges, sort_with_codes
from dp_transforms.monitor.item_holders import ItemHolders, pays_hits_of
from dp_transforms.monitor.query_noise import QueryNoise, digests_of_groups
from dp_transforms.monitor.user_budgets import HolderCounters
from dp_transforms.plan.plan import Plan


class WindowQueries:
    """The candidates of one window, and the counters of their holders.

    counters: of exactly the rows of these candidates; `charge` adds to them. is_known: bool[c], whether each candidate
    is a known item: these are tested even if no holder is active, and have the threshold of known items. None: all of
    them in a known domain, and none in an open one.
    """

    def __init__(
        self,
        window: int,
        candidates: ItemHolders,
        counters: HolderCounters,
        plan: Plan,
        keys: StreamKeys,
        noise: QueryNoise,
        is_known: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self._candidates = candidates
        self._hits_per_user = plan.hits_per_user
        self._keys = keys
        self._draw = noise.draws_of(window)
        self._is_known = np.full(len(candidates), plan.domain_size > 0) if is_known is None else is_known
        self._thresholds = np.where(self._is_known, plan.known_threshold, plan.threshold)
        self._user_of_row, self._hits = counters.user_of_row, counters.hits
        self._pays_hits = None if candidates.terms is None else pays_hits_of(candidates.terms)  # None: all of them
        self._rows_by_user: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None  # made when needed
        self._noisy_counts = self._ask(slice(0, len(candidates)))
        self._is_outdated = np.zeros(len(candidates), dtype=np.bool_)
        self._is_due = self._noisy_counts >= self._thresholds  # heavy or outdated

    def next_heavy(self, cell: int) -> int | None:
        """The first cell from this one on whose noisy count reaches the threshold."""
        while cell < len(self._is_due):
            cell += int(self._is_due[cell:].argmax())
            if not self._is_due[cell]:
                return None
            if self._is_outdated[cell]:
                self._noisy_counts[cell] = self._ask(slice(cell, cell + 1))[0]
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
        holders = self._user_of_row[first_row:next_row]
        if self._pays_hits is not None:
            holders = holders[self._pays_hits[first_row:next_row]]
        hits = self._hits[holders]
        is_active = hits < self._hits_per_user
        if not is_active.all():
            holders, hits = holders[is_active], hits[is_active]
        hits += 1
        self._hits[holders] = hits  # the holders of a cell are distinct
        if next_row == len(self._user_of_row):
            return
        excluded = holders[hits >= self._hits_per_user]
        if not len(excluded):
            return
        rows = self._rows_of_users(excluded)
        changed = np.searchsorted(self._candidates.splits, rows[rows >= next_row], side="right") - 1
        self._is_outdated[changed] = self._is_due[changed] = True

    def _rows_of_users(self, users: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """All rows of these users, in any order."""
        if self._rows_by_user is None:
            self._rows_by_user = sort_with_codes(self._user_of_row, np.arange(len(self._user_of_row)))
        sorted_users, rows = self._rows_by_user
        starts = np.searchsorted(sorted_users, users)
        counts = np.searchsorted(sorted_users, users, side="right") - starts
        return rows[concatenated_ranges(starts, counts)[0]]

    def _ask(self, cells: slice) -> npt.NDArray[np.int64]:
        """Noisy counts of these cells with the current counters; below the threshold for items that are not tested."""
        asked = self._candidates.select_range(cells)
        rows = slice(self._candidates.splits[cells.start], self._candidates.splits[cells.stop])
        is_active = self._hits[self._user_of_row[rows]] < self._hits_per_user
        if self._pays_hits is not None:
            is_active |= ~self._pays_hits[rows]
        active = asked if is_active.all() else asked.select_rows(is_active)
        active_sums = active.sums
        digests = digests_of_groups(active.members(self._keys), active.splits)
        noisy_counts = active_sums + self._draw(asked.table.hashes[asked.items], digests, asked.sums)
        # An item that is not known and has no active holder is not tested.
        return np.where((active_sums > 0) | self._is_known[cells], noisy_counts, self._thresholds[cells] - 1)
