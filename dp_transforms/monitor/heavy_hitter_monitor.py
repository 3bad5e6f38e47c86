"""Where users pay for hits: a parallel front, which finds candidates, and the sequential stage. Window by window that
tests the candidates, charges their holders, and excludes users at their limit.

The pipeline runs this wherever users pay for hits: ThresholdMonitorEvolving ([KMS21] Algorithm 5), on columns, with the
accounting of target charging ([CL23] Algorithm 5), or in mode `looks` with that of the purse. Beside it,
`mechanisms.papers.threshold_monitor` is the algorithm as printed: tests/beam/test_threshold_monitor_evolving.py.

Guarantee: with the noise, thresholds and hits of a plan, the reports of all windows together are (epsilon, delta)-DP
for adding or removing one user with all its events. Condition: windows come in order, each once, each with at most L
items per user; in mode `looks`: with looks that are paid for. Source: docs/guarantee.md, "The mechanism of hits" and
"Draws in two stages"; in mode `looks` its "Looks and hits in one purse".

**The front.** Candidates are the cells of a shard of items that pass the first stage of their draw (docs/guarantee.md,
"Draws in two stages"). An item has at most as many active holders as holders. So if its full count plus noise stays
below the threshold, it is not published, whatever the counters of its holders are. Only the bit "reaches it" is drawn
there. The sequential stage draws the noise conditioned on that bit. The transcript has exactly the sequential
algorithm's distribution. Mode ``kms21`` has no such bit: there every cell is a candidate.

With looks an open domain has known items, which are looked at in every window, held or not. Which items are known, the
sequential stage alone can tell, since it depends on who is excluded. But what it names has passed the front. So an item
is known only within `forget_after` windows of a pass, and in all of these windows it is drawn for there, too, where
nobody holds it. A cell without holders is then tested only if its item is known. What is drawn in the front besides is
a function of the key alone, and is never published.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.followed_items import NO_ROW, follow
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.query_noise import LookNoise, epsilon_spent, most_hits, query_noise, release_rule
from dp_transforms.monitor.user_budgets import Hits, HolderCounters, UserBudgets
from dp_transforms.monitor.window_queries import WindowQueries
from dp_transforms.monitor.window_report import HeavyHitter, WindowReport, release_order
from dp_transforms.plan.plan import Plan

_ROWS_AT_ONCE = 1 << 20  # some 40 MB
_COUNTERS_PER_ROW = 8  # so many counters are copied for a row, at most


def find_candidates(cells: ItemHolders, plan: Plan, keys: StreamKeys) -> ItemHolders:
    """The cells that may be published. ``cells`` must contain all holders of its items."""
    if not len(cells):
        return cells
    return cells.select(np.flatnonzero(query_noise(plan, keys).may_pass(cells)))


class LookCandidates:
    """Finds the candidates of one shard of items. Holds no state."""

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self._plan = plan
        self._noise = LookNoise(plan.paid_looks.noise, plan.known_threshold, keys)

    def find(self, cells: ItemHolders, passed: KnownItems, first: int, end: int) -> ItemHolders:
        """The candidates of the windows ``first .. end - 1``. They do not depend on how a run is cut.

        cells: all cells of these windows in one shard of items. passed: which of its items passed lately before window
        ``first``; `KnownItems.after` tells the same for window ``end``, if the candidates are taken as named.

        Raises ValueError for cells of other windows, and for cells without holders in an open domain.
        """
        if not 0 <= first < end <= self._plan.schedule.horizon:
            raise ValueError(f"windows {first} .. {end - 1} are not windows of the run.")
        if len(cells) and not first <= cells.windows[0] <= cells.windows[-1] < end:
            raise ValueError(f"the cells must be of the windows {first} .. {end - 1}.")
        passes = self._noise.may_pass(cells)
        held = cells.select(np.flatnonzero(passes))
        if self._plan.domain_size:
            return held
        if len(cells) and not cells.counts.min() > 0:
            raise ValueError("a cell without holders belongs to a known domain, and the domain is open.")
        if self._plan.known is None or not (len(held) or len(passed)):
            return held
        found, _, items = follow(
            cells,
            passed,
            first,
            end,
            self._plan.known_for,
            names_anew=passes,  # each of them makes its item one that is drawn for
            reaches=lambda rows: passes[rows],
            nobody_passes=self._noise.nobody_passes,
            before=ItemHolders.none(),
        )
        found = found.take(found.rows == NO_ROW)
        nobody = ItemHolders.without_holders(found.windows, found.items, items).select(slice(None))
        return ItemHolders.merge([held, nobody])


@dataclasses.dataclass
class MonitorState:
    """What one window passes on to the next.

    next_window: no window before this one may be closed any more. budgets: hits paid. hit_bound: a bound, from public
    output alone, on the hits that any one user can have paid. known: what was named lately, where items are followed.
    """

    next_window: int = 0
    hit_bound: int = 0
    budgets: UserBudgets = dataclasses.field(default_factory=UserBudgets)
    known: KnownItems = dataclasses.field(default_factory=KnownItems.none)


class HeavyHitterMonitor:
    """Monitors one stream. Holds no state of its own: a window is a function of its candidates and a `MonitorState`."""

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self._plan = plan
        self._keys = keys
        self._noise = query_noise(plan, keys)
        self._rules = {is_known: release_rule(plan, is_known=is_known) for is_known in (False, True)}

    def close_window(
        self, window: int, candidates: ItemHolders, state: MonitorState
    ) -> tuple[WindowReport | None, Hits]:
        """Tests the candidates of a window in keyed-hash order and updates the state; no report if none is heavy.

        Raises ValueError for a window out of order or outside the horizon: the theorem needs both.
        """
        self._check_order([window], state)
        counters = HolderCounters.of([candidates], state.budgets)
        report = self._close(window, candidates, counters, state)
        return report, counters.charge(state.budgets)

    def close_windows(self, parts: Iterable[ItemHolders], state: MonitorState) -> Iterator[tuple[int, WindowReport]]:
        """The same for all windows that these candidates have. parts: in the order of their windows, each with all
        candidates of its windows. Yields the windows with a report; all that is yielded is in the state.

        The counters of many windows are found at once: what does not depend on charges is not done window by window.
        """
        for group in _in_groups(parts, state):
            yield from self._close_group(group, state)

    def _close_group(self, parts: Sequence[ItemHolders], state: MonitorState) -> list[tuple[int, WindowReport]]:
        self._check_order((window for part in parts for window, _ in part.by_window()), state)
        counters = HolderCounters.of(parts, state.budgets)
        found = []
        first_row = 0
        for part in parts:
            for window, cells in part.by_window():
                candidates = part.select_range(cells)
                next_row = first_row + len(candidates.holders)
                report = self._close(window, candidates, counters.of_rows(first_row, next_row), state)
                first_row = next_row
                if report is not None:
                    found.append((window, report))
        counters.charge(state.budgets)
        return found

    def _check_order(self, windows: Iterable[int], state: MonitorState) -> None:
        """Before anything is charged."""
        next_window, horizon = state.next_window, self._plan.schedule.horizon
        for window in windows:
            if not next_window <= window < horizon:
                raise ValueError(
                    f"window {window} cannot be closed: the open windows are {next_window} .. {horizon - 1}."
                )
            next_window = window + 1

    def _close(
        self, window: int, candidates: ItemHolders, counters: HolderCounters, state: MonitorState
    ) -> WindowReport | None:
        """counters: of the holders of these candidates. The caller adds what they are charged to the budgets."""
        state.next_window = window + 1
        is_known = self._is_known(window, candidates, state.known)
        queries = WindowQueries(window, candidates, counters, self._plan, self._keys, self._noise, is_known)
        heavy_hitters: list[HeavyHitter] = []
        heavy_cells: list[int] = []
        charged_results = 0
        cell = queries.next_heavy(0)
        while cell is not None:
            release = self._rules[bool(is_known[cell])](queries.noisy_count(cell))
            if release is not None:
                label = candidates.table.labels[int(candidates.items[cell])].as_py()
                heavy_hitters.append(HeavyHitter(label, *release.published))
                heavy_cells.append(cell)
                if release.charged:
                    charged_results += 1
                    queries.charge(cell)
            cell = queries.next_heavy(cell + 1)
        state.hit_bound += most_hits(self._plan, charged_results)
        if self._plan.known is not None:
            named = candidates.select(np.array(heavy_cells, dtype=np.int64))
            state.known = state.known.after(named, window + 1, self._plan.known_for)
        if not heavy_hitters:
            return None
        return self._report(window, heavy_hitters, state.hit_bound)

    def _is_known(self, window: int, candidates: ItemHolders, known: KnownItems) -> npt.NDArray[np.bool_]:
        """Whether each candidate is a known item: by what was named in earlier windows, or by the domain. bool[c]."""
        if self._plan.domain_size or not len(known):
            return np.full(len(candidates), self._plan.domain_size > 0)
        last_named = known.last_named_of(candidates.table)[candidates.items]
        return (last_named >= 0) & (last_named >= window - self._plan.known_for)

    def _report(self, window: int, heavy_hitters: list[HeavyHitter], hit_bound: int) -> WindowReport:
        plan = self._plan
        return WindowReport(
            stream=self._keys.stream,
            window_start=plan.schedule.window_start_micros(window),
            window_end=plan.schedule.window_end_micros(window),
            heavy_hitters=sorted(heavy_hitters, key=release_order),
            epsilon_total=plan.epsilon,
            delta=plan.delta,
            epsilon_spent=epsilon_spent(plan, hit_bound),
        )


def _in_groups(parts: Iterable[ItemHolders], state: MonitorState) -> Iterator[list[ItemHolders]]:
    """So many parts at a time that it costs little to go through all counters once for each group."""
    group: list[ItemHolders] = []
    rows = 0
    for part in parts:
        if group and rows + len(part.holders) > max(_ROWS_AT_ONCE, len(state.budgets) // _COUNTERS_PER_ROW):
            yield group
            group, rows = [], 0
        group.append(part)
        rows += len(part.holders)
    if group:
        yield group
