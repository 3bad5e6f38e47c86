"""A Kafka topic as a stream source. Its partitions are assigned by hand: no consumer group keeps any position.

Only records of committed transactions are read. An event's arrival is its record's timestamp: with
``message.timestamp.type=LogAppendTime`` the broker's own clock (see `KafkaTopic.has_append_times`).

Offsets may have gaps (compaction, transaction markers). What a topic no longer has is never passed over: a position
before its beginning or beyond its end is a StreamError, since the windows would hold something else than before.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.event_files import columns
from dp_transforms.event_files.log_chunk import EventFields, EventFileError, one_line
from dp_transforms.event_streams import kafka_client
from dp_transforms.event_streams.record_formats import RecordDecoder, record_decoder
from dp_transforms.event_streams.stream_source import Polled, StreamError
from dp_transforms.rejected_events import RejectedEvents

NO_ARRIVAL_TIME = "no arrival time"

_OWN_SETTINGS: dict[str, object] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    "check.crcs": True,
}
_RESERVED = (*_OWN_SETTINGS, "bootstrap.servers", "metadata.broker.list", "client.rack", "debug", "log_level")
_PREFETCHED_KILOBYTES = "16384"  # per partition: the client's own default is four times that
_ASK_SECONDS = 8.0
_CONFIRM_SECONDS = 5.0  # a partition from which nothing comes is asked this often whether it still answers
_MAX_MILLIS = 253_402_300_800_000  # 10000-01-01
_MAX_SCHEMA_BYTES = 1 << 20
# Errors that no waiting mends. Any other is given `unreachable_seconds`.
_FATAL = frozenset(
    {
        "_AUTHENTICATION",
        "_FATAL",
        "_SSL",
        "_UNKNOWN_PARTITION",
        "CLUSTER_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION",
        "UNSUPPORTED_SASL_MECHANISM",
    }
)
_OFFSET_IS_GONE = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION"})


@dataclasses.dataclass(frozen=True)
class KafkaTopic:
    """All partitions of a topic, as they are when the pipeline is built.

    bootstrap_servers: ``host:port``, several with commas between.
    record_format, avro_framing: see `record_formats`.
    avro_schema: the schema that the records were written in: its JSON text, or the path of a file with it, which is
        read at once.
    avro_schema_id: with the Confluent framing, the only number in the registry that is accepted; None: any.
    client_config: further settings of librdkafka, such as ``security.protocol``. They are pickled into the job graph,
        which engines store and show: no secret belongs there.
    client_config_file: a properties file (``key=value``) that each worker reads for itself: the place for secrets.
    unreachable_seconds: how long a worker goes on trying while no broker answers, before it gives up.
    """

    bootstrap_servers: str
    topic: str
    fields: EventFields
    record_format: str = "json"
    avro_schema: str | None = dataclasses.field(default=None, repr=False)
    client_config: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, hash=False)
    avro_framing: str = "none"
    avro_schema_id: int | None = None
    client_config_file: str | None = None
    unreachable_seconds: float = 120.0

    def __post_init__(self) -> None:
        if not self.bootstrap_servers or not self.topic:
            raise ValueError("a Kafka source needs bootstrap servers (host:port) and a topic.")
        if not 1 <= self.unreachable_seconds <= 86_400:
            raise ValueError(f"unreachable_seconds must be 1 to 86400, got {self.unreachable_seconds!r}.")
        config = kafka_client.check_client_config(self.client_config, _RESERVED)
        object.__setattr__(self, "client_config", config)
        if self.avro_schema is not None and not self.avro_schema.lstrip().startswith("{"):
            object.__setattr__(self, "avro_schema", _read_schema_file(self.avro_schema))
        self.decoder()

    def decoder(self) -> RecordDecoder:
        """A decoder of the records' values. Raises ValueError for a schema that cannot serve."""
        return record_decoder(self.record_format, self.fields, self.avro_schema, self.avro_framing, self.avro_schema_id)

    def partitions(self) -> Sequence[KafkaPartition]:
        """By number. Raises StreamError within about 10 seconds if no broker answers or there is no such topic."""
        confluent_kafka = kafka_client.import_confluent_kafka()
        consumer = self.open_consumer()
        try:
            topics = consumer.list_topics(self.topic, timeout=_ASK_SECONDS).topics
        except confluent_kafka.KafkaException as error:
            raise self.unreachable(error) from None
        finally:
            consumer.close()
        described = topics.get(self.topic)
        if described is None or described.error is not None or not described.partitions:
            reason = "" if described is None or described.error is None else kafka_client.error_name(described.error)
            raise StreamError(
                f"there is no Kafka topic {one_line(self.topic)!r} that can be read ({reason or 'no partitions'})."
                " Create it, or allow this client to read it."
            )
        return [KafkaPartition(self, number) for number in sorted(described.partitions)]

    def has_append_times(self) -> bool | None:
        """Whether the broker itself sets the times of records (``message.timestamp.type=LogAppendTime``).

        Where producers set them, who writes a wrong time decides in which windows it counts. None: the broker does
        not tell this client. Raises StreamError if no broker answers.
        """
        confluent_kafka = kafka_client.import_confluent_kafka()
        admin = confluent_kafka.admin
        settings = kafka_client.client_settings(self.bootstrap_servers, self.client_config, self.client_config_file, {})
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, self.topic)
        try:
            client = admin.AdminClient(settings, logger=kafka_client.silent_logger())
            answer = client.describe_configs([resource], request_timeout=_ASK_SECONDS)[resource]
            entry = answer.result(timeout=_ASK_SECONDS + 2).get("message.timestamp.type")
        except confluent_kafka.KafkaException as error:
            if "AUTHORIZATION" in kafka_client.error_name(error):
                return None
            raise self.unreachable(error) from None
        except ValueError as error:
            raise kafka_client.refused_settings(settings, error) from None
        return None if entry is None else entry.value == "LogAppendTime"

    def open_consumer(self, **callbacks: Any) -> Any:
        """A consumer without an assignment. Raises StreamError for settings that cannot be."""
        confluent_kafka = kafka_client.import_confluent_kafka()
        settings = kafka_client.client_settings(
            self.bootstrap_servers,
            {
                # The library wants a group, though nothing is ever stored for it.
                "group.id": "shifting-heavy-hitters",
                "queued.max.messages.kbytes": _PREFETCHED_KILOBYTES,
                "reconnect.backoff.max.ms": "2000",
                **self.client_config,
            },
            self.client_config_file,
            _OWN_SETTINGS,
        )
        try:
            return confluent_kafka.Consumer({**settings, **callbacks}, logger=kafka_client.silent_logger())
        except (confluent_kafka.KafkaException, ValueError, TypeError) as error:
            raise kafka_client.refused_settings(settings, error) from None

    def unreachable(self, error: object) -> StreamError:
        return StreamError(
            f"no Kafka broker answers at {one_line(self.bootstrap_servers)} ({kafka_client.error_name(error)})."
            " Check the address, the network and the security settings."
        )


