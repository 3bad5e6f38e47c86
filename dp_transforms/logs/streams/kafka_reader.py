"""Reads one partition of a Kafka topic by offsets: from the same offset always the same records.

The value of a record is one JSON object, which may run over several lines. Each is judged alone, by the rules of the
lines of log files. Rejected records are reported by offset, with a reason that contains no part of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_transforms.checks import on_one_line
from dp_transforms.errors import StreamError
from dp_transforms.logs import id_columns
from dp_transforms.logs.json_lines import JsonDecoder
from dp_transforms.logs.log_chunk import EventFields, ReadBlock
from dp_transforms.logs.rejected_events import Rows, reject
from dp_transforms.logs.streams.stream_source import Polled, passed_arrivals
from dp_transforms.logs.text_files import BLANKS, MAX_LINE_BYTES, lines_of
from dp_transforms.stores import kafka_client

if TYPE_CHECKING:
    from dp_transforms.logs.streams.kafka_topic import KafkaPartition

MAX_VALUE_BYTES = MAX_LINE_BYTES
NO_VALUE = "no value"
TOO_LARGE = f"value of more than {MAX_VALUE_BYTES >> 20} MB"
BROKEN_RECORD = "broken record"
NO_ARRIVAL_TIME = "no arrival time"
PRODUCERS_TIME = "its time was set by its producer, not by the broker"

_ASK_SECONDS = 1.0
_CONFIRM_SECONDS = 5.0  # how often a partition without new records is asked whether it still answers
_AT_ONCE = 500  # messages; more of them would make Python look for garbage, among all that the process has
_MAX_MILLIS = 253_402_300_800_000  # 10000-01-01
_NO_TIME, _CREATE_TIME = 0, 1  # kinds of a record's timestamp, as the client numbers them
_OFFSET_IS_GONE = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION"})


class RecordDecoder:
    """Values of records -> events."""

    def __init__(self, fields: EventFields) -> None:
        self._lines = JsonDecoder(fields)

    def decode(self, source: str, values: Sequence[bytes | None], positions: Rows) -> tuple[ReadBlock, Rows]:
        """The events, and which of the values they are.

        values: None for a record without a value. positions: int64[n], their places in ``source``, to report.
        """
        # A value of blanks only is not a value, as a line of blanks only is not a line.
        filled = [b"" if value is None else value.strip(BLANKS + b"\n") for value in values]
        sizes = np.fromiter(map(len, filled), np.int64, len(filled))
        unread = {NO_VALUE: np.flatnonzero(sizes == 0), TOO_LARGE: np.flatnonzero(sizes > MAX_VALUE_BYTES)}
        _, rows = reject(source, len(filled), unread, positions.take)
        # A line feed is a blank between the parts of an object, and breaks a text in it; so does a carriage return.
        lines = b"".join([filled[row].replace(b"\n", b"\r") + b"\n" for row in rows.tolist()])
        columns, is_kept = self._lines.decode(lines_of(lines))
        broken = {**unread, BROKEN_RECORD: rows[~is_kept]}
        return id_columns.events_of(source, columns, rows[is_kept], broken, positions.take)


class KafkaReader:
    """Reads one partition. It connects at the first poll, and again when a poll does not follow the one before."""

    def __init__(self, partition: KafkaPartition, since_micros: int = 0) -> None:
        self._partition, self._topic = partition, partition.topic
        self._since_millis = since_micros // 1_000
        self._decoder = RecordDecoder(self._topic.fields)
        self._kafka = kafka_client.import_confluent_kafka()
        self._consumer: Any = None
        self._next: int | None = None
        self._is_at_end = False
        self._end: int | None = None  # of the log, when `confirm_passed` was first called
        self._confirmed_at = 0.0  # monotonic seconds of the last answer
        self._failing_since: float | None = None
        self._last_error: object = None

    def poll(self, position: str | None, *, max_records: int, max_seconds: float) -> Polled:
        """See `PartitionReader`. Returns no records while brokers restart, or while one shows records but sends none.

        Raises StreamError when this lasts longer than `KafkaTopic.unreachable_seconds`.
        """
        offset = _offset_of(position)
        deadline = time.monotonic() + max_seconds
        # After a jump back a client may still return records that it fetched before: only a new client has none.
        if self._next is None or offset != self._next:
            if self._next is not None:
                self.close()
            if not self._open_at(offset, max(0.1, max_seconds)):
                self._check_patience()
                return Polled(id_columns.empty_batch(), np.zeros(0, np.int64), position, 0, False)
        values, offsets, stamps, asked = list[bytes | None](), list[int](), list[int](), 1
        while asked:
            messages = self._consume(asked, 0.0 if values else max(0.0, deadline - time.monotonic()))
            values += [message.value() for message in messages]
            offsets += [message.offset() for message in messages]
            stamps += [part for message in messages for part in message.timestamp()]
            asked = 0 if len(messages) < asked else min(_AT_ONCE, max_records - len(values))
        if not values:
            if time.monotonic() - self._confirmed_at > _CONFIRM_SECONDS:
                self._ask_watermarks(min(_ASK_SECONDS, max(0.1, max_seconds)))
            self._check_patience()
        kinds, millis = np.array(stamps, np.int64).reshape(-1, 2).T
        return self._polled(values, np.array(offsets, np.int64), kinds, millis, max_records)

    def confirm_end(self) -> bool:
        """See `PartitionReader`. To have reached the end before is not enough: newer records may be on their way."""
        if self._next is None or not self._is_at_end:
            return False
        watermarks = self._ask_watermarks(_ASK_SECONDS)
        return watermarks is not None and watermarks[1] <= self._next

    def confirm_passed(self) -> bool:
        """See `PartitionReader`."""
        if self._next is None:
            return False
        if self._end is None and (watermarks := self._ask_watermarks(_ASK_SECONDS)) is not None:
            self._end = watermarks[1]
        return self._end is not None and self._end <= self._next

    def close(self) -> None:
        consumer, self._consumer, self._next, self._is_at_end = self._consumer, None, None, False
        self._end = None
        if consumer is not None:
            consumer.close()

    def _open_at(self, offset: int | None, seconds: float) -> bool:
        """Whether a broker answers, so that reading starts there. Raises StreamError if the offset is gone."""
        if self._consumer is None:
            self._consumer = self._topic.open_consumer(error_cb=self._note_error)
        watermarks = self._ask_watermarks(seconds)
        if watermarks is not None and offset is None:
            offset = self._first_offset(*watermarks, seconds)
        if watermarks is None or offset is None:
            return False
        if not watermarks[0] <= offset <= watermarks[1]:
            raise self._gone(offset)
        self._consumer.assign([self._topic_partition(offset)])
        self._next = offset
        return True

    def _topic_partition(self, offset: int) -> Any:
        return self._kafka.TopicPartition(self._topic.topic, self._partition.number, offset)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer of the client; None for none or an error, which is noted."""
        try:
            answer = question()
        except self._kafka.KafkaException as error:
            self._note_error(error.args[0])
            return None
        if answer is None:
            self._note_error(None)
        return answer

    def _ask_watermarks(self, seconds: float) -> tuple[int, int] | None:
        """The first offset that the broker has, and the one after its last; None if it does not answer."""
        place = self._topic_partition(0)
        watermarks: tuple[int, int] | None = self._ask(
            lambda: self._consumer.get_watermark_offsets(place, timeout=seconds, cached=False)
        )
        if watermarks is None:
            return None
        if self._next is None or watermarks[1] <= self._next:
            self._confirm()
        else:
            # The records are on their way, or will never come.
            self._is_at_end, self._confirmed_at = False, time.monotonic()
            self._failing_since = self._failing_since or time.monotonic()
        return watermarks

    def _first_offset(self, low: int, high: int, seconds: float) -> int | None:
        """The offset of the first record that arrived since `since_micros`, or ``high`` if there is none below it.

        None if the broker does not answer. It uses its index of times, so that a topic is not read from days before the
        run.
        """
        if self._since_millis <= 0:
            return low
        places = [self._topic_partition(self._since_millis)]
        answer = self._ask(lambda: self._consumer.offsets_for_times(places, timeout=seconds))
        if answer is None:
            return None
        if answer[0].error is not None:
            self._note_error(answer[0].error)
            return None
        offset = int(answer[0].offset)
        return high if offset < 0 else max(low, min(high, offset))

    def _consume(self, count: int, seconds: float) -> list[Any]:
        """Up to ``count`` records; errors and the end of the partition are noted."""
        messages = self._ask(lambda: self._consumer.consume(count, seconds)) or []
        good = [message for message in messages if message.error() is None]
        if good:
            self._next, self._is_at_end = good[-1].offset() + 1, False
            self._confirm()
        for message in messages if len(good) < len(messages) else ():
            trouble = message.error()
            if trouble is None:
                continue
            if trouble.code() == self._kafka.KafkaError._PARTITION_EOF:
                # This offset is behind transaction markers, which are not records.
                self._next, self._is_at_end = max(self._next or 0, message.offset()), message is messages[-1]
                self._confirm()
            elif trouble.name() in _OFFSET_IS_GONE:
                if self._ask_watermarks(_ASK_SECONDS) is None:  # so nobody knows whether it is gone for good
                    raise self._topic.unreachable(self._last_error)
                raise self._gone(self._next or 0)
            else:
                self._note_error(trouble)
        return good

    def _gone(self, offset: int) -> StreamError:
        return StreamError(
            f"the Kafka partition {on_one_line(self._partition.name)} does not have the offset {offset}: its retention"
            " deleted it before it was read, or it has lost records, or was created again. Give the topic a longer"
            " retention, and start a new run."
        )

    def _confirm(self) -> None:
        self._confirmed_at, self._failing_since, self._last_error = time.monotonic(), None, None

    def _note_error(self, error: Any) -> None:
        if kafka_client.error_name(error).startswith("GROUP_"):  # no group is used, so its permissions do not matter
            return
        self._last_error = error
        self._failing_since = self._failing_since or time.monotonic()

    def _check_patience(self) -> None:
        since = time.monotonic() if self._failing_since is None else self._failing_since
        if time.monotonic() - since > self._topic.unreachable_seconds:
            raise self._topic.unreachable(self._last_error)

    def _behind(self) -> int:
        """How many offsets the broker had behind what was read, when it last answered: large ones come in pieces."""
        end = self._consumer.get_watermark_offsets(self._topic_partition(0), timeout=0, cached=True)[1]
        return int(end) - (self._next or 0)

    def _polled(self, values: list[bytes | None], offsets: Rows, kinds: Rows, millis: Rows, max_records: int) -> Polled:
        name, count = self._partition.name, len(values)
        reasons = {NO_ARRIVAL_TIME: np.flatnonzero((kinds == _NO_TIME) | (millis < 0) | (millis >= _MAX_MILLIS))}
        if self._topic.append_times_only:
            reasons[PRODUCERS_TIME] = np.flatnonzero(kinds == _CREATE_TIME)
        rejected, arrived = reject(name, count, reasons, offsets.take)
        if rejected:
            values = [values[row] for row in arrived.tolist()]
            offsets, millis = offsets[arrived], millis[arrived]
        block, rows = self._decoder.decode(name, values, offsets)
        arrivals = millis * 1_000
        return Polled(
            batch=block.batch,
            arrival_micros=arrivals[rows],
            passed_micros=passed_arrivals(arrivals, rows),
            places=offsets[rows],
            position=str(self._next),
            records=count,
            is_at_end=self._is_at_end and self._failing_since is None,
            rejected=(*rejected, *block.rejected),
            is_drained=0 < count < max_records and self._behind() <= count,
        )


def _offset_of(position: str | None) -> int | None:
    """Raises StreamError: nobody begins at the beginning because a position cannot be read."""
    if position is None:
        return None
    if not (position.isdecimal() and len(position) < 20):
        raise StreamError(
            "a stored position is not a position in a Kafka topic. Start a new run, without the stored state."
        )
    return int(position)
