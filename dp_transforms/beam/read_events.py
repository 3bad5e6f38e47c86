"""Read: a log, or elements of any kind -> batches of events, and the rows that could not be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import named_fields_from_element_type
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from dp_transforms.beam.assign_windows import in_global_window
from dp_transforms.beam.workers import operator_counter
from dp_transforms.core.event_batch import ID_RULE, EventBatch
from dp_transforms.core.operator_counts import EVENTS_REJECTED
from dp_transforms.logs import EventFields, JoinedChunks, LogChunk, find_log_chunks, read_joined, spread_chunks
from dp_transforms.logs.event_ids import BadIdError, fault_reason, id_of_value, label_getter
from dp_transforms.logs.log_chunk import TIME_UNITS
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.times import TimeColumn, parse_values

Getter = Callable[[Any], Any]
_MAX_BATCH = 100_000
REJECTED = "rejected"  # tag of the second output of whatever reads


class ReadEvents(beam.PTransform):
    """Reads a log. Returns ``(batches, rejected)``: PCollections of `EventBatch` and `RejectedEvents`.

    log: a file, a folder or a glob, or what `logs.find_log_chunks` has found of several. Files that are not there, or
    that lack a field, are refused at once.
    workers: so many read at once: large chunks are cut and small ones joined for them. None: each chunk by itself.
    """

    def __init__(self, log: str | Sequence[LogChunk], fields: EventFields, *, workers: int | None = None) -> None:
        super().__init__()
        chunks = find_log_chunks([log], fields) if isinstance(log, str) else log
        if workers is None:
            self._joined = [JoinedChunks((chunk,)) for chunk in chunks]
        else:
            self._joined = spread_chunks(chunks, workers)
        self._read = beam.FlatMap(_read_chunks, fields)

    def expand(self, begin: beam.pvalue.PBegin) -> tuple[beam.PCollection, beam.PCollection]:
        joined = self._joined
        chunks = begin | "Once" >> beam.Impulse() | "Chunks" >> beam.FlatMap(lambda once: joined)
        chunks.element_type = JoinedChunks  # not one that Beam infers from the values
        if len(joined) > 1:
            chunks = chunks | "SpreadChunks" >> beam.Reshuffle()
        return _batches_and_rejected(chunks | "ReadChunks" >> self._read.with_outputs(REJECTED, main="batches"))


def _read_chunks(joined: JoinedChunks, fields: EventFields) -> Iterator[object]:
    for block in read_joined(joined, fields):
        for rejected in block.rejected:
            operator_counter(EVENTS_REJECTED).inc(len(rejected.positions))
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        if len(block.batch):
            yield block.batch


def _batches_and_rejected(
    outputs: beam.pvalue.DoOutputsTuple, of_batches: Any = EventBatch, of_rejected: Any = RejectedEvents
) -> tuple[beam.PCollection, beam.PCollection]:
    """The outputs of a step, with their element types, which Beam cannot infer where they are tagged."""
    batches, rejected = outputs.batches, outputs[REJECTED]
    batches.element_type, rejected.element_type = convert_to_beam_type(of_batches), convert_to_beam_type(of_rejected)
    return batches, rejected


# ---------------------------------------------------------------------------------------------------------------------
# Elements of any kind
# ---------------------------------------------------------------------------------------------------------------------


class CollectEvents(beam.PTransform):
    """Elements with event times -> ``(batches, rejected)``: PCollections of `EventBatch` and `RejectedEvents`.

    user, item, time, time_unit: as in `ShiftingHeavyHitters`. Elements for which user or item is not an id by the rule
    of `event_ids`, or whose time `times.parse_values` cannot read, are rejected; no other element is lost. Raises
    ValueError for a name that is no field of elements with a schema.
    """

    def __init__(
        self,
        user: str | Getter,
        item: str | Sequence[str] | Getter,
        time: str | Getter | None = None,
        time_unit: str | None = None,
    ) -> None:
        super().__init__()
        self._items: Any = item if isinstance(item, (list, tuple)) and item else [item]
        times = [] if time is None else [("time", time)]
        self._fields = [("user", user), *(("item", each) for each in self._items), *times]
        for name, field in self._fields:
            if not (callable(field) or (isinstance(field, str) and field)):
                raise ValueError(f"{name} must be a field name or a function, got {field!r}.")
        if time_unit is not None and (time is None or time_unit not in TIME_UNITS):
            raise ValueError(
                f"time_unit must be one of {', '.join(TIME_UNITS)}, and belongs to time, got {time_unit!r} with"
                f" time={time!r}."
            )
        self._user, self._time, self._time_unit = user, time, time_unit

    def expand(self, elements: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        if self._time is not None and not elements.is_bounded:
            raise ValueError(
                "time cannot be used with unbounded input: its windows close by the timestamps of its elements, so the"
                " source must set these. Leave time out."
            )
        everywhere = in_global_window(elements)
        if elements.element_type is EventBatch:
            return everywhere, elements | "NoneRejected" >> beam.FlatMap(_nothing).with_output_types(RejectedEvents)
        self._check_fields(elements.element_type)
        item = label_getter([getter_of(field, 1) for field in self._items])
        time = None if self._time is None else getter_of(self._time, 2)
        collect = beam.ParDo(CollectEventsDoFn(getter_of(self._user, 0), item, time, self._time_unit))
        return _batches_and_rejected(everywhere | "CollectBatches" >> collect.with_outputs(REJECTED, main="batches"))

    def _check_fields(self, element_type: Any) -> None:
        """Raises ValueError for a name that is no field of elements with a schema."""
        row_type = RowTypeConstraint.from_user_type(element_type) if isinstance(element_type, type) else element_type
        if not isinstance(row_type, RowTypeConstraint):
            return
        names = [name for name, _ in named_fields_from_element_type(row_type)]
        for flag, field in self._fields:
            if isinstance(field, str) and field not in names:
                raise ValueError(
                    f"{flag}={field!r} is not a field of the input, which has {', '.join(names)}."
                    " Name one of them, or give a function."
                )


def _nothing(batch: EventBatch) -> tuple[RejectedEvents, ...]:
    return ()


def getter_of(field: str | Getter, position: int) -> Getter:
    """One rule for the user, the item and the time of an element: a function is asked; a mapping by its key; a plain
    tuple or list is ``(user, item)``, by position; all else, such as rows and NamedTuples, by the name of an attribute.

    A step that sets timestamps often loses the type of elements, so each is looked at: a NamedTuple (item, user) must
    not be read by position."""
    if not isinstance(field, str):
        return field

    def get(element: Any) -> Any:
        if isinstance(element, Mapping):
            return element[field]
        if not isinstance(element, (tuple, list)) or hasattr(element, "_fields"):
            return getattr(element, field)
        if len(element) != 2:
            raise ValueError("the element is not a pair (user, item).")
        return element[position]

    return get


@beam.ptransform_fn
def collect_events_of_keys(elements: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
    """``(key, (user, item))`` or ``(key, EventBatch)`` -> ``(batches, rejected)``: PCollections of
    ``(key, EventBatch)`` and ``(key, RejectedEvents)``. Keys are ids by the rule of `event_ids`, as users and items
    are; what has none is rejected under the empty one."""
    collect = beam.ParDo(_CollectEventsOfKeysDoFn()).with_outputs(REJECTED, main="batches")
    outputs = in_global_window(elements) | "CollectBatches" >> collect
    return _batches_and_rejected(outputs, tuple[str, EventBatch], tuple[str, RejectedEvents])


class CollectEventsDoFn(beam.DoFn):
    """Buffers the elements of a bundle."""

    def __init__(self, user: Getter, item: Getter, time: Getter | None = None, time_unit: str | None = None) -> None:
        self._user, self._item, self._time, self._time_unit = user, item, time, time_unit

    def start_bundle(self) -> None:
        self._buffers: dict[str, _Buffer] = {}

    def process(self, element: Any, timestamp: Timestamp = beam.DoFn.TimestampParam) -> Iterator[Any]:
        if isinstance(element, EventBatch):  # a batch whose type was lost on the way
            yield element
            return
        for batch, stamp in self._collect("", element, timestamp):
            yield TimestampedValue[EventBatch](batch, stamp)

    def finish_bundle(self) -> Iterator[Any]:
        for key, buffer in self._buffers.items():
            for batch, stamp in self._take(buffer):
                yield WindowedValue(self._under(key, batch), stamp, [GlobalWindow()])
            for reason, positions in buffer.rejected.items():
                operator_counter(EVENTS_REJECTED).inc(len(positions))
                rejected = self._under(key, RejectedEvents("element", positions, reason))
                stamped = WindowedValue(rejected, Timestamp(micros=min(positions)), [GlobalWindow()])
                yield beam.pvalue.TaggedOutput(REJECTED, stamped)
        self._buffers = {}

    def _under(self, key: str, value: Any) -> Any:
        return value

    def _collect(self, key: str, element: Any, timestamp: Timestamp) -> Iterator[tuple[EventBatch, Timestamp]]:
        buffer = self._buffers.setdefault(key, _Buffer())
        try:
            user, item = id_of_value(self._user(element), "user"), id_of_value(self._item(element), "item")
            time = timestamp.micros if self._time is None else self._time(element)
        except BadIdError as error:
            buffer.reject(error.args[0], [timestamp.micros])
        except Exception:  # a hostile element must not stop the stream, and its content must not reach a log
            what = "user or item" if self._time is None else "user, item or time"
            buffer.reject(f"{what} cannot be read", [timestamp.micros])
        else:
            buffer.events.append((user, item, time, timestamp.micros))
            if len(buffer.events) >= _MAX_BATCH:
                yield from self._take(buffer)

    def _take(self, buffer: _Buffer) -> Iterator[tuple[EventBatch, Timestamp]]:
        """The buffered events, with the earliest event time as timestamp: the watermark must not pass any of them. None
        if there are none whose time can be read."""
        if not buffer.events:
            return
        users, items, times, stamps = zip(*buffer.events, strict=True)
        buffer.events = []
        at = np.array(stamps, np.int64)
        if self._time is None:
            read = TimeColumn(at, np.zeros(len(at), np.uint8))
        else:
            read = parse_values(times, self._time_unit)
        for fault in np.unique(read.faults[read.faults != 0]).tolist():
            buffer.reject(fault_reason(fault, "time"), at[read.faults == fault].tolist())
        is_read = read.faults == 0
        if not is_read.any():
            return
        kept, micros = pa.array(is_read), read.micros[is_read]
        user, item = (pa.array(ids, pa.string()).filter(kept).dictionary_encode() for ids in (users, items))
        yield EventBatch(user, item, micros), Timestamp(micros=int(micros.min()))


class _Buffer:
    """events: user, item, time, which is anything that a function returned, and the timestamp in microseconds.
    rejected: timestamps by reason."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Any, int]] = []
        self.rejected: dict[str, list[int]] = {}

    def reject(self, reason: str, stamps: list[int]) -> None:
        self.rejected.setdefault(reason, []).extend(stamps)


class _CollectEventsOfKeysDoFn(CollectEventsDoFn):
    def __init__(self) -> None:
        super().__init__(lambda pair: _pair(pair)[0], lambda pair: _pair(pair)[1])

    def process(self, element: Any, timestamp: Timestamp = beam.DoFn.TimestampParam) -> Iterator[Any]:
        try:
            key, value = _pair(element)
            key = id_of_value(key, "key")
        except Exception:  # a hostile element must not stop the stream
            reason = f"the element is not (key, (user, item)), or its key is not {ID_RULE}"
            self._buffers.setdefault("", _Buffer()).reject(reason, [timestamp.micros])
            return
        if isinstance(value, EventBatch):
            yield key, value
            return
        for batch, stamp in self._collect(key, value, timestamp):
            yield TimestampedValue[tuple[str, EventBatch]]((key, batch), stamp)

    def _under(self, key: str, value: Any) -> Any:
        return key, value


def _pair(value: Any) -> Any:
    """Raises BadIdError for all else, also for what could be unpacked: text of two letters, or a set, without order."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise BadIdError("the element is not (key, (user, item))")
    return value
