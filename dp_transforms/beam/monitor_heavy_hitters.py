"""Verb: candidates -> window reports, strictly in the order of the windows: the one sequential stage."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, ListCoder, TupleCoder, VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam import encode_elements
from dp_transforms.beam.assign_windows import Sharding, max_timestamp
from dp_transforms.beam.count_for_operator import (
    BUDGET_STATE_BYTES,
    LATE_BATCHES,
    PENDING_WINDOWS,
    WINDOWS_CLOSED,
    operator_counter,
    operator_gauge,
)
from dp_transforms.beam.gather_counted import Group
from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.monitoring.counted_messages import MOST_MESSAGE_BYTES
from dp_transforms.monitoring.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.monitor_settings import MonitorSettings
from dp_transforms.monitoring.user_budgets import UserBudgets, budget_cells
from dp_transforms.monitoring.window_report import RunEnded, WindowReport

encode_elements.register_coders()

_CELLS_BEFORE_COMPACTION = 64
_LEAST_NEAR_WINDOWS = 64
_PROGRESS = struct.Struct("<qqq")  # next_window, hit_bound, reports
ENDED = "ended"  # tag of the second output
# Window, how many of these it has, candidates: most windows have one, larger ones come cut.
_Part = tuple[int, int, list[bytes]]
_PART_CODER = TupleCoder([VarIntCoder(), VarIntCoder(), ListCoder(BytesCoder())])


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
    """``((window, 0), packed candidates)`` -> `WindowReport`, and `RunEnded` tagged `ENDED`."""

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret) -> None:
        super().__init__()
        self._do_fn = CountedMonitorDoFn(settings, noise_key)
        self._stream = settings.stream

    def expand(self, windows: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        return (
            windows
            | "OneKey" >> beam.FlatMap(_with_key, self._stream).with_output_types(tuple[str, _Part])
            | "CloseWindows" >> beam.ParDo(self._do_fn).with_outputs(ENDED, main="reports")
        )


def _with_key(group: Group, stream: str) -> Iterator[tuple[str, _Part]]:
    """The candidates of a window in elements that engines take."""
    (window, _), blobs = group
    cut: list[list[bytes]] = [[]]
    size = 0
    for blob in blobs:
        if cut[-1] and size + len(blob) > MOST_MESSAGE_BYTES:
            cut.append([])
            size = 0
        cut[-1].append(blob)
        size += len(blob)
    for part in cut:
        yield stream, (window, len(cut), part)


class ClosingDoFn(KeyedDoFn):
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
    """Stateful, keyed by stream, without timers: closes each window when it has come and all before it are closed.

    A window that comes before its turn waits: those whose turn is soon apart from the others, so that the state that is
    read again and again stays small. What comes for a window that is closed, or twice, is dropped and counted.
    """

    NEAR = BagStateSpec("near_v1", _PART_CODER)
    FAR = BagStateSpec("far_v1", _PART_CODER)
    WAITING = ReadModifyWriteStateSpec("waiting_v1", BytesCoder())
    BUDGETS = BagStateSpec("budgets_v1", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress_v2", BytesCoder())

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret) -> None:
        super().__init__(settings, noise_key)
        self._pending_windows = operator_gauge(PENDING_WINDOWS)

    def process(
        self,
        element: tuple[str, _Part],
        near: Any = beam.DoFn.StateParam(NEAR),
        far: Any = beam.DoFn.StateParam(FAR),
        waiting: Any = beam.DoFn.StateParam(WAITING),
        budgets: Any = beam.DoFn.StateParam(BUDGETS),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
    ) -> Iterator[object]:
        stream, part = element
        window, parts, _ = part
        next_window, _, _ = _read_progress(progress)
        if window < next_window:
            self._late.inc()
            return
        queue = _WaitingWindows(near, far, waiting.read())
        if (window, parts) == (next_window, 1):
            due = [[part], *queue.take_from(window + 1)]
        else:
            queue.add(part)
            due = queue.take_from(window) if window == next_window else []
        self._late.inc(queue.dropped)
        waiting.write(queue.to_bytes())
        self._pending_windows.set(len(queue))
        if not due:
            return
        last = due[-1][0][0]
        slabs = [(of_one[0][0], blobs) for of_one in due if (blobs := [blob for part in of_one for blob in part[2]])]
        yield from self._close(slabs, budgets, progress, next_window=last + 1)
        self._closed.inc(len(due))
        if last + 1 == self._settings.schedule.horizon:
            _, _, reports = _read_progress(progress)
            yield beam.pvalue.TaggedOutput(ENDED, RunEnded(stream, last + 1, reports))


def _read_progress(progress: Any) -> tuple[int, int, int]:
    """The next window, the bound on hits, and how many reports were given."""
    next_window, hit_bound, reports = _PROGRESS.unpack(progress.read() or bytes(_PROGRESS.size))
    return next_window, hit_bound, reports


class _WaitingWindows:
    """Parts of windows before their turn, in two bags: ``near`` holds windows before ``near_end``, ``far`` the rest.

    However windows come, each one is read from ``far`` seldom, and ``near`` stays small.
    """

    _FIELDS = struct.Struct("<qqq")

    def __init__(self, near: Any, far: Any, data: bytes | None) -> None:
        self._near = near
        self._far = far
        self._near_end, self._in_near, self._in_far = self._FIELDS.unpack(data or bytes(self._FIELDS.size))
        self.dropped = 0  # parts that came twice

    def __len__(self) -> int:
        return int(self._in_near + self._in_far)

    def to_bytes(self) -> bytes:
        return self._FIELDS.pack(self._near_end, self._in_near, self._in_far)

    def add(self, part: _Part) -> None:
        if part[0] < self._near_end:
            self._near.add(part)
            self._in_near += 1
        else:
            self._far.add(part)
            self._in_far += 1

    def take_from(self, window: int) -> list[list[_Part]]:
        """Takes out the whole windows from ``window`` on without a gap, in order. None before it is waiting."""
        taken: list[list[_Part]] = []
        while True:
            kept: dict[int, list[_Part]] = {}
            for part in self._near.read() if self._in_near else ():
                kept.setdefault(part[0], []).append(part)
            before = len(taken)
            while window in kept and len(kept[window]) >= kept[window][0][1]:
                parts = kept.pop(window)
                taken.append(parts[: parts[0][1]])
                self.dropped += len(parts) - len(taken[-1])
                window += 1
            if len(taken) > before:
                self._near.clear()
                self._in_near = 0
                for part in itertools.chain.from_iterable(kept.values()):
                    self.add(part)
            if window < self._near_end or not self._in_far:
                return taken
            self._refill(window)

    def _refill(self, window: int) -> None:
        """Moves the windows whose turn is soon. All that were near are taken."""
        self._near_end = window + max(_LEAST_NEAR_WINDOWS, 2 * math.isqrt(self._in_far))
        parts = list(self._far.read())
        self._far.clear()
        self._in_far = 0
        for part in parts:
            self.add(part)
