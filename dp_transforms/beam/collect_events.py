"""Collect: single elements -> batches of events, for input that does not come in columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from dp_transforms.beam.count_for_operator import operator_counter
from dp_transforms.beam.split_rejected import REJECTED, batches_and_rejected, typed
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.times import BAD_TIME, TimeColumn, parse_values
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.event_ids import BadIdError, fault_reason, id_of_value
from dp_transforms.monitor.operator_counts import EVENTS_REJECTED, EVENTS_WITHOUT_TIME

_LOG = logging.getLogger(__name__)
_MAX_BATCH = 100_000

Getter = Callable[[Any], Any]


class CollectEvents(beam.PTransform):
    """Elements with event times -> ``(batches, rejected)``: PCollections of `EventBatch` and `RejectedEvents`.

    user, item: functions from an element to its user and its item. Elements for which one of them is not an id by the
    rule of `event_ids` are rejected; no other element is lost.
    time: a function from an element to its time, and then elements whose time `times.parse_values` cannot read with
    this time_unit are rejected too. None: the timestamp of the element.
    """

    def __init__(self, user: Getter, item: Getter, time: Getter | None = None, time_unit: str | None = None) -> None:
        super().__init__()
        self._user = user
        self._item = item
        self._time = time
        self._time_unit = time_unit

    def expand(self, elements: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        do_fn = CollectEventsDoFn(self._user, self._item, self._time, self._time_unit)
        return typed(
            elements
            | "IgnoreWindows" >> beam.WindowInto(GlobalWindows())
            | "CollectBatches" >> batches_and_rejected(do_fn)
        )


class CollectEventsDoFn(beam.DoFn):
    """Buffers the elements of a bundle."""

    def __init__(self, user: Getter, item: Getter, time: Getter | None = None, time_unit: str | None = None) -> None:
        self._user = user
        self._item = item
        self._time = time
        self._time_unit = time_unit
        self._rejected_counter = operator_counter(EVENTS_REJECTED)
        self._without_time = operator_counter(EVENTS_WITHOUT_TIME)
        self._has_warned = False

    def start_bundle(self) -> None:
        self._users: list[str] = []
        self._items: list[str] = []
        self._times: list[Any] = []  # microseconds; with a getter, what it returned
        self._stamps: list[int] = []  # with a getter: the timestamps of the elements
        self._rejected: dict[str, list[int]] = {}

    def process(self, element: Any, timestamp: Timestamp = beam.DoFn.TimestampParam) -> Iterator[TimestampedValue]:
        if isinstance(element, EventBatch):  # a batch whose type was lost on the way
            yield element
            return
        try:
            user, item = id_of_value(self._user(element), "user"), id_of_value(self._item(element), "item")
            time = timestamp.micros if self._time is None else self._time(element)
        except BadIdError as error:
            self._rejected.setdefault(error.args[0], []).append(timestamp.micros)
            return
        except Exception:  # a hostile element must not stop the stream, and its content must not reach a log
            self._rejected.setdefault(
                "user or item cannot be read" if self._time is None else "user, item or time cannot be read", []
            ).append(timestamp.micros)
            return
        self._users.append(user)
        self._items.append(item)
        self._times.append(time)
        if self._time is not None:
            self._stamps.append(timestamp.micros)
        if len(self._times) >= _MAX_BATCH:
            yield from self._take_batch()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for batch in self._take_batch():
            yield WindowedValue(batch.value, batch.timestamp, [GlobalWindow()])
        for reason, positions in self._rejected.items():
            self._rejected_counter.inc(len(positions))
            rejected = RejectedEvents("element", positions, reason)
            stamped = WindowedValue(rejected, Timestamp(micros=min(positions)), [GlobalWindow()])
            yield beam.pvalue.TaggedOutput(REJECTED, stamped)
        self._rejected = {}

    def _take_batch(self) -> Iterator[TimestampedValue]:
        """The buffered events, with the earliest event time as timestamp: the watermark must not pass any of them. None
        if there are none whose time can be read."""
        users, items, times = pa.array(self._users, pa.string()), pa.array(self._items, pa.string()), self._read_times()
        is_read = times.faults == 0
        for fault in np.unique(times.faults[~is_read]).tolist():
            reason = "bad time" if fault == BAD_TIME else fault_reason(fault, "time")
            rows = np.flatnonzero(times.faults == fault)
            self._rejected.setdefault(reason, []).extend(np.array(self._stamps)[rows].tolist())
        self._users, self._items, self._times, self._stamps = [], [], [], []
        if not is_read.any():
            return
        micros = times.micros[is_read]
        self._count_without_time(micros)
        if len(micros) < len(users):
            users, items = users.filter(pa.array(is_read)), items.filter(pa.array(is_read))
        batch = EventBatch(users.dictionary_encode(), items.dictionary_encode(), micros)
        yield TimestampedValue(batch, Timestamp(micros=int(micros.min())))

    def _read_times(self) -> TimeColumn:
        if self._time is not None:
            return parse_values(self._times, self._time_unit)
        return TimeColumn(np.array(self._times, dtype=np.int64), np.zeros(len(self._times), np.uint8))

    def _count_without_time(self, micros: npt.NDArray[np.int64]) -> None:
        count = int((micros == MIN_TIMESTAMP.micros).sum())
        if not count:
            return
        self._without_time.inc(count)
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "ShiftingHeavyHitters: elements have no timestamp, so they lie in no window and are skipped. Give them"
                " one (beam.window.TimestampedValue), or name the field with their time: time='...'. How many:"
                " the counter %s.",
                EVENTS_WITHOUT_TIME,
            )
