"""Read: a log, or elements of any kind -> batches of events, and the rows that could not be read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow, GlobalWindows, TimestampedValue
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from dp_transforms.beam.metrics import operator_counter
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.event_ids import ID_RULE, BadIdError, fault_reason, id_of_value
from dp_transforms.core.operator_counts import EVENTS_REJECTED, EVENTS_WITHOUT_TIME
from dp_transforms.logs import EventFields, JoinedChunks, LogChunk, read_joined, spread_chunks
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.times import BAD_TIME, TimeColumn, parse_values

_LOG = logging.getLogger(__name__)
_MAX_BATCH = 100_000
REJECTED = "rejected"  # tag of the second output of whatever reads

Getter = Callable[[Any], Any]


class ReadEvents(beam.PTransform):
    """Reads the chunks of a log. Returns ``(batches, rejected)``: PCollections of `EventBatch` and `RejectedEvents`.

    chunks: from `logs.find_log_chunks`, which has checked that the files exist and have the fields.
    workers: so many read at once: large chunks are cut and small ones joined for them. None: each chunk by itself.
    """

    def __init__(
        self,
        chunks: Sequence[LogChunk],
        fields: EventFields,
        *,
        workers: int | None = None,
    ) -> None:
        super().__init__()
        if workers is None:
            self._joined = [JoinedChunks((chunk,)) for chunk in chunks]
        else:
            self._joined = spread_chunks(chunks, fields, workers)
        self._read = beam.FlatMap(_read_chunks, fields)

    def expand(self, begin: beam.pvalue.PBegin) -> tuple[beam.PCollection, beam.PCollection]:
        joined = self._joined
        chunks = begin | "Once" >> beam.Impulse() | "Chunks" >> beam.FlatMap(lambda once: joined)
        chunks.element_type = JoinedChunks  # not one that Beam infers from the values
        if len(joined) > 1:
            chunks = chunks | "SpreadChunks" >> beam.Reshuffle()
        return _batches_and_rejected(chunks, "ReadChunks", self._read)


def _read_chunks(joined: JoinedChunks, fields: EventFields) -> Iterator[object]:
    for block in read_joined(joined, fields):
        for rejected in block.rejected:
            operator_counter(EVENTS_REJECTED).inc(len(rejected.positions))
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        if len(block.batch):
            yield block.batch


def _batches_and_rejected(
    elements: beam.PCollection, label: str, step: beam.ParDo
) -> tuple[beam.PCollection, beam.PCollection]:
    """The outputs of a step that yields `EventBatch` and, tagged `REJECTED`, `RejectedEvents`; with their element
    types, which Beam cannot infer for tagged outputs."""
    outputs = elements | label >> step.with_outputs(REJECTED, main="batches")
    batches, rejected = outputs.batches, outputs[REJECTED]
    batches.element_type, rejected.element_type = EventBatch, RejectedEvents
    return batches, rejected


class CollectEvents(beam.PTransform):
    """Elements with event times -> ``(batches, rejected)``: PCollections of `EventBatch` and `RejectedEvents`.

    user, item: functions from an element to its user and its item. Elements for which one of them is not an id by the
    rule of `event_ids` are rejected; no other element is lost.
    time: a function from an element to its time, and then elements whose time `times.parse_values` cannot read with
    this time_unit are rejected too. None: the timestamp of the element.
    """

    def __init__(self, user: Getter, item: Getter, time: Getter | None = None, time_unit: str | None = None) -> None:
        super().__init__()
        self._collect = beam.ParDo(CollectEventsDoFn(user, item, time, time_unit))

    def expand(self, elements: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        everywhere = elements | "IgnoreWindows" >> beam.WindowInto(GlobalWindows())
        return _batches_and_rejected(everywhere, "CollectBatches", self._collect)


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
        yield TimestampedValue[EventBatch](batch, Timestamp(micros=int(micros.min())))

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


class CollectEventsOfKeys(beam.PTransform):
    """``(key, (user, item))`` or ``(key, EventBatch)`` -> ``(batches, rejected)``: PCollections of
    ``(key, EventBatch)`` and ``(key, RejectedEvents)``.

    Keys are ids by the rule of `event_ids`, as users and items are.
    """

    def expand(self, elements: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        everywhere = elements | "IgnoreWindows" >> beam.WindowInto(GlobalWindows())
        collect = beam.ParDo(_CollectEventsOfKeysDoFn()).with_outputs(REJECTED, main="batches")
        outputs = everywhere | "CollectBatches" >> collect
        batches, rejected = outputs.batches, outputs[REJECTED]
        batches.element_type = convert_to_beam_type(tuple[str, EventBatch])
        rejected.element_type = convert_to_beam_type(tuple[str, RejectedEvents])
        return batches, rejected


class _CollectEventsOfKeysDoFn(beam.DoFn):
    """A `CollectEventsDoFn` for each key of a bundle. Elements without a key are rejected under the empty one."""

    def start_bundle(self) -> None:
        self._of_key: dict[str, CollectEventsDoFn] = {}

    def process(self, element: Any, timestamp: Timestamp = beam.DoFn.TimestampParam) -> Iterator[Any]:
        try:
            key, value = _pair(element)
            key = id_of_value(key, "key")
        except Exception:  # a hostile element must not stop the stream
            key, value = "", None
        if isinstance(value, EventBatch):
            yield key, value
            return
        if key not in self._of_key:
            of_pair = (_user_of_pair, _item_of_pair) if key else (_no_key, _no_key)
            self._of_key[key] = CollectEventsDoFn(*of_pair)
            self._of_key[key].start_bundle()
        for batch in self._of_key[key].process(value, timestamp):
            yield TimestampedValue[tuple[str, EventBatch]]((key, batch.value), batch.timestamp)

    def finish_bundle(self) -> Iterator[Any]:
        for key, collect in self._of_key.items():
            for output in collect.finish_bundle():
                if isinstance(output, beam.pvalue.TaggedOutput):
                    yield beam.pvalue.TaggedOutput(REJECTED, output.value.with_value((key, output.value.value)))
                else:
                    yield output.with_value((key, output.value))


def _user_of_pair(pair: Any) -> Any:
    return _pair(pair)[0]


def _item_of_pair(pair: Any) -> Any:
    return _pair(pair)[1]


def _pair(value: Any) -> Any:
    """Raises BadIdError for all else, also for what could be unpacked: text of two letters, or a set, without order."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise BadIdError("the element is not (key, (user, item))")
    return value


def _no_key(_: Any) -> Any:
    raise BadIdError("the element is not (key, (user, item)), or its key is not " + ID_RULE)
