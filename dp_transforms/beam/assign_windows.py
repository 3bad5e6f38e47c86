"""Assign: batches of events -> packed contributions (user, item) by window and shard of users.

Contributions are made distinct before the shuffle, and from here on users are keyed hashes, and items have one beside
their label. With public items, events with other items are left out here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import FixedWindows, GlobalWindows, SlidingWindows, WindowFn
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from dp_transforms.beam.close_windows import KeyedCell
from dp_transforms.beam.keys import KeyedDoFn
from dp_transforms.beam.metrics import add_counts, operator_counter
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.operator_counts import EVENTS_OF_OTHER_KEYS, EVENTS_OUTSIDE_RANGE
from dp_transforms.core.pack_contributions import PackContributions
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.core.stage import GroupKey
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc

PACKED = tuple[GroupKey, bytes]
_LOG = logging.getLogger(__name__)


def assign_windows(
    run: PlannedRun, noise_key: beam.Secret, step: PackContributions, public_items: PublicItemsSource | None = None
) -> beam.ParDo:
    """`EventBatch` -> ``((range, shard), packed contributions)``, as ``step`` says.

    All in the GlobalWindow: grouping one key over many Beam windows is quadratic on local runners."""
    return beam.ParDo(_PackDoFn(run, step, noise_key, public_items)).with_output_types(PACKED)


def assign_windows_of_keys(
    run: PlannedRun,
    noise_key: beam.Secret,
    step: PackContributions,
    public_items: PublicItemsSource | None = None,
    keys: Collection[str] | None = None,
) -> beam.ParDo:
    """``(key, EventBatch)`` -> ``((key, range, shard), packed contributions)``. keys: others are left out; None: any"""
    do_fn = _PackOfKeysDoFn(keys, run, step, noise_key, public_items)
    return beam.ParDo(do_fn).with_output_types(tuple[KeyedCell, bytes])


class _PackDoFn(KeyedDoFn):
    """Adapts `PackContributions`, and warns of a range in which no event lies."""

    TRANSFORM = "ShiftingHeavyHitters"  # for who is warned

    def __init__(
        self,
        run: PlannedRun,
        step: PackContributions,
        noise_key: beam.Secret,
        public_items: PublicItemsSource | None,
    ) -> None:
        super().__init__(run, noise_key, public_items)
        self._step = step
        self._has_inside = self._has_outside = self._has_warned = False

    def process(self, batch: EventBatch) -> Iterator[Any]:
        counts: Counter[str] = Counter()
        yield from self._step.pack(batch, self._keys, self._public_items, counts)
        add_counts(counts)
        self._has_inside |= counts[EVENTS_OUTSIDE_RANGE] < len(batch)
        if not self._has_inside:  # elements without a timestamp have a warning of their own
            self._has_outside |= bool((batch.time_micros != MIN_TIMESTAMP.micros).any())

    def finish_bundle(self) -> None:
        if self._has_inside or not self._has_outside or self._has_warned:
            return
        self._has_warned = True
        schedule, part = self._step.schedule, self._step.run_part
        _LOG.warning(
            "%s: none of the events that this worker has seen so far lies in the range of the plan, %s .. %s; such"
            " events are skipped. Check the range, and the unit of the times. How many: the counter %s.",
            self.TRANSFORM,
            format_utc(schedule.window_start_micros(part.first)),
            format_utc(schedule.window_end_micros(part.end - 1)),
            EVENTS_OUTSIDE_RANGE,
        )


class _PackOfKeysDoFn(_PackDoFn):
    TRANSFORM = "ThresholdMonitorEvolving"

    def __init__(self, keys: Collection[str] | None, *of_run: Any) -> None:
        super().__init__(*of_run)
        self._of_keys = None if keys is None else frozenset(keys)

    def process(self, element: tuple[str, EventBatch]) -> Iterator[Any]:  # type: ignore[override]
        key, batch = element
        if self._of_keys is not None and key not in self._of_keys:
            operator_counter(EVENTS_OF_OTHER_KEYS).inc(len(batch))
            return
        for cell, blob in super().process(batch):
            yield (key, *cell), blob


def check_windowing(elements: beam.PCollection, schedule: WindowSchedule) -> None:
    """Raises ValueError unless elements are in the GlobalWindow, or in the windows of the plan."""
    if not isinstance(elements.windowing.windowfn, GlobalWindows):
        check_window(elements.windowing.windowfn, schedule)


def check_window(window: WindowFn, schedule: WindowSchedule) -> None:
    """Raises ValueError unless the Beam windows are those of the schedule."""
    if isinstance(window, SlidingWindows):
        size, slide = window.size.micros, window.period.micros
    elif isinstance(window, FixedWindows):
        size = slide = window.size.micros
    else:
        raise ValueError(
            f"windows must be FixedWindows or SlidingWindows, got {type(window).__name__}."
            " Apply the transform to globally windowed input."
        )
    declared = (schedule.window_seconds * MICROS_PER_SECOND, schedule.slide_seconds * MICROS_PER_SECOND)
    aligned = (schedule.start_seconds * MICROS_PER_SECOND - window.offset.micros) % slide == 0
    if (size, slide) != declared or not aligned:
        raise ValueError(
            f"the windows ({size / MICROS_PER_SECOND:g} s every {slide / MICROS_PER_SECOND:g} s, offset"
            f" {window.offset.micros / MICROS_PER_SECOND:g} s) are not those of the plan ({schedule.window_seconds} s"
            f" every {schedule.slide_seconds} s, aligned to its start). Make the plan for these windows, or give none."
        )


def in_global_window(elements: beam.PCollection) -> beam.PCollection:
    """The same elements, by a step only where they are in other windows."""
    if elements.windowing.is_default():
        return elements
    everywhere = elements | "InGlobalWindow" >> beam.WindowInto(beam.window.GlobalWindows())
    everywhere.element_type = elements.element_type
    return everywhere


def max_timestamp(schedule: WindowSchedule, window: int) -> Timestamp:
    """The last instant of a window."""
    return Timestamp(micros=schedule.window_end_micros(window) - 1)
