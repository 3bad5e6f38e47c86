"""Collect: rows with the event time in a field -> batches of events, for input whose elements carry no event time."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from dp_transforms.beam.count_for_operator import EVENTS_REJECTED, operator_counter
from dp_transforms.beam.split_rejected import REJECTED, batches_and_rejected, typed
from dp_transforms.checks import is_number, is_whole
from dp_transforms.event_files import EventFields
from dp_transforms.event_files.times import parse_times
from dp_transforms.event_ids import BadIdError, id_of_value
from dp_transforms.monitoring.event_batch import EventBatch
from dp_transforms.rejected_events import RejectedEvents

_MAX_BATCH = 100_000
_WHOLE, _FRACTION, _TEXT, _MICROS = range(4)  # kinds of times; each is read as one column
_ARROW = {_WHOLE: pa.int64(), _FRACTION: pa.float64(), _TEXT: pa.string(), _MICROS: pa.timestamp("us")}
_BAD_TIME = "time cannot be read"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class CollectRows(beam.PTransform):
    """Bounded rows -> ``(batches, rejected)``: PCollections of `EventBatch` and `RejectedEvents`.

    fields: names of the fields with user, item and time. Times are as in logs (`event_files.times`), or timestamps of
        Beam or Python. Rows without a valid user, item or time are rejected; whether a row is depends on it alone. The
        positions of rejected rows are all 0: a row has no place.
    """

    def __init__(self, fields: EventFields) -> None:
        super().__init__()
        self._fields = fields

    def expand(self, rows: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        return typed(
            rows
            | "IgnoreWindows" >> beam.WindowInto(GlobalWindows())
            | "CollectBatches" >> batches_and_rejected(CollectRowsDoFn(self._fields))
        )


class CollectRowsDoFn(beam.DoFn):
    """Buffers the rows of a bundle."""

    def __init__(self, fields: EventFields) -> None:
        self._fields = fields
        self._rejected_counter = operator_counter(EVENTS_REJECTED)

    def setup(self) -> None:
        names = (self._fields.user, self._fields.item, self._fields.time)
        self._of_row: Callable[[Any], Any] = operator.attrgetter(*names)

    def start_bundle(self) -> None:
        self._clear()
        self._rejected: dict[str, int] = {}

    def process(self, row: Any) -> Iterator[EventBatch]:
        try:
            user, item, time = self._of_row(row)
            user, item = id_of_value(user, "user"), id_of_value(item, "item")
            kind, value = _kind_of(time)
        except BadIdError as error:
            self._reject(error.args[0], 1)
            return
        except Exception:  # a hostile row must not stop the run, and its content must not reach a log
            self._reject("user, item or time cannot be read", 1)
            return
        self._users.append(user)
        self._items.append(item)
        self._kinds.append(kind)
        self._times.append(value)
        if len(self._times) >= _MAX_BATCH:
            yield from self._take_batch()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        everywhere = [GlobalWindow()]
        for batch in self._take_batch():
            yield WindowedValue(batch, Timestamp(micros=int(batch.time_micros.min())), everywhere)
        for reason, count in self._rejected.items():
            self._rejected_counter.inc(count)
            rejected = RejectedEvents("element", [0] * count, reason)
            yield beam.pvalue.TaggedOutput(REJECTED, WindowedValue(rejected, Timestamp(0), everywhere))
        self._rejected = {}

    def _reject(self, reason: str, count: int) -> None:
        self._rejected[reason] = self._rejected.get(reason, 0) + count

    def _take_batch(self) -> Iterator[EventBatch]:
        """The buffered events whose time can be read, if there are any."""
        users, items, times = pa.array(self._users, pa.string()), pa.array(self._items, pa.string()), self._times
        kinds = np.array(self._kinds, dtype=np.int8)
        self._clear()
        micros, good = np.zeros(len(times), np.int64), np.zeros(len(times), np.bool_)
        for kind, arrow_type in _ARROW.items():
            rows = np.flatnonzero(kinds == kind)
            if len(rows):
                column = pa.array([times[row] for row in rows.tolist()], arrow_type)
                parsed = parse_times(column, self._fields.time_unit)
                micros[rows], good[rows] = parsed.micros, parsed.faults == 0
        if bad := int(len(times) - good.sum()):
            self._reject(_BAD_TIME, bad)
        if good.any():
            mask = pa.array(good)
            user, item = users.filter(mask).dictionary_encode(), items.filter(mask).dictionary_encode()
            yield EventBatch(user, item, micros[good])

    def _clear(self) -> None:
        self._users: list[str] = []
        self._items: list[str] = []
        self._kinds: list[int] = []
        self._times: list[Any] = []


def _kind_of(time: Any) -> tuple[int, Any]:
    """How a time is read, and its value for that column, which takes it: one bad row must not spoil a column."""
    if isinstance(time, Timestamp):
        return _MICROS, time.micros
    if isinstance(time, datetime.datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
        return _MICROS, (aware - _EPOCH) // datetime.timedelta(microseconds=1)
    if is_whole(time):
        # Beyond 64 bits it is no time in any unit.
        return _WHOLE, int(time) if -(2**63) <= time < 2**63 else None
    if is_number(time):
        return _FRACTION, float(time)
    if isinstance(time, str):
        return _TEXT, time if time.isascii() else None
    return _TEXT, None