def _read_schema_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_SCHEMA_BYTES + 1)
    except (OSError, ValueError):
        raise EventFileError(path, "the Avro schema cannot be read. Name a file with its JSON text.") from None
    if len(text) > _MAX_SCHEMA_BYTES:
        raise EventFileError(path, "the Avro schema has more than 1 MB.")
    return text


@dataclasses.dataclass(frozen=True)
class KafkaPartition:
    """One partition of a topic."""

    topic: KafkaTopic
    number: int

    @property
    def name(self) -> str:
        return f"{self.topic.topic}:{self.number}"

    def open(self, since_micros: int = 0) -> KafkaReader:
        return KafkaReader(self, since_micros)


def _position(offset: int | None) -> str:
    return json.dumps({"next_offset": offset})


def _parse_position(position: str | None) -> int | None:
    if position is None:
        return None
    try:
        offset = json.loads(position)["next_offset"]
    except (ValueError, KeyError, TypeError):
        offset = -1
    if offset is not None and (not isinstance(offset, int) or offset < 0):
        raise StreamError("a stored position is none of a Kafka topic. Start the job without it.")
    return offset


class KafkaReader:
    """Reads one partition. It connects when it is first polled, and again where a poll does not follow the last one."""

    def __init__(self, partition: KafkaPartition, since_micros: int = 0) -> None:
        self._partition, self._topic = partition, partition.topic
        self._since_millis = since_micros // 1_000
        self._decoder = self._topic.decoder()
        self._errors = kafka_client.import_confluent_kafka()
        self._consumer: Any = None
        self._next: int | None = None
        self._is_at_end = False
        self._confirmed_at = 0.0  # monotonic seconds of the last answer
        self._failing_since: float | None = None
        self._last_error: object = None

    def poll(self, position: str | None, *, max_records: int, max_seconds: float) -> Polled:
        """See `PartitionReader`. While brokers restart it returns nothing; it gives up as `KafkaTopic` says."""
        offset = _parse_position(position)
        deadline = time.monotonic() + max_seconds
        # A client that jumps back may still hand out records that it had fetched: only a new one surely has none.
        if self._next is None or offset != self._next:
            if self._next is not None:
                self.close()
            offset = self._open_at(offset, max(0.1, max_seconds))
            if offset is None:
                self._check_patience()
                return self._polled([], _parse_position(position))
        messages = self._consume(1, max(0.0, deadline - time.monotonic()))
        if messages:
            messages += self._consume(max_records - 1, 0.0)
        elif time.monotonic() - self._confirmed_at > _CONFIRM_SECONDS:
            self._ask_watermarks(min(1.0, max(0.1, max_seconds)))
        if not messages:
            self._check_patience()
        return self._polled(messages, self._next)

    def close(self) -> None:
        consumer, self._consumer, self._next, self._is_at_end = self._consumer, None, None, False
        if consumer is not None:
            consumer.close()

    def _open_at(self, offset: int | None, seconds: float) -> int | None:
        """Where reading starts; None if no broker answers just now. Raises StreamError if the offset is gone."""
        if self._consumer is None:
            self._consumer = self._topic.open_consumer(error_cb=self._note_error)
        watermarks = self._ask_watermarks(seconds)
        if watermarks is None:
            return None
        low, high = watermarks
        if offset is None:
            first = self._first_offset(high, seconds)
            if first is None:
                return None
            offset = max(low, first)
        if not low <= offset <= high:
            raise self._gone(offset, low)
        self._consumer.assign([self._topic_partition(offset)])
        self._next = offset
        return offset

    def _topic_partition(self, offset: int) -> Any:
        return self._errors.TopicPartition(self._topic.topic, self._partition.number, offset)

    def _ask_watermarks(self, seconds: float) -> tuple[int, int] | None:
        """The first offset that is there and the one after the last, by the broker; None if it does not answer."""
        try:
            answer = self._consumer.get_watermark_offsets(self._topic_partition(0), timeout=seconds, cached=False)
        except self._errors.KafkaException as error:
            self._note_error(error.args[0])
            return None
        if answer is None:
            self._note_error(None)
            return None
        self._confirm()
        return int(answer[0]), int(answer[1])

    def _first_offset(self, high: int, seconds: float) -> int | None:
        """Of the first record that arrived since then; ``high`` where there was none below it; None: no answer.

        By the broker's index of its records' times, so that a topic is not read from days before the run.
        """
        if self._since_millis <= 0:
            return 0
        try:
            found = self._consumer.offsets_for_times([self._topic_partition(self._since_millis)], timeout=seconds)[0]
        except self._errors.KafkaException as error:
            self._note_error(error.args[0])
            return None
        if found.error is not None:
            self._note_error(found.error)
            return None
        return high if found.offset < 0 else min(high, int(found.offset))

    def _consume(self, count: int, seconds: float) -> list[Any]:
        """Up to ``count`` records; errors and the end of the partition are noted."""
        if count <= 0:
            return []
        try:
            messages = self._consumer.consume(count, seconds)
        except self._errors.KafkaException as error:
            self._note_error(error.args[0])
            return []
        if not messages:
            return []
        good = [message for message in messages if message.error() is None]
        if good:
            self._next, self._is_at_end = good[-1].offset() + 1, False
            self._confirm()
        for message in messages if len(good) < len(messages) else ():
            trouble = message.error()
            if trouble is None:
                continue
            if trouble.code() == self._errors.KafkaError._PARTITION_EOF:
                # It stands behind markers of transactions, which no record does.
                self._next, self._is_at_end = max(self._next or 0, message.offset()), message is messages[-1]
                self._confirm()
            elif trouble.name() in _OFFSET_IS_GONE:
                watermarks = self._ask_watermarks(1.0)
                raise self._gone(self._next or 0, watermarks[0] if watermarks else None)
            else:
                self._note_error(trouble)
        return good

    def _gone(self, offset: int, low: int | None) -> StreamError:
        name = one_line(self._partition.name)
        if low is None or offset < low:
            return StreamError(
                f"the Kafka partition {name} no longer has the offset {offset}: its retention has deleted it before it"
                " was read. Give the topic a longer retention, and begin a new run."
            )
        return StreamError(
            f"the Kafka partition {name} ends before the offset {offset}: it has lost records or was made anew."
            " Begin a new run."
        )

    def _confirm(self) -> None:
        self._confirmed_at, self._failing_since, self._last_error = time.monotonic(), None, None

    def _note_error(self, error: Any) -> None:
        name = kafka_client.error_name(error)
        if name.startswith("GROUP_"):  # no group is used, so it does not matter who may use it
            return
        self._last_error = error
        if self._failing_since is None:
            self._failing_since = time.monotonic()

    def _check_patience(self) -> None:
        if self._failing_since is None:
            return
        seconds = time.monotonic() - self._failing_since
        if kafka_client.error_name(self._last_error) in _FATAL or seconds > self._topic.unreachable_seconds:
            raise self._topic.unreachable(self._last_error)

    def _polled(self, messages: list[Any], offset: int | None) -> Polled:
        name = self._partition.name
        is_at_end = self._is_at_end and self._failing_since is None
        if not messages:
            return Polled(columns.empty_batch(), np.zeros(0, np.int64), _position(offset), 0, is_at_end)
        count = len(messages)
        offsets = np.fromiter((message.offset() for message in messages), np.int64, count)
        millis = _arrival_millis((message.timestamp() for message in messages), count)
        rejected: list[RejectedEvents] = []
        values = [message.value() for message in messages]
        has_arrival = (millis >= 0) & (millis < _MAX_MILLIS)
        if not has_arrival.all():
            rejected.append(RejectedEvents(name, tuple(offsets[~has_arrival].tolist()), NO_ARRIVAL_TIME))
            values = [values[row] for row in np.flatnonzero(has_arrival).tolist()]
            offsets, millis = offsets[has_arrival], millis[has_arrival]
        decoded = self._decoder.decode(name, values, offsets)
        return Polled(
            batch=decoded.batch,
            arrival_micros=millis[decoded.rows] * 1_000,
            position=_position(offset),
            records=count,
            is_at_end=is_at_end,
            rejected=(*rejected, *decoded.rejected),
        )


def _arrival_millis(timestamps: Iterable[tuple[int, int]], count: int) -> npt.NDArray[np.int64]:
    """From pairs (kind, milliseconds); -1 where the record has none."""
    pairs = np.fromiter(itertools.chain.from_iterable(timestamps), np.int64, 2 * count).reshape(-1, 2)
    return np.where(pairs[:, 0] == 0, -1, pairs[:, 1])
