"""Verb: candidates -> window reports, strictly in the order of the windows: the one sequential stage."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
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
from dp_transforms.monitoring.window_report import RunEnded, WindowReport
from dp_transforms.operator_counters import (
    BUDGET_STATE_BYTES,
    LATE_BATCHES,
    PENDING_WINDOWS,
    WINDOWS_CLOSED,
    operator_counter,
    operator_gauge,
)
from dp_transforms.stage import KeyedStageDoFn

report_coder.register()

_CELLS_BEFORE_COMPACTION = 64
_PROGRESS = struct.Struct("<qqq")  # next_window, hit_bound, reports
ENDED = "ended"  # tag of the second output


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


class MonitorCounted(beam.PTransform):
    """``(stream, (window, announced, is_drained, blob))`` -> `WindowReport`, and `RunEnded` tagged `ENDED`.

    senders: how many senders announce their messages for each window.
    """

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret, senders: int) -> None:
        super().__init__()
        self._do_fn = CountedMonitorDoFn(settings, noise_key, senders)

    def expand(self, candidates: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        return candidates | "CloseWindows" >> beam.ParDo(self._do_fn).with_outputs(ENDED, main="reports")


class ClosingDoFn(KeyedStageDoFn):
    """Closes windows on kept state; who extends it says which ones are due."""

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret) -> None:
        super().__init__(settings, noise_key)
        self._late = operator_counter(LATE_BATCHES)
        self._closed = operator_counter(WINDOWS_CLOSED)
        self._budget_bytes = operator_gauge(BUDGET_STATE_BYTES)
        self._monitor: HeavyHitterMonitor

    def setup(self) -> None:
        super().setup()
        self._monitor = HeavyHitterMonitor(self._settings, self._keys)

    def _close(
        self,
        slabs: Sequence[tuple[int, Sequence[bytes]]],
        budgets: Any,
        progress: Any,
        *,
        rewrite: bool = False,
        next_window: int = 0,
    ) -> Iterator[TimestampedValue]:
        """Closes the windows of these slabs, in order, each with its parts; yields reports at the end of their windows.

        budgets, progress: the state. rewrite: whether to write the budgets anew instead of adding to them. next_window:
        windows before it are closed too, though they have no candidates.
        """
        kept_next_window, hit_bound, reports = _read_progress(progress)
        if not slabs:  # the budgets of all users are not read for an empty window
            progress.write(_PROGRESS.pack(max(kept_next_window, next_window), hit_bound, reports))
            return
        cells = list(budgets.read())
        state = MonitorState(kept_next_window, hit_bound, UserBudgets(cells))
        for _, parts in slabs:
            candidates = ItemHolders.merge([ItemHolders.from_bytes(part) for part in parts])
            for window, part in candidates.by_window():
                report, charges = self._monitor.close_window(window, candidates.select_range(part), state)
                if report is not None:
                    reports += 1
                    yield TimestampedValue(report, max_timestamp(self._settings.schedule, window))
                if not rewrite:
                    for cell in budget_cells(charges.users, charges.hits):
                        budgets.add(cell)
                        cells.append(cell)
        if rewrite or len(cells) > _CELLS_BEFORE_COMPACTION + 2 * state.budgets.cell_count:
            cells = list(state.budgets.to_cells())
            budgets.clear()
            for cell in cells:
                budgets.add(cell)
        self._budget_bytes.set(sum(map(len, cells)))
        progress.write(_PROGRESS.pack(max(state.next_window, next_window), state.hit_bound, reports))


class ThresholdMonitorEvolvingDoFn(ClosingDoFn):
    """Stateful, keyed by stream, in the GlobalWindow: adapts state and timers to `HeavyHitterMonitor`.

    Candidates wait until the watermark has passed their window; one event-time timer, re-set to the next due window,
    closes it. Bounded input sets one timer at the end, which drains all windows in order: cost stays linear in windows.
    What comes for a window that is closed, or twice for one group of its items, is dropped and counted.
    """

    PENDING = BagStateSpec("pending_v1", TupleCoder([VarIntCoder(), VarIntCoder(), BytesCoder()]))
    BUDGETS = BagStateSpec("budgets_v1", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress_v2", BytesCoder())
    DUE = ReadModifyWriteStateSpec("due_v1", VarIntCoder())
    CLOSE = TimerSpec("close_v1", TimeDomain.WATERMARK)

    def __init__(
        self, settings: MonitorSettings, noise_key: beam.Secret, sharding: Sharding, *, is_bounded: bool
    ) -> None:
        super().__init__(settings, noise_key)
        self._windows_per_slab = sharding.windows_per_slab
        self._is_bounded = is_bounded

    def process(
        self,
        element: tuple[str, tuple[int, int, bytes]],
        pending: Any = beam.DoFn.StateParam(PENDING),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        due: Any = beam.DoFn.StateParam(DUE),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> None:
        _, (slab, shard, blob) = element
        next_window, _, _ = _read_progress(progress)
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
        due_slabs = [(slab, [blob for _, blob in sorted(by_slab[slab].items())]) for slab in sorted(by_slab)]
        yield from self._close(due_slabs, budgets, progress, rewrite=self._is_bounded)
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


class CountedMonitorDoFn(ClosingDoFn):
    """Stateful, keyed by stream, without timers: closes each window when all of its candidates have come, in order.

    A window that is complete waits for those before it. What comes for a window that is closed, or more than was
    announced, is dropped and counted.
    """

    PENDING = BagStateSpec("pending_v1", TupleCoder([VarIntCoder(), BytesCoder()]))
    COUNTS = ReadModifyWriteStateSpec("counts_v1", BytesCoder())
    BUDGETS = BagStateSpec("budgets_v1", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress_v2", BytesCoder())

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret, senders: int) -> None:
        super().__init__(settings, noise_key)
        self._senders = senders
        self._pending_windows = operator_gauge(PENDING_WINDOWS)

    def process(
        self,
        element: tuple[str, tuple[int, int, bool, bytes]],
        pending: Any = beam.DoFn.StateParam(PENDING),
        counts: Any = beam.DoFn.StateParam(COUNTS),
        budgets: Any = beam.DoFn.StateParam(BUDGETS),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
    ) -> Iterator[object]:
        stream, (window, announced, is_drained, blob) = element
        next_window, _, _ = _read_progress(progress)
        if window < next_window:
            self._late.inc()
            return
        so_far = PendingWindows(counts.read())
        if not so_far.add(window, announced, is_drained, self._senders):
            self._late.inc()
            return
        if blob:
            pending.add((window, blob))
        due, is_drained = so_far.take_complete(next_window, self._senders)
        counts.write(so_far.to_bytes())
        self._pending_windows.set(len(so_far))
        if due == next_window:
            return
        yield from self._close(self._take(pending, due), budgets, progress, next_window=due)
        self._closed.inc(due - next_window)
        horizon = self._settings.schedule.horizon
        if due == horizon:
            _, _, reports = _read_progress(progress)
            yield beam.pvalue.TaggedOutput(ENDED, RunEnded(stream, horizon, is_drained, reports))

    def _take(self, pending: Any, due: int) -> list[tuple[int, list[bytes]]]:
        """Takes the parts of the windows before ``due`` out of the state: ``(window, parts)``, in order."""
        parts: dict[int, list[bytes]] = {}
        later = []
        for window, blob in pending.read():
            if window < due:
                parts.setdefault(window, []).append(blob)
            else:
                later.append((window, blob))
        pending.clear()
        for entry in later:
            pending.add(entry)
        return sorted(parts.items())


def _read_progress(progress: Any) -> tuple[int, int, int]:
    """The next window, the bound on hits, and how many reports were given."""
    next_window, hit_bound, reports = _PROGRESS.unpack(progress.read() or bytes(_PROGRESS.size))
    return next_window, hit_bound, reports


class PendingWindows:
    """How much has come for each window that is not closed: a row each, read and written for every message."""

    def __init__(self, data: bytes | None) -> None:
        # window, messages received, messages expected, senders that announced, whether drained
        self._rows = np.frombuffer(data or b"", dtype="<i8").reshape(-1, 5).copy()

    def __len__(self) -> int:
        return len(self._rows)

    def to_bytes(self) -> bytes:
        return self._rows.tobytes()

    def add(self, window: int, announced: int, is_drained: bool, senders: int) -> bool:
        """Counts a message; whether it can be one of those announced."""
        at = np.flatnonzero(self._rows[:, 0] == window)
        if not len(at):
            self._rows = np.append(self._rows, [[window, 0, 0, 0, 0]], axis=0)
            at = np.array([len(self._rows) - 1])
        row = self._rows[at[0]]
        row[1:] += (1, announced, announced > 0, is_drained)
        return bool(row[3] < senders or (row[3] == senders and row[1] <= row[2]))

    def take_complete(self, next_window: int, senders: int) -> tuple[int, bool]:
        """Removes the complete windows from ``next_window`` on without a gap. Returns the first window that stays, and
        whether the last one taken was drained."""
        is_complete = (self._rows[:, 3] == senders) & (self._rows[:, 1] == self._rows[:, 2])
        complete = np.sort(self._rows[is_complete, 0])
        due = next_window + int((complete == next_window + np.arange(len(complete))).sum())
        is_drained = bool(self._rows[self._rows[:, 0] == due - 1, 4].any())
        self._rows = self._rows[self._rows[:, 0] >= due]
        return due, is_drained
