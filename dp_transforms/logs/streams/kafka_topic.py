"""A Kafka topic as a stream source. Its partitions are assigned by hand: no consumer group keeps any position.

Only records of committed transactions are read. The arrival of an event is the timestamp of its record: with
``message.timestamp.type=LogAppendTime`` the broker's own clock. Whose clock closes windows, and whether a topic keeps
all records, is asked before a run begins (`check_topic`).

Offsets may have gaps (transaction markers). Once reading has begun, records that the topic no longer has are never
skipped: a stored offset before its beginning or after its end is a StreamError, because the windows would have other
contents than before. Nobody can notice what compaction removes, so a topic that is read must not be compacted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from dp_transforms.checks import on_one_line
from dp_transforms.errors import StreamError
from dp_transforms.logs.log_chunk import EventFields
from dp_transforms.logs.streams.kafka_reader import KafkaReader
from dp_transforms.logs.streams.partition_progress import ARRIVAL, StreamClock
from dp_transforms.stores import kafka_client

_OWN_SETTINGS: dict[str, object] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    "check.crcs": True,
}
_DEFAULT_SETTINGS: dict[str, object] = {
    "group.id": "shifting-heavy-hitters",  # the library requires one, although nothing is ever stored for it
    "queued.max.messages.kbytes": "16384",  # per partition; the client's default is four times as much
    "fetch.queue.backoff.ms": "20",  # with a full queue of large records the client fetched nothing for a second
    "reconnect.backoff.max.ms": "2000",
}
_ASK_SECONDS = 8.0


@dataclasses.dataclass(frozen=True)
class KafkaTopic:
    """All partitions of a topic, as they are when the pipeline is built. What is added later is not read.

    bootstrap_servers: ``host:port``, several with commas between.
    client_config_file: a properties file (``key=value``) with more settings of librdkafka, such as
        ``security.protocol``. Each worker reads it itself, since engines store and show the job graph.
    unreachable_seconds: how long a worker keeps trying while no broker answers, before it gives up.
    append_times_only: reject records whose time was set by their producer. A topic that was changed to LogAppendTime
        still has such records from before. Give it with the arrival clock, unless no producer is a user's device:
        one producer with a wrong time makes events of others late. `check_topic` asks the broker.
    first_partitions: read so many alone: those that the run was begun with. None: all.
    """

    bootstrap_servers: str
    topic: str
    fields: EventFields
    client_config_file: str | None = None
    unreachable_seconds: float = 120.0
    append_times_only: bool = False
    first_partitions: int | None = None

    def __post_init__(self) -> None:
        if not self.bootstrap_servers or not self.topic:
            raise ValueError("a Kafka source needs bootstrap servers (host:port) and a topic.")
        if not 1 <= self.unreachable_seconds <= 86_400:
            raise ValueError(f"unreachable_seconds must be 1 to 86400, got {self.unreachable_seconds!r}.")

    def fingerprint(self) -> str:
        """See `StreamSource`. Servers and clients may change; what is read from a record may not."""
        return json.dumps([self.topic, self.fields.identity, self.append_times_only], sort_keys=True)

    def partitions(self) -> Sequence[KafkaPartition]:
        """In the order of their numbers. Raises StreamError in about 10 s if no broker answers or there is no topic."""
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
                f"there is no Kafka topic {on_one_line(self.topic)!r} that can be read ({reason or 'no partitions'})."
                " Create it, or allow this client to read it."
            )
        numbers = sorted(described.partitions)
        wanted = self.first_partitions or len(numbers)
        if numbers[:wanted] != list(range(wanted)):
            raise StreamError(
                f"the Kafka topic {on_one_line(self.topic)} has {len(numbers)} partitions, and this run reads {wanted}."
                " Bring the others back; if that cannot be, this run ends here."
            )
        return [KafkaPartition(self, number) for number in range(wanted)]

    def settings(self) -> dict[str, str]:
        """What the broker tells this client of the topic; nothing if it may not ask. Raises StreamError if no broker
        answers."""
        confluent_kafka = kafka_client.import_confluent_kafka()
        admin = confluent_kafka.admin
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, self.topic)
        try:
            # It must live until the answer.
            client = kafka_client.make_client("admin.AdminClient", self.bootstrap_servers, self.client_config_file)
            (answer,) = client.describe_configs([resource], request_timeout=_ASK_SECONDS).values()
            entries = answer.result(timeout=_ASK_SECONDS + 2)
        except confluent_kafka.KafkaException as error:
            if "AUTHORIZATION" in kafka_client.error_name(error):
                return {}
            raise self.unreachable(error) from None
        return {name: entry.value for name, entry in entries.items()}

    def open_consumer(self, **callbacks: Any) -> Any:
        """A consumer without an assignment. Raises StreamError for settings that the client refuses."""
        own = {**_OWN_SETTINGS, **callbacks}
        return kafka_client.make_client(
            "Consumer", self.bootstrap_servers, self.client_config_file, own, _DEFAULT_SETTINGS
        )

    def unreachable(self, error: object) -> StreamError:
        return StreamError(
            f"no Kafka broker answers at {on_one_line(self.bootstrap_servers)} ({kafka_client.error_name(error)}), or"
            f" it does not send what {on_one_line(self.topic)} has. Check the address, the network, the security"
            " settings, and the leaders of the topic."
        )


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


def check_topic(source: KafkaTopic, clock: StreamClock) -> None:
    """Raises StreamError for a topic from which records vanish, or of which producers could move the clock, and if no
    broker answers. What the broker does not tell is taken for good: records with a producer's time are rejected."""
    said, topic = source.settings(), source.topic
    if "compact" in said.get("cleanup.policy", ""):
        raise StreamError(
            f"the topic {topic} is compacted (cleanup.policy): old events vanish from it, so a restart would count"
            " other events. Set cleanup.policy=delete, or copy it to another topic."
        )
    is_asked = clock.clock == ARRIVAL and source.append_times_only
    if is_asked and said.get("message.timestamp.type", "LogAppendTime") != "LogAppendTime":
        raise StreamError(
            f"producers set the times of records in the topic {topic}, so that one of them could close windows for all."
            f" Let the broker do it: kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config"
            " message.timestamp.type=LogAppendTime (the records that are there already are then rejected). If no"
            " producer is a user's device, give --clock producer (append_times_only=False)."
        )
