"""What a reader of Kafka believes while the broker says one thing and the fetched records another."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dp_transforms.event_files import EventFields
from dp_transforms.event_streams import kafka_reader
from dp_transforms.event_streams.kafka_reader import PRODUCERS_TIME, KafkaReader
from dp_transforms.event_streams.kafka_topic import KafkaPartition, KafkaTopic
from dp_transforms.event_streams.stream_source import NEVER, Polled, StreamError

confluent_kafka = pytest.importorskip("confluent_kafka")
MILLIS = 1_506_826_800_000


@dataclasses.dataclass
class Message:
    """A record, or the end of the partition."""

    at: int
    kind: int = 2
    trouble: object = None
    is_broken: bool = False

    def offset(self) -> int:
        return self.at

    def error(self) -> object:
        return self.trouble

    def timestamp(self) -> tuple[int, int]:
        return self.kind, MILLIS + self.at

    def value(self) -> bytes:
        return b"{" if self.is_broken else json.dumps({"user": "u", "item": "i", "timestamp": MILLIS}).encode()


class Broker:
    """A consumer, and the broker behind it: what it shows of its log, and what it gives of it."""

    def __init__(self) -> None:
        self.shown = self.given = 0
        self.is_cut_off = False
        self.kinds: dict[int, int] = {}
        self.broken: tuple[int, ...] = ()
        self._at, self._ended_at = 0, -1

    def get_watermark_offsets(self, partition: object, timeout: float, cached: bool) -> tuple[int, int]:
        if self.is_cut_off:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TRANSPORT))
        return 0, self.shown

    def assign(self, partitions: list) -> None:
        self._at = partitions[0].offset

    def consume(self, count: int, seconds: float) -> list[Message]:
        if self.is_cut_off:
            return []
        end = min(self.given, self._at + count)
        messages = [Message(at, self.kinds.get(at, 2), None, at in self.broken) for at in range(self._at, end)]
        self._at = end
        if not messages and self._at == self.given and self._ended_at != self._at:
            self._ended_at = self._at
            return [Message(self._at, trouble=confluent_kafka.KafkaError(confluent_kafka.KafkaError._PARTITION_EOF))]
        return messages

    def close(self) -> None:
        return


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1000.0]
    monkeypatch.setattr(kafka_reader.time, "monotonic", lambda: moment[0])
    return moment


def reader_of(broker: Broker, monkeypatch: pytest.MonkeyPatch, **more: object) -> KafkaReader:
    monkeypatch.setattr(KafkaTopic, "open_consumer", lambda topic, **callbacks: broker)
    topic = KafkaTopic("b:1", "t", EventFields(time_unit="ms"), **more)  # type: ignore[arg-type]
    return KafkaPartition(topic, 0).open()


class Polls:
    """Polls on, a fifth of a second each, and keeps what had records."""

    def __init__(self, reader: KafkaReader, now: list[float]) -> None:
        self._reader, self._now = reader, now
        self._position: str | None = None
        self.kept: list[Polled] = []

    @property
    def read(self) -> int:
        return sum(polled.records for polled in self.kept)

    def __call__(self, times: int = 1) -> Polled:
        for _ in range(times):
            polled = self._reader.poll(self._position, max_records=100, max_seconds=0.2)
            self._position = polled.position
            self.kept += [polled] if polled.records else []
            self._now[0] += 0.2
        return polled


def test_the_end_counts_only_while_the_broker_shows_nothing_more(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    broker = Broker()
    broker.shown = broker.given = 3
    poll = Polls(reader := reader_of(broker, monkeypatch), now)
    assert poll(3).is_at_end
    assert reader.confirm_end()
    broker.shown = 8  # they are there, and their fetch is under way
    assert poll().is_at_end, "a hint may be old"
    assert not reader.confirm_end()
    assert not poll().is_at_end
    broker.given = 8
    assert poll(3).is_at_end
    assert (poll.read, reader.confirm_end()) == (8, True)
    broker.is_cut_off = True
    assert not reader.confirm_end(), "who is not answered knows nothing"
    assert not poll().is_at_end
    broker.is_cut_off = False
    broker.shown = 9
    assert not poll().is_at_end
    assert not reader.confirm_end()


def test_a_broker_that_shows_records_and_gives_none_is_given_up(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    broker = Broker()
    broker.shown = broker.given = 3
    poll = Polls(reader_of(broker, monkeypatch, unreachable_seconds=60), now)
    assert poll(3).is_at_end
    broker.shown = 4
    poll(10 * 5)
    with pytest.raises(StreamError, match="t:0 has records that no broker gives"):
        poll(70 * 5)
    assert now[0] < 1080


def test_a_fetch_that_takes_its_time_is_waited_for(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    broker = Broker()
    broker.shown = broker.given = 1
    poll = Polls(reader_of(broker, monkeypatch, unreachable_seconds=60), now)
    for number in range(2, 12):
        broker.shown = number
        poll(50 * 5)
        broker.given = number
        assert poll(3).is_at_end
    assert poll.read == 11


def test_records_with_a_producers_time_are_rejected_and_move_no_clock(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    for only, expected in ((True, [0, 2]), (False, [0, 1, 2, 3])):
        broker = Broker()
        broker.shown = broker.given = 4
        broker.kinds = {1: 1, 3: 1}
        poll = Polls(reader_of(broker, monkeypatch, append_times_only=only), now)
        poll(5)
        arrivals = [at for polled in poll.kept for at in polled.arrival_micros.tolist()]
        assert arrivals == [(MILLIS + at) * 1000 for at in expected]
        rejected = [(place, part.reason) for one in poll.kept for part in one.rejected for place in part.positions]
        assert rejected == [(1, PRODUCERS_TIME), (3, PRODUCERS_TIME)] * only
        assert all(polled.passed_micros is None for polled in poll.kept)


def test_a_broken_record_passes_on_when_it_arrived(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    broker = Broker()
    broker.shown = broker.given = 5
    broker.broken = (0, 3, 4)
    poll = Polls(reader_of(broker, monkeypatch), now)
    poll(5)
    (polled,) = poll.kept
    assert polled.passed_micros is not None
    assert polled.arrival_micros.tolist() == [(MILLIS + at) * 1000 for at in (1, 2)]
    assert polled.passed_micros.tolist() == [MILLIS * 1000, NEVER, (MILLIS + 4) * 1000]
    assert polled.places is not None
    assert polled.places.tolist() == [1, 2]
