"""ThresholdMonitorEvolving: candidates -> window reports, strictly in the order of the windows, by timers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, TupleCoder, VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.assign_windows import max_timestamp
from dp_transforms.beam.close_windows import ClosingDoFn, read_progress
from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.monitor.window_report import WindowReport


class MonitorHeavyHitters(beam.PTransform):
    """``(stream, (slab, shard, packed candidates))`` -> `WindowReport`, at the maximal timestamp of its window.

    In a stream the shards of a window are grouped first, and so come together. They have the timestamp at which the
    timer of the monitor fires, and an engine may fire it before an element that has its time (docs/engines.md).
    """

    def __init__(
        self, settings: MonitorSettings | NamingSettings, noise_key: beam.Secret, sharding: Sharding, is_bounded: bool
    ) -> None:
        super().__init__()
        self._do_fn = ThresholdMonitorEvolvingDoFn(settings, noise_key, sharding, is_bounded=is_bounded)
        self._is_bounded = is_bounded

    def expand(self, candidates: beam.PCollection) -> beam.PCollection:
        return (
            (candidates if self._is_bounded else candidates | "ShardsTogether" >> ShardsTogether())
            | "InGlobalWindow" >> beam.WindowInto(GlobalWindows())
            | "CloseWindows" >> beam.ParDo(self._do_fn).with_output_types(WindowReport)
        )


class ShardsTogether(beam.PTransform):
    """The candidates of a stream, in one Beam window for each of its windows -> the same, in one bundle a window."""

    def expand(self, candidates: beam.PCollection) -> beam.PCollection:
        return (
            candidates
            | "GroupByStream" >> beam.GroupByKey()
            | "Shards" >> beam.FlatMap(_shards).with_output_types(tuple[str, tuple[int, int, bytes]])
        )


class ThresholdMonitorEvolvingDoFn(ClosingDoFn):
    """ThresholdMonitorEvolving ([KMS21] Algorithm 5), stateful, keyed by stream, in the GlobalWindow.

    Its state has a counter of hits for each user that ever paid one (`UserBudgets`). `HeavyHitterMonitor` tests each
    item of a window against the threshold, charges the counters of its holders for a hit, and leaves out users that
    have paid all theirs. What is a hit, and the noise, depend on the release mode; with ``kms21`` both are the paper's,
    and tests/beam/test_threshold_monitor_evolving.py runs `mechanisms.papers.threshold_monitor` beside it.

    Candidates wait until the watermark has passed their window. One event-time timer closes the window and is set again
    to the next due one. For bounded input one timer at the end closes all windows in order, so cost is linear in the
    number of windows. Candidates for a closed window, or a second time for one shard of items, are dropped and counted.
    """

    PENDING = BagStateSpec("pending_v1", TupleCoder([VarIntCoder(), VarIntCoder(), BytesCoder()]))
    DUE = ReadModifyWriteStateSpec("due_v1", VarIntCoder())
    CLOSE = TimerSpec("close_v1", TimeDomain.WATERMARK)

    def __init__(
        self,
        settings: MonitorSettings | NamingSettings,
        noise_key: beam.Secret,
        sharding: Sharding,
        *,
        is_bounded: bool,
    ) -> None:
        super().__init__(settings, noise_key)
        self._windows_per_slab = sharding.windows_per_slab
        self._is_bounded = is_bounded

    def process(
        self,
        element: tuple[str, tuple[int, int, bytes]],
        pending: Any = beam.DoFn.StateParam(PENDING),
        progress: Any = beam.DoFn.StateParam(ClosingDoFn.PROGRESS),
        due: Any = beam.DoFn.StateParam(DUE),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> None:
        _, (slab, shard, blob) = element
        next_window, _, _ = read_progress(progress)
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
        budgets: Any = beam.DoFn.StateParam(ClosingDoFn.BUDGETS),
        progress: Any = beam.DoFn.StateParam(ClosingDoFn.PROGRESS),
        known: Any = beam.DoFn.StateParam(ClosingDoFn.KNOWN),
        due: Any = beam.DoFn.StateParam(DUE),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[TimestampedValue]:
        """Closes the due window (bounded input: all of them) and sets the timer for the one after it."""
        due_slab = due.read()
        if due_slab is None:
            return  # an earlier firing has closed these windows
        by_slab, later = self._take_due(pending.read(), due_slab)
        due_slabs = [(slab, [blob for _, blob in sorted(by_slab[slab].items())]) for slab in sorted(by_slab)]
        yield from self.close_slabs(due_slabs, budgets, progress, known, rewrite=self._is_bounded)
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
        """Splits the pending entries into the due slabs, ``{slab: {shard: blob}}``, and the rest."""
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


def _shards(
    group: tuple[str, Iterable[tuple[int, int, bytes]]],
) -> Iterator[tuple[str, tuple[int, int, bytes]]]:
    stream, shards = group
    for each in shards:
        yield stream, each
