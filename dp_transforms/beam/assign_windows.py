"""Assign: batches of events -> packed pairs (user, item) by window and shard of users.

Pairs are made distinct before the shuffle, and from here on ids are keyed hashes. With a known domain, events with
other items are left out here.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Duration, Timestamp

from dp_transforms.beam.count_for_operator import (
    EVENTS_OUTSIDE_DOMAIN,
    EVENTS_OUTSIDE_RANGE,
    EVENTS_READ,
    operator_counter,
)
from dp_transforms.beam.load_domain import DomainSource
from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.monitoring.event_batch import EventBatch
from dp_transforms.monitoring.item_pairs import item_pairs_of_events
from dp_transforms.monitoring.stream_settings import StreamSettings
from dp_transforms.monitoring.user_pairs import pairs_of_events
from dp_transforms.run_state.run_part import RunPart
from dp_transforms.window_schedule import WindowSchedule, format_utc

_LOG = logging.getLogger(__name__)
_BOUNDED_GROUPS = 128
_UNBOUNDED_SHARDS = 4


@dataclasses.dataclass(frozen=True)
class Sharding:
    """How the work is cut. Results do not depend on it.

    windows_per_slab: a slab is that many consecutive windows, which travel together, so that cost does not grow with
        the number of windows.
    shards: number of groups of users in a slab, and also of groups of items.
    """

    windows_per_slab: int
    shards: int

    @classmethod
    def choose(cls, schedule: WindowSchedule, *, is_bounded: bool, shards: int | None) -> Sharding:
        """Bounded input: about 128 groups, and fewer shards for more slabs. A stream: one window per slab, 4 shards."""
        if shards is not None and (not isinstance(shards, int) or shards < 1):
            raise ValueError(f"shards must be a whole number >= 1, got {shards!r}. Leave it out for a good default.")
        if not is_bounded:
            return cls(1, shards or _UNBOUNDED_SHARDS)
        return cls.of_windows(schedule.horizon, shards)

    @classmethod
    def of_windows(cls, windows: int, shards: int | None = None) -> Sharding:
        """For bounded input that lies in so many windows."""
        slabs = min(windows, _BOUNDED_GROUPS)
        return cls(-(-windows // slabs), shards or max(1, min(16, _BOUNDED_GROUPS // slabs)))


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
        self._do_fn = PackPairsDoFn(
            settings, noise_key, sharding, stamp=not is_bounded, domain=domain, part=part, by_item=by_item
        )
        self._schedule = settings.schedule
        self._is_bounded = is_bounded

    def expand(self, batches: beam.PCollection) -> beam.PCollection:
        packed = batches | "PackPairs" >> beam.ParDo(self._do_fn).with_output_types(tuple[tuple[int, int], bytes])
        return packed if self._is_bounded else packed | "OneCellPerWindow" >> window_per_slide(self._schedule)


def window_per_slide(schedule: WindowSchedule) -> beam.WindowInto:
    """Beam windows of one slide, for elements whose timestamp is the last instant of a window of the schedule."""
    offset = Timestamp(seconds=schedule.start_seconds % schedule.slide_seconds)
    return beam.WindowInto(FixedWindows(Duration(seconds=schedule.slide_seconds), offset))


class PackPairsDoFn(KeyedDoFn):
    """Adapts `pairs_of_events` and `item_pairs_of_events`.

    Events outside the declared range or domain are counted for the operator.
    """

    _settings: StreamSettings

    def __init__(
        self,
        settings: StreamSettings,
        noise_key: beam.Secret,
        sharding: Sharding,
        *,
        stamp: bool,
        domain: DomainSource | None = None,
        part: RunPart | None = None,
        by_item: bool = False,
    ) -> None:
        super().__init__(settings, noise_key, domain)
        self._sharding = sharding
        self._stamp = stamp
        self._part = part or RunPart.whole(settings.schedule)
        self._by_item = by_item
        self._read = operator_counter(EVENTS_READ)
        self._outside = operator_counter(EVENTS_OUTSIDE_RANGE)
        self._foreign = operator_counter(EVENTS_OUTSIDE_DOMAIN)
        self._has_inside = self._has_outside = self._has_warned = False

    def process(self, batch: EventBatch) -> Iterator[object]:
        schedule = self._settings.schedule
        self._read.inc(len(batch))
        first_window = schedule.first_window(batch.time_micros)
        is_inside = (first_window >= 0) & (first_window < self._part.end)
        is_inside &= first_window + schedule.windows_per_event > self._part.first
        self._outside.inc(int((~is_inside).sum()))
        self._has_inside |= bool(is_inside.any())
        # Elements without a timestamp have a warning of their own.
        self._has_outside |= bool((~is_inside & (batch.time_micros != MIN_TIMESTAMP.micros)).any())
        if self._domain is not None:
            is_known = self._domain.contains(self._keys.hash_items(batch.item.dictionary))[
                batch.item.indices.to_numpy()
            ]
            self._foreign.inc(int((is_inside & ~is_known).sum()))
            batch = batch.where(is_known)
        for slab, shard, packed in self._packed(batch):
            yield for_shard(schedule, slab, shard, packed, stamp=self._stamp)

    def finish_bundle(self) -> None:
        if self._has_inside or not self._has_outside or self._has_warned:
            return
        self._has_warned = True
        schedule = self._settings.schedule
        _LOG.warning(
            "ShiftingHeavyHitters: none of the events that this worker has seen so far lies in the range of the plan,"
            " %s .. %s; such events are skipped. Check the range, and the unit of the times. How many: the counter %s.",
            format_utc(schedule.window_start_micros(self._part.first)),
            format_utc(schedule.window_end_micros(self._part.end - 1)),
            EVENTS_OUTSIDE_RANGE,
        )

    def _packed(self, batch: EventBatch) -> Iterator[tuple[int, int, bytes]]:
        schedule, shards = self._settings.schedule, self._sharding.shards
        if self._by_item:
            for shard, of_items in item_pairs_of_events(batch, schedule, self._keys, shards):
                yield 0, shard, of_items.to_bytes()
            return
        for slab, shard, of_users in pairs_of_events(
            batch,
            schedule,
            self._keys,
            windows_per_slab=self._sharding.windows_per_slab,
            shards=shards,
            first_open=np.full(len(batch), self._part.first) if self._part.first else None,
            end=self._part.end,
        ):
            yield slab, shard, of_users.to_bytes()


def for_shard(schedule: WindowSchedule, slab: int, shard: int, packed: bytes, *, stamp: bool) -> object:
    """The element that sends packed content to one shard of a slab: ``((slab, shard), packed)``.

    stamp: with the last instant of its window as timestamp, for streams, whose slabs are single windows.
    """
    element = ((slab, shard), packed)
    return TimestampedValue(element, max_timestamp(schedule, slab)) if stamp else element


def max_timestamp(schedule: WindowSchedule, window: int) -> Timestamp:
    """The last instant of a window."""
    return Timestamp(micros=schedule.window_end_micros(window) - 1)
