"""Hits in two stages: a parallel front finds candidates; a sequential stage, window by window, tests them, charges
their holders, and excludes users at their limit.

This is ThresholdMonitorEvolving ([KMS21] Algorithm 5), on columns, with the accounting of target charging ([CL23]
Algorithm 5). Beside it, `papers.threshold_monitor` is the algorithm as printed:
tests/beam/test_threshold_monitor_as_printed.py.

Guarantee: with the noise, thresholds and hits of a plan, the reports of all windows together are (epsilon, delta)-DP
for adding or removing one user with all its events. Condition: windows come in order, each once, each with at most L
items per user. Source: docs/guarantee.md, "The mechanism of hits" and "Draws in two stages".

**The front.** Candidates are the cells of a shard of items that pass the first stage of their draw. If an item stays
below the threshold with all its holders, it is not published, whatever their counters are. The noise as printed has no
such stage: there every cell is a candidate.

**One window.** Each candidate is a query on the users that are active when its turn comes, in keyed-hash order. All are
answered together on the first counters, and one again at its turn if one of its holders was excluded before it: noise
is a function of the window, the item, its active holders and its full count, so the result is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.core.columns import concatenated_ranges
from dp_transforms.core.contribution_counters import ContributionCounters, HitEntries
from dp_transforms.core.hit_noise import QueryNoise, ReleaseRule, digests_of_groups, epsilon_spent, query_noise
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.window_report import HeavyHitter, WindowReport, report_of_window
from dp_transforms.plan.plan import Plan


class WindowQueries:
    """The candidates of one window, and the counters of their holders.

    user_of_row: int64[n], the number of each holder of these candidates. hits: uint32[k], paid so far by each user, by
    its number; `charge` adds to them. Public items are tested even if no holder is active.
    """

    def __init__(
        self,
        window: int,
        candidates: ItemHolders,
        user_of_row: npt.NDArray[np.int64],
        hits: npt.NDArray[np.uint32],
        plan: Plan,
        keys: StreamKeys,
        noise: QueryNoise,
    ) -> None:
        self._candidates = candidates
        self._hits_per_user = plan.hits_per_user
        self._keys = keys
        self._draw = noise.draws_of(window)
        self._threshold, self._are_public = plan.threshold, plan.public_item_count > 0
        self._user_of_row, self._hits = user_of_row, hits
        self._rows_by_user: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None  # made when needed
        self._noisy_counts = self._ask(slice(0, len(candidates)))
        self._is_outdated = np.zeros(len(candidates), dtype=np.bool_)
        self._is_due = self._noisy_counts >= self._threshold  # heavy or outdated

    def heavy(self) -> Iterator[tuple[int, int]]:
        """Each cell whose noisy count reaches the threshold when its turn comes, and this count. Charge it before the
        next one."""
        cell = 0
        while self._is_due[cell:].any():
            cell += int(self._is_due[cell:].argmax())
            if self._is_outdated[cell]:
                self._noisy_counts[cell] = self._ask(slice(cell, cell + 1))[0]
            if self._noisy_counts[cell] >= self._threshold:
                yield cell, int(self._noisy_counts[cell])
            cell += 1

    def charge(self, cell: int) -> None:
        """Charges each active holder of a cell one hit. Later cells of users that this excludes become outdated."""
        first_row, next_row = self._candidates.splits[cell : cell + 2]
        holders = self._user_of_row[first_row:next_row]
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
            rows = np.argsort(self._user_of_row, kind="stable")
            self._rows_by_user = self._user_of_row[rows], rows
        sorted_users, rows = self._rows_by_user
        starts = np.searchsorted(sorted_users, users)
        counts = np.searchsorted(sorted_users, users, side="right") - starts
        return rows[concatenated_ranges(starts, counts)]

    def _ask(self, cells: slice) -> npt.NDArray[np.int64]:
        """Noisy counts of these cells with the current counters; below the threshold for items that are not tested."""
        asked = self._candidates.select_range(cells)
        rows = slice(self._candidates.splits[cells.start], self._candidates.splits[cells.stop])
        is_active = self._hits[self._user_of_row[rows]] < self._hits_per_user
        active = asked if is_active.all() else asked.select_holders(is_active)
        counts = active.counts
        digests = digests_of_groups(self._keys.widen_users(active.holders), active.splits)
        noisy_counts = counts + self._draw(asked.table.hashes[asked.items], digests, asked.counts)
        if self._are_public:
            return noisy_counts
        return np.where(counts > 0, noisy_counts, self._threshold - 1)


def find_candidates(cells: ItemHolders, plan: Plan, keys: StreamKeys) -> ItemHolders:
    """The cells that may be published. ``cells`` must contain all holders of its items."""
    if not len(cells):
        return cells
    return cells.select(np.flatnonzero(query_noise(plan, keys).may_pass(cells)))


@dataclasses.dataclass
class MonitorState:
    """What one window passes on to the next.

    next_window: no window before this one may be closed any more. budgets: hits paid. hit_bound: a bound, from public
    output alone, on the hits that any one user can have paid.
    """

    next_window: int = 0
    hit_bound: int = 0
    budgets: ContributionCounters = dataclasses.field(default_factory=ContributionCounters)


class HeavyHitterMonitor:
    """Monitors one stream. Holds no state of its own: a window is a function of its candidates and a `MonitorState`."""

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self._plan = plan
        self._keys = keys
        self._noise = query_noise(plan, keys)
        self._rule = ReleaseRule.of_plan(plan)

    def close_windows(self, parts: Iterable[ItemHolders], state: MonitorState) -> Iterator[tuple[int, WindowReport]]:
        """Tests the candidates of each window in keyed-hash order and updates the state. parts: in the order of their
        windows, each with all candidates of its windows. Yields the windows with a report, those with heavy items; all
        that is yielded is in the state.

        The counters of all windows of a part are found at once: what does not depend on charges is not done window by
        window. Raises ValueError for a window out of order or outside the horizon: the theorem needs both.
        """
        for part in parts:
            yield from self._close_part(part, state)

    def _close_part(self, part: ItemHolders, state: MonitorState) -> list[tuple[int, WindowReport]]:
        self._check_order(part, state)
        users, user_of_row = np.unique(part.holders, return_inverse=True)
        paid = state.budgets.hits(users)
        hits, found = paid.copy(), []
        for window, cells in part.by_window():
            candidates, rows = part.select_range(cells), slice(part.splits[cells.start], part.splits[cells.stop])
            queries = WindowQueries(window, candidates, user_of_row[rows], hits, self._plan, self._keys, self._noise)
            report = self._close(window, candidates, queries, state)
            if report is not None:
                found.append((window, report))
        charged = np.flatnonzero(hits != paid)
        state.budgets.add(HitEntries(users[charged], hits[charged]))
        return found

    def _check_order(self, part: ItemHolders, state: MonitorState) -> None:
        """Before anything of the part is charged."""
        next_window, horizon = state.next_window, self._plan.schedule.horizon
        for window, _ in part.by_window():
            if not next_window <= window < horizon:
                raise ValueError(
                    f"window {window} cannot be closed: the open windows are {next_window} .. {horizon - 1}."
                )
            next_window = window + 1

    def _close(
        self, window: int, candidates: ItemHolders, queries: WindowQueries, state: MonitorState
    ) -> WindowReport | None:
        state.next_window = window + 1
        heavy_hitters: list[HeavyHitter] = []
        charged_results = 0
        for cell, noisy_count in queries.heavy():
            if (release := self._rule(noisy_count)) is None:
                continue
            label = candidates.table.labels[int(candidates.items[cell])].as_py()
            heavy_hitters.append(HeavyHitter(label, release.zone, release.noisy_count))
            if release.charged:
                charged_results += 1
                queries.charge(cell)
        # No user holds more than so many of a window's items, and so pays no more of its hits.
        state.hit_bound += min(self._plan.charged_hits.max_items_per_user, charged_results)
        if not heavy_hitters:
            return None
        spent = epsilon_spent(self._plan, state.hit_bound)
        return report_of_window(self._plan, self._keys.stream, window, heavy_hitters, spent)


def candidates_in_order(parts: Sequence[ItemHolders]) -> Iterator[ItemHolders]:
    """All candidates of the windows, in order, of all shards of items together. Parts that share windows are joined,
    and only these: so there are never two copies of all."""
    joined: list[ItemHolders] = []
    end = -1
    for part in sorted((part for part in parts if len(part)), key=lambda part: int(part.windows[0])):
        if part.windows[0] >= end and joined:
            yield ItemHolders.merge(joined)
            joined = []
        joined.append(part)
        end = max(end, int(part.windows[-1]) + 1)
    if joined:
        yield ItemHolders.merge(joined)
