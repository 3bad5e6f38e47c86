"""The third stage: window after window, from what was found among all items to the reports."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.contribution_counters import ContributionCounters
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, candidates_in_order
from dp_transforms.monitor.item_domain import DomainTable
from dp_transforms.monitor.item_sums import ItemHolders
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.operator_counts import BUDGET_STATE_BYTES
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Cell, Kind, hit_bound_cell, hit_bound_of_cell
from dp_transforms.stages.stage import Reported, Span, StageWork


@dataclasses.dataclass
class _Read(MonitorState):
    """bound_before: the bound on hits when the state was read."""

    bound_before: int = 0


class MonitorWindows(StageWork):
    """Candidates -> reports: ThresholdMonitorEvolving (`monitor.heavy_hitter_monitor`), wherever users pay for hits.

    The state has a counter of hits for each user that ever paid one, and a bound on hits from public output alone.
    """

    def __init__(self, plan: Plan, keys: StreamKeys, domain: DomainTable | None, number: int = 0) -> None:
        super().__init__(plan, keys, domain, number)
        self._monitor = HeavyHitterMonitor(plan, keys)

    def unpacked(self, blobs: Sequence[bytes]) -> list[ItemHolders]:
        return [ItemHolders.from_bytes(blob) for blob in blobs]

    def load(self, part: RunPart, columns: list[ItemHolders], span: Span) -> MonitorState:
        blobs: list[bytes] = []
        if part.state_path is not None:
            holders = [cells.holders for cells in columns] or [np.zeros(0, dtype=np.uint64)]
            blobs = part.hits(np.unique(np.concatenate(holders))).to_cells()
        return MonitorState(part.first, part.hit_bound, ContributionCounters(blobs))

    def read(self, cells: Iterable[tuple[Kind, Cell]], first: int) -> _Read:
        by_kind: dict[Kind, list[Cell]] = {}
        for kind, cell in cells:
            by_kind.setdefault(kind, []).append(cell)
        hit_bound = max(map(hit_bound_of_cell, by_kind.get(Kind.HIT_BOUND, ())), default=0)
        return _Read(
            first,
            hit_bound,
            ContributionCounters(by_kind.get(Kind.BUDGETS, ()), are_noted=True),
            hit_bound,
        )

    def advance(
        self, state: MonitorState, columns: list[ItemHolders], span: Span, counts: Counter[str]
    ) -> Iterator[Reported]:
        return self._monitor.close_windows(candidates_in_order(columns), state)

    def cells(self, state: MonitorState) -> Iterator[tuple[Kind, bytes]]:
        yield Kind.HIT_BOUND, hit_bound_cell(state.hit_bound)
        for blob in state.budgets.to_blobs():
            yield Kind.BUDGETS, blob

    def changed(self, state: _Read, span: Span) -> Iterator[tuple[Kind, bytes]]:
        """A hit that nobody paid, of an item that nobody holds, counts for the bound all the same."""
        for blob in state.budgets.charged_blobs():
            yield Kind.BUDGETS, blob
        if state.hit_bound != state.bound_before:
            yield Kind.HIT_BOUND, hit_bound_cell(state.hit_bound)

    def measures(self, state: MonitorState) -> dict[str, int]:
        return {BUDGET_STATE_BYTES: sum(map(len, state.budgets.to_blobs()))}


class ReleaseNames(StageWork):
    """`NamedItems` -> reports, where users pay for looks: what is named is published."""

    keeps_state = False
    TAKES = NamedItems

    def advance(self, state: None, columns: NamedItems, span: Span, counts: Counter[str]) -> Iterator[Reported]:
        return columns.window_reports(self.plan, self.keys.stream)
