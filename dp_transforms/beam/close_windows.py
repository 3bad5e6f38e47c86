"""Close windows: what belongs to a window of the plan becomes complete when the watermark passes its end.

What is sent on a stream is stamped, and put into a window of Beam that ends a millisecond before that of the plan. A
GroupByKey of Beam then gives all of it at once, and engines drop what comes later. So a timer at the last millisecond
comes after all that was grouped, and holds the watermark back for the report, whose timestamp is the last microsecond.
Bounded input is in the GlobalWindow, and complete at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from dp_transforms.beam.metrics import operator_counter
from dp_transforms.core.operator_counts import LATE_BATCHES
from dp_transforms.plan.window_schedule import WindowSchedule

KeyedCell = tuple[str, int, int]
"""A key, a range of windows, and a shard of users or items."""
_MILLISECOND = 1000  # microseconds: engines cut timestamps to milliseconds


def closing_time(schedule: WindowSchedule, window: int) -> Timestamp:
    """The last millisecond of a window."""
    return Timestamp(micros=schedule.window_end_micros(window) - _MILLISECOND)


def last_closed(schedule: WindowSchedule, time: Timestamp) -> int:
    """The last window whose `closing_time` is this time or an earlier one."""
    after_first = time.micros + _MILLISECOND - schedule.window_end_micros(0)
    return int(after_first // (schedule.slide_seconds * 1_000_000))


class InClosingWindows(beam.PTransform):
    """``((.., window, shard), blob)`` of a stream -> the same in the windows of Beam by which windows are closed."""

    def __init__(self, schedule: WindowSchedule) -> None:
        super().__init__()
        self._schedule = schedule

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        schedule = self._schedule
        windows = FixedWindows(Duration(seconds=schedule.slide_seconds), closing_time(schedule, 0))
        stamped = packed | "Stamp" >> beam.Map(_stamped, schedule)
        stamped.element_type = packed.element_type
        return stamped | "InClosingWindows" >> beam.WindowInto(windows)


def _stamped(
    packed: tuple[Any, bytes], schedule: WindowSchedule, timestamp: Timestamp = beam.DoFn.TimestampParam
) -> TimestampedValue:
    """With the timestamp that it has, or the nearest one in the closing window."""
    (*_, window, _), _ = packed
    end = closing_time(schedule, window).micros
    first = end - schedule.slide_seconds * 1_000_000
    return TimestampedValue(packed, Timestamp(micros=min(max(timestamp.micros, first), end - _MILLISECOND)))


class GroupOnce(beam.PTransform):
    """GroupByKey, whose groups are complete and come once: a second pane of a window is dropped.

    Engines that keep to Beam's model send none, since late elements are dropped; the DirectRunner does (apache/beam
    #19736). A user would count twice in such a window.

    are_started: each group has an empty blob, its start. One without a start is late, and dropped: its window was
    closed before.
    """

    def __init__(self, *, are_started: bool = False) -> None:
        super().__init__()
        self._are_started = are_started

    def expand(self, pairs: beam.PCollection) -> beam.PCollection:
        groups = pairs | "Group" >> beam.GroupByKey()
        once = groups | "Once" >> beam.Filter(_is_whole, self._are_started)
        once.element_type = groups.element_type
        return once


def _is_whole(group: tuple[Any, Iterable[bytes]], are_started: bool, pane: Any = beam.DoFn.PaneInfoParam) -> bool:
    is_late = bool(pane.index) or (are_started and not any(len(blob) == 0 for blob in group[1]))
    if is_late:
        operator_counter(LATE_BATCHES).inc()
    return not is_late
