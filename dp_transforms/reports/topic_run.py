"""What a topic of reports holds of a run, and how its committed records are read."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.reports.json_lines import encode_report
from dp_transforms.reports.records import ReportFileError, ReportHeader
from dp_transforms.reports.report_writer import check_same_run, report_key
from dp_transforms.reports.topic_records import decode_record
from dp_transforms.stores.kafka_client import error_name, import_confluent_kafka

RUN_ID_FIELD = "shh.run_id"  # a header of each record: shows its run without decoding the record
WAIT_SECONDS = 120.0  # longer than any transaction of a dead worker
CONSUME = 1000
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


class TopicRun:
    """What a topic holds of one run.

    stream: skip other streams of the run; None: take all. keep: keep the reports too, not only their digests.
    """

    def __init__(self, run_id: str, stream: str | None = None, *, keep: bool = False) -> None:
        self._run_id = run_id
        self._stream = stream
        self._keep = keep
        self.header: ReportHeader | None = None
        self.answers: dict[str, bytes] = {}
        self.reports: list[WindowReport] = []
        self.ended: RunEnded | None = None
        self.partition: int | None = None

    def take(self, message: Any) -> None:
        """Raises ReportFileError for a record with the name of this run that does not belong to it."""
        if run_id_of(message) != self._run_id.encode():
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
        elif isinstance(record, RunEnded):
            if self.ended not in (None, record):
                raise ReportFileError(f"the run has two ends. {_START_ANEW}")
            self.ended = record
        else:
            self._take_report(record)

    def _take_report(self, report: WindowReport) -> None:
        key, answer = report_key(report), answer_of(report)
        is_new = key not in self.answers
        if self.answers.setdefault(key, answer) != answer:
            raise ReportFileError(f"a window of the run has two answers. {_START_ANEW}")
        elif self._keep and is_new:
            self.reports.append(report)


def answer_of(report: WindowReport) -> bytes:
    """A digest of the whole content of a report, whatever its format."""
    return hashlib.sha256(encode_report(report).encode()).digest()


def run_id_of(message: Any) -> bytes | None:
    """The run of a record, without decoding it; None for a record of somebody else."""
    found = dict(message.headers() or []).get(RUN_ID_FIELD)
    return found if isinstance(found, bytes) else None


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
        for message in consumer.consume(CONSUME, timeout=0.1):
            if message.error() is None:
                take(message)
            elif message.error().code() != kafka.KafkaError._PARTITION_EOF:
                raise kafka.KafkaException(message.error())
            elif message.offset() >= ends.get(message.partition(), 0):
                left.discard(message.partition())


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
