"""Monitor by counting: complete groups of candidates -> window reports, strictly in the order of the windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from dp_transforms.beam.close_windows import ClosingDoFn, read_progress
from dp_transforms.beam.count_for_operator import PENDING_WINDOWS, operator_gauge
from dp_transforms.beam.gather_in_order import FAR, NEAR, WAITING, Part, parts_of_window, take_turn
from dp_transforms.monitoring.monitor_settings import MonitorSettings
from dp_transforms.monitoring.window_report import RunEnded
from dp_transforms.naming.naming_settings import NamingSettings

ENDED = "ended"  # tag of the second output


class MonitorCounted(beam.PTransform):
    """``((window, 0), packed candidates)`` -> `WindowReport`, and `RunEnded` tagged `ENDED`."""

    def __init__(self, settings: MonitorSettings | NamingSettings, noise_key: beam.Secret) -> None:
        super().__init__()
        self._do_fn = CountedMonitorDoFn(settings, noise_key)
        self._stream = settings.stream

    def expand(self, windows: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        return (
            windows
            | "OneKey" >> beam.FlatMap(parts_of_window, self._stream).with_output_types(tuple[str, Part])
            | "CloseWindows" >> beam.ParDo(self._do_fn).with_outputs(ENDED, main="reports")
        )


class CountedMonitorDoFn(ClosingDoFn):
    """Stateful, keyed by stream, without timers: closes each window when it has come and all before it are closed.

    Candidates for a closed window, or a second time, are dropped and counted.
    """

    def __init__(self, settings: MonitorSettings | NamingSettings, noise_key: beam.Secret) -> None:
        super().__init__(settings, noise_key)
        self._pending_windows = operator_gauge(PENDING_WINDOWS)

    def process(
        self,
        element: tuple[str, Part],
        near: Any = beam.DoFn.StateParam(NEAR),
        far: Any = beam.DoFn.StateParam(FAR),
        waiting: Any = beam.DoFn.StateParam(WAITING),
        budgets: Any = beam.DoFn.StateParam(ClosingDoFn.BUDGETS),
        progress: Any = beam.DoFn.StateParam(ClosingDoFn.PROGRESS),
        known: Any = beam.DoFn.StateParam(ClosingDoFn.KNOWN),
    ) -> Iterator[object]:
        stream, part = element
        next_window, _, _ = read_progress(progress)
        turn = take_turn(part, next_window, near, far, waiting)
        self._late.inc(turn.dropped)
        if turn.waiting is not None:
            self._pending_windows.set(turn.waiting)
        if not turn.windows:
            return
        last = turn.windows[-1][0]
        slabs = [(window, blobs) for window, blobs in turn.windows if blobs]
        yield from self.close_slabs(slabs, budgets, progress, known, next_window=last + 1)
        self._closed.inc(len(turn.windows))
        if last + 1 == self._settings.schedule.horizon:
            _, _, reports = read_progress(progress)
            yield beam.pvalue.TaggedOutput(ENDED, RunEnded(stream, last + 1, reports))
