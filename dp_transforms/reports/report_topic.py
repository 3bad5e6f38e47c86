"""Reports as a Kafka topic: one record per window with heavy items, written in transactions.

When a writer of a run is opened, Kafka from then on refuses all earlier writers of the same run, and drops what they
had not committed. Then the topic is read to its end, so the writer knows all earlier answers before it writes. If two
workers both believe that they own the run, only the one that opened later can write, and it contradicts no answer.

All records of a run are in one partition, in order: header, reports, end. Read them with
``isolation.level=read_committed``. The key of a record is ``RUN|STREAM|START``, so compaction keeps every report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from dp_transforms.errors import StreamError
from dp_transforms.reports.report_records import ReportHeader, RunEnded
from dp_transforms.reports.report_writer import (
    Answer,
    ReportSink,
    ReportWriter,
    StreamContents,
    check_same_run,
    key_of,
)
from dp_transforms.reports.topic_records import (
    CONSUMER,
    RUN_ID_FIELD,
    WAIT_SECONDS,
    TopicFollower,
    TopicRecord,
    TopicRun,
    encode_record,
    kafka_errors,
    read_from_beginning,
)
from dp_transforms.stores.kafka_client import error_name, import_confluent_kafka, make_client

_TRANSACTION_SECONDS = 60  # Kafka aborts a transaction that nobody ends after this time
_SHARED = {"allow.auto.create.topics": False}
_PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "transaction.timeout.ms": _TRANSACTION_SECONDS * 1000,
    "compression.type": "zstd",
    "message.max.bytes": 1_000_000_000,  # the client's most: the broker decides, after compression
}


@dataclasses.dataclass(frozen=True)
class ReportTopic(ReportSink):
    """A topic, which must exist. Several runs and streams can share it.

    bootstrap_servers: host:port, several with commas.
    client_config_file: settings of librdkafka, one NAME=VALUE a line, in a file that every worker has at this path.
    """

    bootstrap_servers: str
    topic: str
    client_config_file: str | None = None

    def __post_init__(self) -> None:
        for name in ("bootstrap_servers", "topic"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name} of a report topic must be text that is not empty.")

    @property
    def name(self) -> str:
        return f"the topic {self.topic!r}"

    def before(self, run_id: str, *, is_fresh: bool) -> StreamContents:
        return (None, [], None) if is_fresh else self.read(run_id)

    def open(self, header: ReportHeader) -> ReportWriter:
        """Starts the run, or continues it, and shuts out its earlier writers. Raises StreamError."""
        header.to_json()
        with kafka_errors(self.topic):
            producer = self._client("Producer", {**_PRODUCER, "transactional.id": _transactional_id(header)})
            # First, so that an error distinguishes a broker that does not answer from one that refuses.
            self.partitions(producer)
            producer.init_transactions(WAIT_SECONDS)  # before reading: this settles all open transactions of the run
            run = TopicRun(header.run_id, header.stream)
            consumer, places = self.consumer({})
            with contextlib.closing(consumer):
                # Also behind the open transactions of others: readers do not see past them.
                read_from_beginning(consumer, places, run.take, self._last_offsets(places))
        if run.header is not None:
            check_same_run(self.name, run.header, header)
        writer = TopicWriter(producer, self, header, run, _partition(header, len(places), run.partition))
        if run.header is None:
            with writer.errors():
                writer.produce(header)
                writer.commit()
        return writer

    def follow(self, run_id: str | None = None) -> TopicFollower:
        """Over one connection. Raises StreamError without a run id."""
        if run_id is None:
            raise StreamError(f"{self.name} may hold many runs. Choose one by its run id.")
        return TopicFollower(self, run_id)

    def consumer(self, own: Mapping[str, object]) -> tuple[Any, list[Any]]:
        """A consumer that reads nothing yet, and the partitions of the topic. own: settings besides `CONSUMER`."""
        consumer = self._client("Consumer", {**CONSUMER, **own})
        try:
            partition = import_confluent_kafka().TopicPartition
            return consumer, [partition(self.topic, index) for index in range(self.partitions(consumer))]
        except BaseException:
            consumer.close()
            raise

    def _last_offsets(self, places: Sequence[Any]) -> dict[int, int]:
        """The offset of the next record, of any writer, by partition."""
        kafka = import_confluent_kafka()
        client = self._client("admin.AdminClient", {})  # kept until its answers are there: without it they never come
        found = client.list_offsets(
            dict.fromkeys(places, kafka.admin.OffsetSpec.latest()),
            isolation_level=kafka.IsolationLevel.READ_UNCOMMITTED,
            request_timeout=30.0,
        )
        return {place.partition: answer.result(timeout=WAIT_SECONDS).offset for place, answer in found.items()}

    def partitions(self, client: Any, seconds: float = 15.0) -> int:
        """How many the topic has. Raises StreamError if there is no such topic, and KafkaException if no broker answers
        in so many seconds."""
        found = client.list_topics(self.topic, timeout=seconds).topics[self.topic]
        if found.error is not None or not found.partitions:
            raise StreamError(
                f"{self.name} cannot be used ({error_name(found.error)}). Create it first, with the"
                " replication and the retention that the reports should have."
            )
        return len(found.partitions)

    def _client(self, kind: str, own: Mapping[str, object]) -> Any:
        return make_client(kind, self.bootstrap_servers, self.client_config_file, {**_SHARED, **own})


class TopicWriter(ReportWriter):
    """Collects records in a transaction; nobody reads them before `commit`. run: all that is committed of it."""

    def __init__(self, producer: Any, sink: ReportTopic, header: ReportHeader, run: TopicRun, partition: int) -> None:
        super().__init__(sink.name, header)
        self.producer = producer
        self._topic, self._run, self._partition = sink.topic, run, partition
        self._in_transaction = False

    def get(self, record: Answer) -> bool | None:
        return self._run.get(record)

    def put_first(self, record: Answer) -> bool:
        self.produce(record)
        return self._run.put_first(record)

    def count(self) -> int:
        return len(self._run.answers)

    def ended(self) -> RunEnded | None:
        return self._run.ended

    def errors(self) -> contextlib.AbstractContextManager[None]:
        return kafka_errors(self._topic)

    def commit(self) -> None:
        if self._in_transaction:
            with self.errors():
                self.producer.commit_transaction(WAIT_SECONDS)
            self._in_transaction = False

    def close(self) -> None:
        if self._in_transaction:
            self._in_transaction = False
            with contextlib.suppress(import_confluent_kafka().KafkaException):
                self.producer.abort_transaction(10.0)
        self.producer.purge()

    def produce(self, record: TopicRecord) -> None:
        kafka = import_confluent_kafka()
        value, run_id = encode_record(record, self.header.run_id), self.header.run_id
        key = f"{record.stream}|header" if isinstance(record, ReportHeader) else key_of(record)
        if not self._in_transaction:
            self.producer.begin_transaction()
            self._in_transaction = True
        while True:
            try:
                self.producer.produce(
                    self._topic,
                    value,
                    f"{run_id}|{key}".encode(),
                    self._partition,
                    headers={RUN_ID_FIELD: run_id.encode()},
                )
                return
            except BufferError:  # the buffer of the client is full: wait until some records are sent
                self.producer.poll(0.1)
            except kafka.KafkaException as error:
                if error.args[0].code() == kafka.KafkaError._STATE:
                    # The transaction has failed. To commit it raises the cause, and commits nothing.
                    self.producer.commit_transaction(WAIT_SECONDS)
                raise


def _transactional_id(header: ReportHeader) -> str:
    """Begins with ``shh-``, which a broker's access list can name."""
    return f"shh-{_digest(header)[:32]}"


def _partition(header: ReportHeader, partitions: int, begun_in: int | None = None) -> int:
    """A run stays where it began, also if the topic has more partitions now."""
    return begun_in if begun_in is not None else int(_digest(header)[32:48], 16) % partitions


def _digest(header: ReportHeader) -> str:
    """Of run id and stream. The length separates the one from the other."""
    run_id = header.run_id.encode()
    return hashlib.sha256(b"%d|%s|%s" % (len(run_id), run_id, header.stream.encode())).hexdigest()
