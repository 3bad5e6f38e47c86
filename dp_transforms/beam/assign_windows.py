"""Assign: batches of events -> packed pairs (user, item) by window and shard of users.

Pairs are made distinct before the shuffle, and from here on ids are keyed hashes. With a known domain, events with
other items are left out here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Duration, Timestamp

from dp_transforms.beam.read_events import REJECTED
from dp_transforms.beam.run_steps import Counters, RunInPoolDoFn
from dp_transforms.beam.set_up_workers import DomainSource, KeyedDoFn, KeyedSettings
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.operator_counts import EVENTS_OUTSIDE_RANGE
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.monitor.stream_settings import StreamSettings
from dp_transforms.plan.window_schedule import WindowSchedule, format_utc
from dp_transforms.runs.run_part import RunPart
from dp_transforms.workers.pack_pairs import PackPairs
from dp_transforms.workers.read_pairs import ReadPairsStep

_LOG = logging.getLogger(__name__)


class AssignWindows(beam.PTransform):
    """`EventBatch` -> ``((slab, shard), packed UserPairs)``; with ``by_item`` packed `ItemPairs`, in one slab.

    Bounded input stays in the GlobalWindow, because grouping one key over many Beam windows is quadratic on local
    runners. In a stream each element gets the last instant of its window as timestamp, and a Beam window of one slide,
    which ends together with the window.

    part: of a run that is taken in parts; events outside of its windows are skipped and counted.
    """

    def __init__(
        self,
        settings: StreamSettings,
        noise_key: beam.Secret,
        sharding: Sharding,
        is_bounded: bool,
        domain: DomainSource | None = None,
        part: RunPart | None = None,
        *,
        by_item: bool = False,
    ) -> None:
        super().__init__()
        step = PackPairs(settings.schedule, sharding, part, by_item)
        self._do_fn = PackPairsDoFn(settings, step, noise_key, stamp=not is_bounded, domain=domain)
        self._schedule = settings.schedule
        self._is_bounded = is_bounded

    def expand(self, batches: beam.PCollection) -> beam.PCollection:
        packed = batches | "PackPairs" >> beam.ParDo(self._do_fn).with_output_types(tuple[tuple[int, int], bytes])
        return packed if self._is_bounded else packed | "OneCellPerWindow" >> window_per_slide(self._schedule)


def window_per_slide(schedule: WindowSchedule) -> beam.WindowInto:
    """Beam windows of one slide, for elements whose timestamp is the last instant of a window of the schedule."""
    offset = Timestamp(seconds=schedule.start_seconds % schedule.slide_seconds)
    return beam.WindowInto(FixedWindows(Duration(seconds=schedule.slide_seconds), offset))


class ReadPairs(beam.PTransform):
    """Chunks of a log -> what `AssignWindows` makes of their events, and the rows that cannot be read: ``(packed,
    rejected)``. By the processes of a pool, so that no event comes into this one.

    step: `workers.read_pairs.ReadPairs`. pool: its token.
    """

    def __init__(self, step: ReadPairsStep, pool: str, progress_token: str | None) -> None:
        super().__init__()
        self._do_fn = RunInPoolDoFn(step, pool, progress=progress_token)

    def expand(self, chunks: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        outputs = chunks | "ReadAndPack" >> beam.ParDo(self._do_fn).with_outputs(REJECTED, main="packed")
        packed, rejected = outputs.packed, outputs[REJECTED]
        packed.element_type = convert_to_beam_type(tuple[tuple[int, int], bytes])
        rejected.element_type = RejectedEvents
        return packed, rejected


class PackPairsDoFn(KeyedDoFn):
    """Adapts `PackPairs`.

    Events outside the declared range or domain are counted for the operator.
    """

    def __init__(
        self,
        settings: KeyedSettings,
        step: PackPairs,
        noise_key: beam.Secret,
        *,
        stamp: bool,
        domain: DomainSource | None = None,
    ) -> None:
        super().__init__(settings, noise_key, domain)
        self._step = step
        self._stamp = stamp
        self._counters = Counters()
        self._has_inside = self._has_outside = self._has_warned = False

    def process(self, batch: EventBatch) -> Iterator[object]:
        counts: Counter[str] = Counter()
        for (slab, shard), packed in self._step.pack(batch, self._keys, self._domain, counts):
            yield for_shard(self._step.schedule, slab, shard, packed, stamp=self._stamp)
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


def for_shard(schedule: WindowSchedule, slab: int, shard: int, packed: bytes, *, stamp: bool) -> object:
    """The element that sends packed content to one shard of a slab: ``((slab, shard), packed)``.

    stamp: with the last instant of its window as timestamp, for streams, whose slabs are single windows.
    """
    element = ((slab, shard), packed)
    return TimestampedValue(element, max_timestamp(schedule, slab)) if stamp else element


def max_timestamp(schedule: WindowSchedule, window: int) -> Timestamp:
    """The last instant of a window."""
    return Timestamp(micros=schedule.window_end_micros(window) - 1)
