"""Monitor a part of a run: the candidates of its windows -> their reports, in order, and what the next part needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import TimestampedValue

from dp_transforms.beam.assign_windows import max_timestamp
from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.beam.write_state import STATE
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitor.hit_settings import are_followed
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.user_budgets import UserBudgets, budget_blobs
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import (
    Kind,
    budget_cells,
    hit_bound_cell,
    hits_of_cell,
    known_cells,
    pack_cell,
)


class MonitorPart(beam.PTransform):
    """``(stream, (slab, shard, packed candidates))`` -> `WindowReport`, at the maximal timestamp of its window, and
    packed cells tagged `STATE`: the hits of the users that can be charged here, the bound on hits, and known items."""

    def __init__(self, settings: MonitorSettings | NamingSettings, noise_key: beam.Secret, part: RunPart) -> None:
        super().__init__()
        self._do_fn = MonitorPartDoFn(settings, noise_key, part)

    def expand(self, candidates: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        return (
            candidates
            | "GatherCandidates" >> beam.GroupByKey()
            | "CloseWindows"
            >> beam.ParDo(self._do_fn).with_output_types(WindowReport).with_outputs(STATE, main="reports")
        )


class MonitorPartDoFn(KeyedDoFn):
    """Adapts `HeavyHitterMonitor` to one group with all candidates of the part. Where there are none, no window has a
    report, and nothing changes."""

    _settings: MonitorSettings | NamingSettings

    def __init__(self, settings: MonitorSettings | NamingSettings, noise_key: beam.Secret, part: RunPart) -> None:
        super().__init__(settings, noise_key)
        self._part = part
        self._monitor: HeavyHitterMonitor

    def setup(self) -> None:
        super().setup()
        self._monitor = HeavyHitterMonitor(self._settings, self._keys)

    def process(self, group: tuple[str, Iterable[tuple[int, int, bytes]]]) -> Iterator[object]:
        _, sent = group
        by_slab: dict[int, list[ItemHolders]] = {}
        for slab, _, blob in sent:
            by_slab.setdefault(slab, []).append(ItemHolders.from_bytes(blob))
        state = self._state([part for parts in by_slab.values() for part in parts])
        parts = (ItemHolders.merge(by_slab[slab]) for slab in sorted(by_slab))
        for window, report in self._monitor.close_windows(parts, state):
            yield TimestampedValue(report, max_timestamp(self._settings.schedule, window))
        for kind, bucket, cell in self._handed_over(state):
            yield beam.pvalue.TaggedOutput(STATE, pack_cell(kind, bucket, cell))

    def _state(self, candidates: list[ItemHolders]) -> MonitorState:
        """The state before the part, of the users that hold a candidate."""
        users = np.unique(np.concatenate([part.holders for part in candidates]))
        charged = UserBudgets(budget_blobs(*self._part.hits(users)))
        known = self._part.known(Kind.KNOWN) if are_followed(self._settings) else KnownItems.none()
        return MonitorState(self._part.first, self._part.hit_bound, charged, known)

    def _handed_over(self, state: MonitorState) -> Iterator[tuple[Kind, int, bytes]]:
        for blob in state.budgets.to_blobs():
            for bucket, cell in budget_cells(*hits_of_cell(blob)):
                yield Kind.BUDGETS, bucket, cell
        for bucket, cell in known_cells(state.known):
            yield Kind.KNOWN, bucket, cell
        yield Kind.HIT_BOUND, 0, hit_bound_cell(state.hit_bound)
