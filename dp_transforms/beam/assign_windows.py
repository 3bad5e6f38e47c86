"""Assign: batches of events -> packed pairs (user, item) by window and shard of users.

Pairs are made distinct before the shuffle, and from here on ids are keyed hashes. With a known domain, events with
other items are left out here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from dp_transforms.beam.set_up_workers import Counters, DomainSource, KeyedDoFn
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.operator_counts import EVENTS_OUTSIDE_RANGE
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.plan.window_schedule import WindowSchedule, format_utc
from dp_transforms.stages.read_pairs import PackPairs
from dp_transforms.stages.stage import SlabKey

PACKED = tuple[SlabKey, bytes]
_LOG = logging.getLogger(__name__)


def assign_windows(
    run: PlannedRun, noise_key: beam.Secret, step: PackPairs, domain: DomainSource | None = None
) -> beam.ParDo:
    """`EventBatch` -> ``((slab, shard), packed pairs)``, as ``step`` says.

    All in the GlobalWindow: grouping one key over many Beam windows is quadratic on local runners."""
    return beam.ParDo(PackPairsDoFn(run, step, noise_key, domain)).with_output_types(PACKED)


class PackPairsDoFn(KeyedDoFn):
    """Adapts `PackPairs`.

    Events outside the declared range or domain are counted for the operator.
    """

    def __init__(
        self,
        run: PlannedRun,
        step: PackPairs,
        noise_key: beam.Secret,
        domain: DomainSource | None = None,
    ) -> None:
        super().__init__(run, noise_key, domain)
        self._step = step
        self._counters = Counters()
        self._has_inside = self._has_outside = self._has_warned = False

    def process(self, batch: EventBatch) -> Iterator[tuple[SlabKey, bytes]]:
        counts: Counter[str] = Counter()
        yield from self._step.pack(batch, self._keys, self._domain, counts)
        self._counters.add(counts)
        self._has_inside |= counts[EVENTS_OUTSIDE_RANGE] < len(batch)
        if not self._has_inside:  # elements without a timestamp have a warning of their own
            self._has_outside |= bool((batch.time_micros != MIN_TIMESTAMP.micros).any())

    def finish_bundle(self) -> None:
        if self._has_inside or not self._has_outside or self._has_warned:
            return
        self._has_warned = True
        schedule, part = self._step.schedule, self._step.run_part
        _LOG.warning(
            "ShiftingHeavyHitters: none of the events that this worker has seen so far lies in the range of the plan,"
            " %s .. %s; such events are skipped. Check the range, and the unit of the times. How many: the counter %s.",
            format_utc(schedule.window_start_micros(part.first)),
            format_utc(schedule.window_end_micros(part.end - 1)),
            EVENTS_OUTSIDE_RANGE,
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
