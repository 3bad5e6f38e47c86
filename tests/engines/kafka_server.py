"""The broker of the tests: what only they ask of it."""

from __future__ import annotations

import contextlib
import pathlib
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from examples.engines import kafka_server
from examples.engines.engine_process import EngineError
from examples.engines.kafka_server import CALL_SECONDS

# Settings of a client by which the end of a partition is found sooner.
QUICK = str(pathlib.Path(__file__).parents[1] / "data" / "quick.properties")


class KafkaServer(kafka_server.KafkaServer):
    """It can be killed, and be given records. Topics and records can be taken away, and transactions given up."""

    def kill(self) -> None:
        """SIGKILL, as in a crash."""
        if self._process is not None:
            self._process.kill()
        self._process = None

    def restart(self) -> None:
        """Starts it again on the same data: after `stop` or `kill`, or while it runs."""
        self.stop()
        self.start()

    def produce(self, topic: str, values: Iterable[bytes | None], partition: int = 0) -> None:
        """Returns when the broker has all of them, in this order."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0})
        for value in values:
            producer.produce(topic, value, partition=partition)
        if left := producer.flush(CALL_SECONDS):
            raise EngineError(f"the broker did not take {left} records in {CALL_SECONDS:g} s.")

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """What retention does: the partition begins at ``before_offset`` from now on."""
        from confluent_kafka import TopicPartition

        target = TopicPartition(topic, partition, before_offset)
        admin = self.admin()
        admin.delete_records([target])[target].result(timeout=CALL_SECONDS)

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """Behind the last record, those of open transactions among them."""
        from confluent_kafka import Consumer, TopicPartition

        settings = {"bootstrap.servers": self.bootstrap, "group.id": "ends", "isolation.level": "read_uncommitted"}
        with contextlib.closing(Consumer({**settings, "log_level": 0})) as consumer:
            _, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=CALL_SECONDS)
        return int(high)

    @contextlib.contextmanager
    def transaction(self, topic: str, *, commit: bool) -> Iterator[Any]:
        """Gives a function that produces a value within a transaction, which is then committed or aborted."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": uuid.uuid4().hex, "log_level": 0})
        producer.init_transactions(CALL_SECONDS)
        producer.begin_transaction()
        yield lambda value, partition=0: producer.produce(topic, value, partition=partition)
        producer.flush(CALL_SECONDS)
        if commit:
            producer.commit_transaction(CALL_SECONDS)
        else:
            producer.abort_transaction(CALL_SECONDS)
