"""A Kafka broker of one node (KRaft, no ZooKeeper) in a process of its own, for demos, benchmarks and tests."""

from __future__ import annotations

import contextlib
import pathlib
import time
import uuid
from collections.abc import Mapping
from typing import Any, Self

from examples.engines.engine_process import EngineError, EngineProcess, engine_file, free_ports, java

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:{controller_port}
listeners=PLAINTEXT://localhost:{port},CONTROLLER://localhost:{controller_port}
advertised.listeners=PLAINTEXT://localhost:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=12000
log.initial.task.delay.ms=500
log.retention.check.interval.ms=1000
log.retention.ms=-1
"""
KAFKA_LIBRARIES = "kafka/.made"  # `make engines` makes it last, beside the libraries
_START_SECONDS = 120.0
CALL_SECONDS = 60.0  # for one answer of the broker


class KafkaServer:
    """A context manager. The data are in ``folder``, so a restart finds them, on the same ports."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._port, self._controller_port = free_ports(2)
        self._process: EngineProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"localhost:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when the broker answers. Raises EngineError, with the end of its log, if it does not."""
        jars = engine_file(KAFKA_LIBRARIES).parent
        settings = self._folder / "server.properties"
        if not self._data.exists():
            self._data.mkdir(parents=True)
            settings.write_text(
                _SETTINGS.format(port=self._port, controller_port=self._controller_port, data=self._data)
            )
            # What `kafka-storage format` writes, without the seconds of another Java process.
            cluster = uuid.uuid4().hex[:22]
            (self._data / "meta.properties").write_text(f"version=1\ncluster.id={cluster}\nnode.id=1\n")
        self._process = EngineProcess(
            [
                java(),
                "-Xmx256m",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-cp",
                f"{jars}/*",
                "kafka.Kafka",
                str(settings),
            ],
            self._folder / "kafka.log",
        )
        self._process.wait_until(self._answers, _START_SECONDS)

    def stop(self) -> None:
        """Ends the broker in order."""
        if self._process is not None:
            self._process.stop()
        self._process = None

    def admin(self) -> Any:
        """A client; keep it until its answers are there."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _answers(self) -> bool:
        with contextlib.suppress(Exception):
            return bool(self.admin().list_topics(timeout=1).brokers)
        return False

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        timestamp_type: str = "LogAppendTime",
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Returns when the topic can be used. Raises EngineError if the broker does not show it.

        timestamp_type: ``LogAppendTime`` or ``CreateTime``. config: further settings of the topic.
        """
        from confluent_kafka.admin import NewTopic

        settings = {"message.timestamp.type": timestamp_type, **(config or {})}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin = self.admin()
        admin.create_topics([topic])[name].result(timeout=CALL_SECONDS)
        # The controller answers before the broker knows the topic.
        deadline = time.monotonic() + CALL_SECONDS
        while not _is_whole(admin.list_topics(name, timeout=CALL_SECONDS).topics[name], partitions):
            if time.monotonic() > deadline:
                raise EngineError(f"the broker does not show the topic {name} after {CALL_SECONDS:g} s.")
            time.sleep(0.02)


def _is_whole(topic: Any, partitions: int) -> bool:
    """Whether the metadata of a topic has all its partitions, each with a leader."""
    leaders = [part.leader for part in topic.partitions.values() if part.error is None and part.leader >= 0]
    return topic.error is None and len(leaders) == partitions
