"""Collect: single elements -> batches of events, for input that does not come in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from dp_transforms.beam.count_for_operator import EVENTS_REJECTED, operator_counter
from dp_transforms.beam.split_rejected import REJECTED, batches_and_rejected, typed
from dp_transforms.event_ids import BadIdError, id_of_value
from dp_transforms.monitoring.event_batch import EventBatch
from dp_transforms.rejected_events import RejectedEvents

_MAX_BATCH = 100_000

Getter = Callable[[Any], Any]


class CollectEvents(beam.PTransform):
    """Elements with event times -> ``(batches, rejected)``: PCollections of `EventBatch` and `RejectedEvents`.

    user, item: functions from an element to its user and its item. Elements for which one of them is not an id by the
    rule of `event_ids` are rejected; no other element is lost.
    """

    def __init__(self, user: Getter, item: Getter) -> None:
        super().__init__()
        self._user = user
        self._item = item

    def expand(self, elements: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        return typed(
            elements
            | "IgnoreWindows" >> beam.WindowInto(GlobalWindows())
            | "CollectBatches" >> batches_and_rejected(CollectEventsDoFn(self._user, self._item))
        )


class CollectEventsDoFn(beam.DoFn):
    """Buffers the elements of a bundle."""

    def __init__(self, user: Getter, item: Getter) -> None:
        self._user = user
        self._item = item
        self._rejected_counter = operator_counter(EVENTS_REJECTED)

    def start_bundle(self) -> None:
        self._users: list[str] = []
        self._items: list[str] = []
        self._times: list[int] = []
        self._rejected: dict[str, list[int]] = {}

    def process(self, element: Any, timestamp: Timestamp = beam.DoFn.TimestampParam) -> Iterator[TimestampedValue]:
        if isinstance(element, EventBatch):  # a batch whose type was lost on the way
            yield element
            return
        try:
            user, item = id_of_value(self._user(element), "user"), id_of_value(self._item(element), "item")
        except BadIdError as error:
            self._rejected.setdefault(error.args[0], []).append(timestamp.micros)
            return
        except Exception:  # a hostile element must not stop the stream, and its content must not reach a log
            self._rejected.setdefault("user or item cannot be read", []).append(timestamp.micros)
            return
        self._users.append(user)
        self._items.append(item)
        self._times.append(timestamp.micros)
        if len(self._times) >= _MAX_BATCH:
            yield self._take_batch()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._times:
            batch = self._take_batch()
            yield WindowedValue(batch.value, batch.timestamp, [GlobalWindow()])
        for reason, positions in self._rejected.items():
            self._rejected_counter.inc(len(positions))
            rejected = RejectedEvents("element", positions, reason)
            stamped = WindowedValue(rejected, Timestamp(micros=min(positions)), [GlobalWindow()])
            yield beam.pvalue.TaggedOutput(REJECTED, stamped)
        self._rejected = {}

    def _take_batch(self) -> TimestampedValue:
        """The buffered events, with the earliest event time as timestamp: the watermark must not pass any of them."""
        batch = EventBatch(
            pa.array(self._users, pa.string()).dictionary_encode(),
            pa.array(self._items, pa.string()).dictionary_encode(),
            np.array(self._times, dtype=np.int64),
        )
        earliest = Timestamp(micros=min(self._times))
        self._users, self._items, self._times = [], [], []
        return TimestampedValue(batch, earliest)
