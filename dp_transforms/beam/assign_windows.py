"""Assign: batches of events -> packed contributions by key, range of windows and shard of users. And when what belongs
to a window is complete.

Contributions are made distinct before the shuffle, and from here on users are keyed hashes, and items have one beside
their label. With public items, events with other items are left out here. A run with one stream has one key, its name.

Bounded input is in the GlobalWindow, and complete at its end. What is sent on a stream is stamped, and put into a
window of Beam that ends a millisecond before that of the plan. A GroupByKey of Beam then gives all of it at once, and
engines drop what comes later. So a timer at the last millisecond comes after all that was grouped, and holds the
watermark back for the report, whose timestamp is the last microsecond.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import FixedWindows, GlobalWindows, SlidingWindows, TimestampedValue, WindowFn
from apache_beam.utils.timestamp import Duration, Timestamp

from dp_transforms.beam.workers import KeyedDoFn, add_counts, operator_counter
from dp_transforms.core.operator_counts import EVENTS_OF_OTHER_KEYS, EVENTS_OUTSIDE_RANGE, LATE_BATCHES
from dp_transforms.core.pack_contributions import PackContributions
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.core.stage import Sharding
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc

KeyedCell = tuple[str, int, int]
"""A key, a range of windows, and a shard of users or items."""
_MILLISECOND = 1000  # microseconds: engines cut timestamps to milliseconds
_LOG = logging.getLogger(__name__)


def assign_windows(
    run: PlannedRun,
    noise_key: beam.Secret,
    cut: Sharding,
    public_items: PublicItemsSource | None,
    *,
    has_keys: bool = False,
    keys: Collection[str] | None = None,
) -> beam.ParDo:
    """`EventBatch` under the stream of the run, or ``(key, EventBatch)``, -> ``(KeyedCell, packed contributions)``. All
    in the GlobalWindow: grouping one key over many Beam windows is quadratic on local runners.

    has_keys: whether events have keys. keys: events of others are left out and counted; None: any key.
    """
    pack = _PackDoFn(run, noise_key, cut, public_items, has_keys, keys)
    return beam.ParDo(pack).with_output_types(tuple[KeyedCell, bytes])


class _PackDoFn(KeyedDoFn):
    """Adapts `PackContributions`, and warns of a range in which no event lies."""

    def __init__(
        self,
        run: PlannedRun,
        noise_key: beam.Secret,
        cut: Sharding,
        public_items: PublicItemsSource | None,
        has_keys: bool,
        keys: Collection[str] | None,
    ) -> None:
        super().__init__(run, noise_key, public_items)
        self._packing, self._has_keys = PackContributions(run.plan.schedule, cut), has_keys
        self._of_keys = None if keys is None else frozenset(keys)
        self._has_inside = self._has_outside = self._has_warned = False

    def process(self, element: Any) -> Iterator[Any]:
        key, batch = element if self._has_keys else (self._run.stream, element)
        if self._of_keys is not None and key not in self._of_keys:
            operator_counter(EVENTS_OF_OTHER_KEYS).inc(len(batch))
            return
        counts: Counter[str] = Counter()
        for cell, blob in self._packing.pack(batch, self._keys, self._public_items, counts):
            yield (key, *cell), blob
        add_counts(counts)
        self._has_inside |= counts[EVENTS_OUTSIDE_RANGE] < len(batch)
        self._has_outside |= counts[EVENTS_OUTSIDE_RANGE] > 0

    def finish_bundle(self) -> None:
        if self._has_inside or not self._has_outside or self._has_warned:
            return
        self._has_warned = True
        schedule = self._run.plan.schedule
        _LOG.warning(
            "None of the events that this worker has seen so far lies in the range of the plan, %s .. %s; such events"
            " are skipped. Check the range, and that elements have timestamps, or times in this unit. How many: the"
            " counter %s.",
            format_utc(schedule.window_start_micros(0)),
            format_utc(schedule.window_end_micros(schedule.horizon - 1)),
            EVENTS_OUTSIDE_RANGE,
        )


def check_windows(windows: WindowFn, schedule: WindowSchedule) -> None:
    """Raises ValueError unless these are those of the plan, or the GlobalWindow."""
    size, slide, start = schedule.window_seconds, schedule.slide_seconds, schedule.start_seconds
    wanted = FixedWindows(size, start) if size == slide else SlidingWindows(size, slide, start)
    if not isinstance(windows, GlobalWindows) and windows != wanted:
        raise ValueError(
            f"the {type(windows).__name__} of the input are not those of the plan ({size} s every {slide} s, aligned to"
            " its start). Make the plan for these windows, or give the input none."
        )


def in_global_window(elements: beam.PCollection) -> beam.PCollection:
    """The same elements, by a step only where they are in other windows."""
    if elements.windowing.is_default():
        return elements
    everywhere = elements | "InGlobalWindow" >> beam.WindowInto(GlobalWindows())
    everywhere.element_type = elements.element_type
    return everywhere


# ---------------------------------------------------------------------------------------------------------------------
# When a window is complete
# ---------------------------------------------------------------------------------------------------------------------


def max_timestamp(schedule: WindowSchedule, window: int) -> Timestamp:
    """The last instant of a window."""
    return Timestamp(micros=schedule.window_end_micros(window) - 1)


def closing_time(schedule: WindowSchedule, window: int) -> Timestamp:
    """The last millisecond of a window."""
    return Timestamp(micros=schedule.window_end_micros(window) - _MILLISECOND)


def last_closed(schedule: WindowSchedule, time: Timestamp) -> int:
    """The last window whose `closing_time` is this time or an earlier one."""
    after_first = time.micros + _MILLISECOND - schedule.window_end_micros(0)
    return int(after_first // (schedule.slide_seconds * MICROS_PER_SECOND))


@beam.ptransform_fn
def in_closing_windows(packed: beam.PCollection, schedule: WindowSchedule) -> beam.PCollection:
    """``(KeyedCell, blob)`` of a stream -> the same in the windows of Beam by which windows are closed."""
    windows = FixedWindows(Duration(seconds=schedule.slide_seconds), closing_time(schedule, 0))
    stamped = packed | "Stamp" >> beam.Map(_stamped, schedule)
    stamped.element_type = packed.element_type
    return stamped | "InClosingWindows" >> beam.WindowInto(windows)


def _stamped(
    packed: tuple[KeyedCell, bytes], schedule: WindowSchedule, timestamp: Timestamp = beam.DoFn.TimestampParam
) -> TimestampedValue:
    """With the timestamp that it has, or the nearest one in the closing window."""
    (_, window, _), _ = packed
    end = closing_time(schedule, window).micros
    first = end - schedule.slide_seconds * MICROS_PER_SECOND
    return TimestampedValue(packed, Timestamp(micros=min(max(timestamp.micros, first), end - _MILLISECOND)))


@beam.ptransform_fn
def with_starts(
    packed: beam.PCollection, schedule: WindowSchedule, cut: Sharding, keys: Sequence[str]
) -> beam.PCollection:
    """Packed columns by `KeyedCell`, and an empty blob for each one that there may be under these keys: those to which
    nothing comes act, too.

    Followed items, and public ones, are tested in every window. On a stream the starts of all windows are put in at the
    beginning, before the watermark can pass one.
    """
    once = packed.pipeline | "Once" >> beam.Impulse()
    starts = once | "Starts" >> beam.FlatMap(_starts, schedule.horizon, cut, keys)
    starts.element_type = packed.element_type
    if not packed.is_bounded:
        starts = starts | "ByWatermark" >> in_closing_windows(schedule)
    return (packed, starts) | "Join" >> beam.Flatten()


def _starts(once: bytes, windows: int, cut: Sharding, keys: Sequence[str]) -> Iterator[tuple[KeyedCell, bytes]]:
    for number in range(-(-windows // cut.windows_per_range)):
        for shard in range(cut.shards):
            yield from (((key, number, shard), b"") for key in keys)


@beam.ptransform_fn
def group_once(pairs: beam.PCollection, *, are_started: bool = False) -> beam.PCollection:
    """GroupByKey, whose groups are complete and come once: a second pane of a window is dropped.

    Engines that keep to Beam's model send none, since late elements are dropped; the DirectRunner does (apache/beam
    #19736). A user would count twice in such a window.

    are_started: each group has an empty blob, its start. One without a start is late, and dropped: its window was
    closed before.
    """
    groups = pairs | "Group" >> beam.GroupByKey()
    once = groups | "Once" >> beam.Filter(_is_whole, are_started)
    once.element_type = groups.element_type
    return once


def _is_whole(group: tuple[Any, Iterable[bytes]], are_started: bool, pane: Any = beam.DoFn.PaneInfoParam) -> bool:
    is_late = bool(pane.index) or (are_started and not any(len(blob) == 0 for blob in group[1]))
    if is_late:
        operator_counter(LATE_BATCHES).inc()
    return not is_late
