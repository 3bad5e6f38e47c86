"""Close: the candidates of the next windows -> their reports, with charges and progress in state that an engine keeps.

The base of both monitors: `monitor_heavy_hitters` closes windows by timers, `monitor_counted` by counting.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec
from apache_beam.transforms.window import TimestampedValue

from dp_transforms.beam.assign_windows import max_timestamp
from dp_transforms.beam.set_up_workers import KeyedDoFn, operator_counter, operator_gauge
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitor.hit_settings import are_followed
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.operator_counts import BUDGET_STATE_BYTES, KNOWN_ITEMS, LATE_BATCHES, WINDOWS_CLOSED
from dp_transforms.monitor.user_budgets import UserBudgets, budget_blobs
from dp_transforms.monitor.window_report import WindowReport

_BLOBS_BEFORE_COMPACTION = 64
_PROGRESS = struct.Struct("<qqq")  # next_window, hit_bound, reports


def read_progress(progress: Any) -> tuple[int, int, int]:
    """The next window to close, the bound on hits, and how many reports were released."""
    next_window, hit_bound, reports = _PROGRESS.unpack(progress.read() or bytes(_PROGRESS.size))
    return next_window, hit_bound, reports


def write_progress(progress: Any, next_window: int, hit_bound: int, reports: int) -> None:
    """What `read_progress` reads."""
    progress.write(_PROGRESS.pack(next_window, hit_bound, reports))


class ClosingDoFn(KeyedDoFn):
    """Closes windows on state that an engine keeps. Subclasses decide which windows are due.

    BUDGETS, PROGRESS, KNOWN: the state of a stream: charged hits by user, what `read_progress` returns, and the known
    items, where items are followed.
    """

    BUDGETS = BagStateSpec("budgets_v1", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress_v2", BytesCoder())
    KNOWN = BagStateSpec("known_v1", BytesCoder())

    _settings: MonitorSettings | NamingSettings

    def __init__(self, settings: MonitorSettings | NamingSettings, noise_key: beam.Secret) -> None:
        super().__init__(settings, noise_key)
        self._late = operator_counter(LATE_BATCHES)
        self._closed = operator_counter(WINDOWS_CLOSED)
        self._budget_bytes = operator_gauge(BUDGET_STATE_BYTES)
        self._known_items = operator_gauge(KNOWN_ITEMS)
        self._monitor: HeavyHitterMonitor

    def setup(self) -> None:
        super().setup()
        self._monitor = HeavyHitterMonitor(self._settings, self._keys)

    def close_slabs(
        self,
        slabs: Sequence[tuple[int, Sequence[bytes]]],
        budgets: Any,
        progress: Any,
        known: Any,
        *,
        rewrite: bool = False,
        next_window: int = 0,
    ) -> Iterator[TimestampedValue]:
        """Closes the windows of these slabs, in order. Yields each report at the end of its window.

        slabs: number and packed candidates of each slab. budgets, progress, known: the state. rewrite: whether to
        replace the stored budgets at the end, instead of adding each charge to them. next_window: the windows before it
        are closed too, although they have no candidates.
        """
        kept_next_window, hit_bound, reports = read_progress(progress)
        if not slabs:  # the budgets of all users are not read for an empty window
            progress.write(_PROGRESS.pack(max(kept_next_window, next_window), hit_bound, reports))
            return
        blobs = list(budgets.read())
        known_before = KnownItems.from_cells(known.read()) if are_followed(self._settings) else KnownItems.none()
        state = MonitorState(kept_next_window, hit_bound, UserBudgets(blobs), known_before)
        parts = (ItemHolders.merge([ItemHolders.from_bytes(part) for part in packed]) for _, packed in slabs)
        closed = (
            self._monitor.close_windows(parts, state) if rewrite else self._close_each(parts, state, budgets, blobs)
        )
        for window, report in closed:
            reports += 1
            yield TimestampedValue(report, max_timestamp(self._settings.schedule, window))
        if rewrite or len(blobs) > _BLOBS_BEFORE_COMPACTION + 2 * state.budgets.blob_count:
            blobs = list(state.budgets.to_blobs())
            budgets.clear()
            for blob in blobs:
                budgets.add(blob)
        self._budget_bytes.set(sum(map(len, blobs)))
        if state.known is not known_before:
            known.clear()
            for cell in state.known.to_cells():
                known.add(cell)
            self._known_items.set(len(state.known))
        progress.write(_PROGRESS.pack(max(state.next_window, next_window), state.hit_bound, reports))

    def _close_each(
        self, parts: Iterable[ItemHolders], state: MonitorState, budgets: Any, blobs: list[bytes]
    ) -> Iterator[tuple[int, WindowReport]]:
        """Window by window, and the charges of each are added to the stored budgets, and to blobs."""
        for candidates in parts:
            for window, cells in candidates.by_window():
                report, charges = self._monitor.close_window(window, candidates.select_range(cells), state)
                for blob in budget_blobs(charges.users, charges.hits):
                    budgets.add(blob)
                    blobs.append(blob)
                if report is not None:
                    yield window, report
