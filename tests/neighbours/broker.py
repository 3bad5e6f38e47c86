"""A Kafka partition in memory: what `KafkaReader` asks its consumer, answered out of a list of records.

The records become visible as the wall clock of the test goes on. The decoder and the reader are the real ones; real
brokers are in tests/engines.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Any

import confluent_kafka

from tests.neighbours.stepped import WallClock

_KafkaError = confluent_kafka.KafkaError


@dataclasses.dataclass(frozen=True)
class Message:
    at: int
    millis: int
    body: bytes | None
    trouble: Any = None
    kind: int = 2  # its time is that of the broker

    def offset(self) -> int:
        return self.at

    def error(self) -> Any:
        return self.trouble

    def timestamp(self) -> tuple[int, int]:
        return self.kind, self.millis

    def value(self) -> bytes | None:
        return self.body


class Partition:
    """Records with rising offsets. lag_millis: how long after its stamp the broker shows a record."""

    def __init__(self, messages: Sequence[Message], wall: WallClock, lag_millis: int = 0) -> None:
        self.messages, self._wall, self._lag = list(messages), wall, lag_millis
        self.offsets = [message.at for message in self.messages]
        self._shown = 0

    def shown(self) -> int:
        """How many of them: once shown, a record stays so; one that is not holds back those behind it."""
        millis = self._wall.now // 1000 - self._lag
        while self._shown < len(self.messages) and self.messages[self._shown].millis <= millis:
            self._shown += 1
        return self._shown

    def end(self) -> int:
        shown = self.shown()
        return self.offsets[shown - 1] + 1 if shown else 0


class Consumer:
    def __init__(self, partition: Partition) -> None:
        self._partition, self._at, self._is_at_end = partition, 0, False

    def get_watermark_offsets(self, partition: Any, timeout: float, cached: bool) -> tuple[int, int]:
        return 0, self._partition.end()

    def offsets_for_times(self, partitions: list[Any], timeout: float) -> list[Any]:
        (asked,) = partitions
        shown = self._partition.messages[: self._partition.shown()]
        found = next((message.at for message in shown if message.millis >= asked.offset), -1)
        return [confluent_kafka.TopicPartition(asked.topic, asked.partition, found)]

    def assign(self, partitions: list[Any]) -> None:
        self._at, self._is_at_end = bisect.bisect_left(self._partition.offsets, partitions[0].offset), False

    def consume(self, count: int, seconds: float) -> list[Message]:
        end = min(self._partition.shown(), self._at + count)
        messages = self._partition.messages[self._at : end]
        self._at = end
        if messages:
            self._is_at_end = False
        elif not self._is_at_end:
            self._is_at_end = True
            return [Message(self._partition.end(), 0, None, _KafkaError(_KafkaError._PARTITION_EOF))]
        return messages

    def close(self) -> None:
        return
