"""Verb: candidates -> window reports, strictly in the order of the windows: the one sequential stage."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, TupleCoder, VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms import report_coder
from dp_transforms.assign_windows import Sharding, max_timestamp
from dp_transforms.monitoring.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.settings import MonitorSettings
from dp_transforms.monitoring.user_budgets import UserBudgets, budget_cells
from dp_transforms.monitoring.window_report import WindowReport
from dp_transforms.operator_counters import LATE_BATCHES, operator_counter
from dp_transforms.stage import KeyedStageDoFn

report_coder.register()

_CELLS_BEFORE_COMPACTION = 64
_PROGRESS = struct.Struct("<qq")  # next_window, hit_bound


class MonitorHeavyHitters(beam.PTransform):
    """``(stream, (slab, shard, packed candidates))`` -> `WindowReport`, at the maximal timestamp of its window."""

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret, sharding: Sharding, is_bounded: bool) -> None:
        super().__init__()
        self._do_fn = ThresholdMonitorEvolvingDoFn(settings, noise_key, sharding, is_bounded=is_bounded)

    def expand(self, candidates: beam.PCollection) -> beam.PCollection:
        return (
            candidates
            | "InGlobalWindow" >> beam.WindowInto(GlobalWindows())
            | "CloseWindows" >> beam.ParDo(self._do_fn).with_output_types(WindowReport)
        )


class ThresholdMonitorEvolvingDoFn(KeyedStageDoFn):
    """Stateful, keyed by stream, in the GlobalWindow: adapts state and timers to `HeavyHitterMonitor`.

    Candidates wait until the watermark has passed their window; one event-time timer, re-set to the next due window,
    closes it. Bounded input sets one timer at the end, which drains all windows in order: cost stays linear in windows.
    What comes for a window that is closed, or twice for one group of its items, is dropped and counted.
    """

    PENDING = BagStateSpec("pending_v1", TupleCoder([VarIntCoder(), VarIntCoder(), BytesCoder()]))
    BUDGETS = BagStateSpec("budgets_v1", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress_v1", BytesCoder())
    DUE = ReadModifyWriteStateSpec("due_v1", VarIntCoder())
    CLOSE = TimerSpec("close_v1", TimeDomain.WATERMARK)

    def __init__(
        self, settings: MonitorSettings, noise_key: beam.Secret, sharding: Sharding, *, is_bounded: bool
    ) -> None:
        super().__init__(settings, noise_key)
        self._windows_per_slab = sharding.windows_per_slab
        self._is_bounded = is_bounded
        self._late = operator_counter(LATE_BATCHES)
        self._monitor: HeavyHitterMonitor

    def setup(self) -> None:
        super().setup()
        self._monitor = HeavyHitterMonitor(self._settings, self._keys)

    def process(
        self,
        element: tuple[str, tuple[int, int, bytes]],
        pending: Any = beam.DoFn.StateParam(PENDING),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        due: Any = beam.DoFn.StateParam(DUE),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> None:
        _, (slab, shard, blob) = element
        next_window, _ = _PROGRESS.unpack(progress.read() or _PROGRESS.pack(0, 0))
        if slab * self._windows_per_slab < next_window:
            self._late.inc()
            return
        pending.add((slab, shard, blob))
        earliest = due.read()
        if earliest is None or slab < earliest:
            due.write(slab)
            close.set(self._closing_time(slab))

    @on_timer(CLOSE)
    def close_due_windows(
        self,
        pending: Any = beam.DoFn.StateParam(PENDING),
        budgets: Any = beam.DoFn.StateParam(BUDGETS),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        due: Any = beam.DoFn.StateParam(DUE),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[TimestampedValue]:
        """Closes the due window (bounded input: all of them) and sets the timer for the one after it."""
        due_slab = due.read()
        if due_slab is None:
            return  # a firing that an earlier one has served
        by_slab, later = self._take_due(pending.read(), due_slab)
        next_window, hit_bound = _PROGRESS.unpack(progress.read() or _PROGRESS.pack(0, 0))
        cells = list(budgets.read())
        state = MonitorState(next_window, hit_bound, UserBudgets(cells))
        for slab in sorted(by_slab):
            candidates = ItemHolders.merge([ItemHolders.from_bytes(blob) for _, blob in sorted(by_slab[slab].items())])
            for window, part in candidates.by_window():
                report, charges = self._monitor.close_window(window, candidates.select_range(part), state)
                if report is not None:
                    yield TimestampedValue(report, max_timestamp(self._settings.schedule, window))
                if not self._is_bounded:
                    for cell in budget_cells(charges.users, charges.hits):
                        budgets.add(cell)
                        cells.append(cell)
        if self._is_bounded or len(cells) > _CELLS_BEFORE_COMPACTION + 2 * state.budgets.cell_count:
            budgets.clear()
            for cell in state.budgets.to_cells():
                budgets.add(cell)
        progress.write(_PROGRESS.pack(state.next_window, state.hit_bound))
        pending.clear()
        for entry in later:
            pending.add(entry)
        if later:
            next_due = min(slab for slab, _, _ in later)
            due.write(next_due)
            close.set(self._closing_time(next_due))
        else:
            due.clear()

    def _take_due(
        self, entries: Iterable[tuple[int, int, bytes]], due_slab: int
    ) -> tuple[dict[int, dict[int, bytes]], list[tuple[int, int, bytes]]]:
        """Splits what is pending into the due slabs, ``{slab: {shard: blob}}``, and the rest."""
        by_slab: dict[int, dict[int, bytes]] = {}
        later = []
        for slab, shard, blob in entries:
            if slab > due_slab and not self._is_bounded:
                later.append((slab, shard, blob))
            elif shard in by_slab.setdefault(slab, {}):
                self._late.inc()  # a second pane: these items would be tested twice
            else:
                by_slab[slab][shard] = blob
        return by_slab, later

    def _closing_time(self, slab: int) -> Timestamp:
        if self._is_bounded:
            return GlobalWindow().max_timestamp()
        # Some runners truncate timers to milliseconds: never let that make the output late for its window.
        return Timestamp(micros=max_timestamp(self._settings.schedule, slab).micros // 1000 * 1000)
