"""The records of a topic of reports: a header, then one report per window with heavy items, then the end. What they
tell of a run, and how it is read and followed.

Each is a JSON object: ``{"run_id", "header"}``, the fields of a report beside ``run_id``, or ``{"run_id", "ended"}``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import StreamError
from dp_transforms.reports.report_records import (
    MAX_HEADER_BYTES,
    MAX_RECORD_BYTES,
    EndedFields,
    RecordOfJson,
    ReportFileError,
    ReportHeader,
    RunEnded,
    checked_ended,
    decode_json,
    encode_report,
    in_file_order,
)
from dp_transforms.reports.report_writer import Answer, ReportFollower, ReportNews, check_same_run, key_of
from dp_transforms.stores.kafka_client import error_name, import_confluent_kafka

if TYPE_CHECKING:
    from dp_transforms.reports.report_topic import ReportTopic

TopicRecord: TypeAlias = "ReportHeader | WindowReport | RunEnded"
RUN_ID_FIELD = "shh.run_id"  # a header of each record: shows its run without decoding the record
WAIT_SECONDS = 120.0  # longer than any transaction of a dead worker
_CONSUME = 1000
_START_ANEW = "Another program, or another run of this name, wrote to this topic. Use a new topic and start a new run."
CONSUMER = {
    "group.id": "shh",  # the client requires one; nothing is stored under it
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 20,  # it reads to the end and is closed, so a broker need not wait for more records
    "check.crcs": True,
    "receive.message.max.bytes": 2**31 - 1,  # what could be written can be read
}
_FOLLOWING = {
    "fetch.wait.max.ms": 50,  # a look waits for it: what it asks of the broker comes after it on the same connection
    "auto.offset.reset": "error",  # what was read is there no more: the topic was made anew, or has lost records
}
_SECONDS_TO_ANSWER = 5.0
_MOST_BYTES = MAX_RECORD_BYTES + MAX_HEADER_BYTES
_MOST_READS = 100  # in one reading, if others write faster than this reads


class _AnyRecord(msgspec.Struct):
    run_id: str
    header: msgspec.Raw = msgspec.Raw(b"")
    ended: EndedFields | None = None


class _ReportOfRun(RecordOfJson):
    run_id: str


def encode_record(record: TopicRecord, run_id: str) -> bytes:
    """The value of a record. The same record always has the same bytes. Raises ReportFileError."""
    if isinstance(record, ReportHeader):
        fields = {"header": json.loads(record.to_json())}
    else:
        fields = {"ended": record._asdict()} if isinstance(record, RunEnded) else json.loads(encode_report(record))
    return json.dumps({"run_id": run_id, **fields}, ensure_ascii=False).encode()


def decode_record(value: bytes) -> tuple[str, TopicRecord]:
    """The run id and the record. Raises ReportFileError, which contains nothing of the record."""
    found = decode_json(value, _AnyRecord, _MOST_BYTES)
    if header := bytes(found.header):
        return found.run_id, ReportHeader.from_fields(decode_json(header, dict[str, Any]))
    if found.ended is not None:
        return found.run_id, checked_ended(msgspec.structs.astuple(found.ended))
    return found.run_id, decode_json(value, _ReportOfRun, _MOST_BYTES).report()


class TopicRun:
    """What a topic holds of one run.

    stream: skip other streams of the run; None: take all. keeps: the reports too, and not their digests alone.
    """

    def __init__(self, run_id: str, stream: str | None = None, *, keeps: bool = False) -> None:
        self._run_id, self._stream, self._keeps = run_id, stream, keeps
        self.header: ReportHeader | None = None
        self.partition: int | None = None
        self.reports: list[WindowReport] = []
        self.answers: dict[str, bytes] = {}
        self.ended: RunEnded | None = None

    def get(self, record: Answer) -> bool | None:
        """See `ReportWriter.get`."""
        if isinstance(record, RunEnded):
            return None if self.ended is None else self.ended == record
        known = self.answers.get(key_of(record))
        return None if known is None else known == _digest(record)

    def put_first(self, record: Answer) -> bool:
        if (is_same := self.get(record)) is not None:
            return is_same
        if isinstance(record, RunEnded):
            self.ended = record
        else:
            self.answers[key_of(record)] = _digest(record)
            self.reports += [record] if self._keeps else []
        return True

    def take(self, message: Any) -> None:
        """Raises ReportFileError for a record with the name of this run that does not belong to it."""
        if dict(message.headers() or []).get(RUN_ID_FIELD) != self._run_id.encode():
            return
        run_id, record = decode_record(message.value() or b"")
        if run_id != self._run_id:
            raise ReportFileError(f"a record has two run ids. {_START_ANEW}")
        if self._stream not in (None, record.stream):
            return
        if isinstance(record, ReportHeader):
            if self.header is not None:
                check_same_run("the topic", self.header, record)
            self.header, self.partition = record, message.partition()
        elif not self.put_first(record):
            twice = "the run has two ends" if isinstance(record, RunEnded) else "a window of the run has two answers"
            raise ReportFileError(f"{twice}. {_START_ANEW}")


def _digest(report: WindowReport) -> bytes:
    """Of the whole content of a report, whatever its format."""
    return hashlib.sha256(encode_report(report).encode()).digest()


def read_from_beginning(
    consumer: Any, places: Sequence[Any], take: Callable[[Any], None], ends: Mapping[int, int]
) -> None:
    """Assigns these partitions to the consumer, and gives all their records to `take`, up to the last committed one.

    ends: by partition an offset that must be reached, however long a transaction of another producer hides what is
    before it; none by default. Raises StreamError if that takes too long.
    """
    kafka = import_confluent_kafka()
    consumer.assign([kafka.TopicPartition(each.topic, each.partition, kafka.OFFSET_BEGINNING) for each in places])
    left = {each.partition for each in places}
    deadline = time.monotonic() + WAIT_SECONDS
    while left:
        if time.monotonic() > deadline:
            raise StreamError(
                f"the topic {places[0].topic!r} could not be read to its end in {WAIT_SECONDS:.0f} s. The broker is"
                " slow, or another producer holds a transaction open. Try again later."
            )
        _, reached = _take_some(consumer, take)
        left -= {end.partition() for end in reached if end.offset() >= ends.get(end.partition(), 0)}


def _take_some(consumer: Any, take: Callable[[Any], None]) -> tuple[bool, list[Any]]:
    """Takes what has come. Whether there may be more, and which ends of partitions were among it."""
    kafka = import_confluent_kafka()
    messages, reached, failed = consumer.consume(_CONSUME, timeout=0.1), [], None
    for message in messages:
        if (error := message.error()) is None:
            take(message)
        elif error.code() == kafka.KafkaError._PARTITION_EOF:
            reached.append(message)
        elif error.code() == kafka.KafkaError._AUTO_OFFSET_RESET:
            problem = "was made anew, or has lost records. It is read again from its beginning"
            raise StreamError(f"the topic {message.topic()!r} {problem}.")
        else:
            failed = error  # what came with it is taken first: it comes once
    if failed is not None:
        raise kafka.KafkaException(failed)
    return len(messages) == _CONSUME, reached


@contextlib.contextmanager
def kafka_errors(topic: str) -> Iterator[None]:
    """Turns errors of Kafka into a StreamError of one line, which contains nothing of a record."""
    kafka = import_confluent_kafka()
    try:
        yield
    except ReportFileError as error:
        raise StreamError(f"the topic {topic!r} cannot be used: {error}") from error
    except kafka.KafkaException as error:
        code = error.args[0]
        if code.code() in (kafka.KafkaError._FENCED, kafka.KafkaError.PRODUCER_FENCED):
            raise StreamError(
                f"the topic {topic!r}: another worker has taken over this run. This worker wrote nothing more."
            ) from error
        if code.code() == kafka.KafkaError.MSG_SIZE_TOO_LARGE:
            raise StreamError(
                f"the topic {topic!r} does not take a record as large as a report of this run, which was not"
                " written. Raise its max.message.bytes (docs/deploy.md); then the run can go on."
            ) from error
        raise StreamError(f"the topic {topic!r} cannot be used ({error_name(error)}). Check the brokers.") from error


class TopicFollower(ReportFollower):
    """Keeps a connection."""

    def __init__(self, topic: ReportTopic, run_id: str) -> None:
        self._topic, self._run_id = topic, run_id
        self._run: TopicRun
        self._consumer: Any = None

    def read_new(self) -> ReportNews:
        """After records that do not belong together, and once the topic is another one, it is a first reading again."""
        is_new = self._consumer is None
        with kafka_errors(self._topic.topic):
            if is_new:
                self._begin()
            else:
                self._go_on()
        run = self._run
        reports, run.reports = in_file_order(run.reports), []
        return ReportNews(run.header, reports, run.ended, is_new)

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _begin(self) -> None:
        self._run = TopicRun(self._run_id, keeps=True)
        self._consumer, places = self._topic.consumer(_FOLLOWING)
        try:
            read_from_beginning(self._consumer, places, self._run.take, {})
        except BaseException:
            self.close()
            raise

    def _go_on(self) -> None:
        try:
            # Fails if no broker answers: reading would just wait.
            self._topic.partitions(self._consumer, _SECONDS_TO_ANSWER)
            for _ in range(_MOST_READS):
                may_be_more, _ = _take_some(self._consumer, self._run.take)
                if not may_be_more:
                    return
        except (ReportFileError, StreamError):
            self.close()
            raise
