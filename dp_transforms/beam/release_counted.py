"""Release by counting: the named items of all shards -> window reports, in the order of the windows."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import TimestampedValue

from dp_transforms.beam.assign_windows import max_timestamp
from dp_transforms.beam.gather_counted import GatherCounted
from dp_transforms.beam.gather_in_order import FAR, NEAR, WAITING, Part, parts_of_window, take_turn
from dp_transforms.beam.monitor_counted import ENDED
from dp_transforms.beam.set_up_workers import operator_counter, operator_gauge
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.operator_counts import LATE_BATCHES, PENDING_WINDOWS, WINDOWS_CLOSED
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.runs.run_part import RunPart

_PROGRESS = struct.Struct("<qq")  # next_window, reports


class ReleaseCounted(beam.PTransform):
    """``((window, 0), message)`` with named items -> `WindowReport`, and `RunEnded` tagged `ENDED`.

    senders: how many shards of items send to each window.
    """

    def __init__(self, settings: NamingSettings, senders: int, part: RunPart | None = None) -> None:
        super().__init__()
        self._part = part
        self._settings = settings
        self._senders = senders

    def expand(self, messages: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        return (
            messages
            | "GatherWindows" >> GatherCounted(self._senders)
            | "OneKey" >> beam.FlatMap(parts_of_window, self._settings.stream).with_output_types(tuple[str, Part])
            | "ReleaseInOrder"
            >> beam.ParDo(ReleaseCountedDoFn(self._settings, self._part)).with_outputs(ENDED, main="reports")
        )


class ReleaseCountedDoFn(beam.DoFn):
    """Stateful, keyed by stream, without timers: releases a window when it has come and all before it are released.

    What comes for a window that is released is dropped and counted.
    """

    PROGRESS = ReadModifyWriteStateSpec("progress_v1", BytesCoder())

    def __init__(self, settings: NamingSettings, part: RunPart | None = None) -> None:
        self._settings = settings
        self._part, self._is_whole = part or RunPart.whole(settings.schedule), part is None
        self._late = operator_counter(LATE_BATCHES)
        self._closed = operator_counter(WINDOWS_CLOSED)
        self._pending_windows = operator_gauge(PENDING_WINDOWS)

    def process(
        self,
        element: tuple[str, Part],
        near: Any = beam.DoFn.StateParam(NEAR),
        far: Any = beam.DoFn.StateParam(FAR),
        waiting: Any = beam.DoFn.StateParam(WAITING),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
    ) -> Iterator[object]:
        stream, part = element
        next_window, reports = _PROGRESS.unpack(progress.read() or _PROGRESS.pack(self._part.first, 0))
        turn = take_turn(part, next_window, near, far, waiting)
        self._late.inc(turn.dropped)
        if turn.waiting is not None:
            self._pending_windows.set(turn.waiting)
        if not turn:
            return
        schedule = self._settings.schedule
        for _, blobs in turn.windows:
            named = NamedItems.merge([NamedItems.from_bytes(blob) for blob in blobs])
            for window, report in named.window_reports(self._settings):
                reports += 1
                yield TimestampedValue(report, max_timestamp(schedule, window))
        end = next_window + len(turn.windows)
        progress.write(_PROGRESS.pack(end, reports))
        self._closed.inc(len(turn.windows))
        if end == self._part.end if self._is_whole else turn.ends:
            yield beam.pvalue.TaggedOutput(ENDED, RunEnded(stream, end, reports))
