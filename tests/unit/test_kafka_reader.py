"""What a reader of Kafka believes while the broker says one thing and the fetched records another."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams import kafka_reader
from dp_transforms.logs.streams.kafka_reader import NO_ARRIVAL_TIME, PRODUCERS_TIME, KafkaReader
from dp_transforms.logs.streams.kafka_topic import KafkaPartition, KafkaTopic
from dp_transforms.logs.streams.stream_source import NEVER, Polled

confluent_kafka = pytest.importorskip("confluent_kafka")
MILLIS = 1_506_826_800_000


@dataclasses.dataclass
class Message:
    """A record, or the end of the partition."""

    at: int
    kind: int = 2
    trouble: object = None
    is_broken: bool = False
    millis: int | None = None

    def offset(self) -> int:
        return self.at

    def error(self) -> object:
        return self.trouble

    def timestamp(self) -> tuple[int, int]:
        return self.kind, MILLIS + self.at if self.millis is None else self.millis

    def value(self) -> bytes:
        return b"{" if self.is_broken else json.dumps({"user": "u", "item": "i", "timestamp": MILLIS}).encode()


class Broker:
    """A consumer, and the broker behind it: what it shows of its log, and what it gives of it.

    low: the first offset that is still there. markers: how many offsets at its end hold markers of transactions.
    """

    def __init__(self) -> None:
        self.low = self.shown = self.given = self.markers = 0
        self.is_cut_off = False
        self.kinds: dict[int, int] = {}
        self.millis: dict[int, int] = {}
        self.broken: tuple[int, ...] = ()
        self.first_at_time: dict[int, int] = {}  # offset by milliseconds
        self.waits: list[float] = []  # seconds, of each call that asked for records
        self._at, self._ended_at = 0, -1
        self._fetched: list[Message] = []  # by a consumer that is not closed

    def get_watermark_offsets(self, partition: object, timeout: float, cached: bool) -> tuple[int, int]:
        if self.is_cut_off:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TRANSPORT))
        return self.low, self.shown

    def offsets_for_times(self, partitions: list, timeout: float) -> list:
        (asked,) = partitions
        return [confluent_kafka.TopicPartition("t", 0, self.first_at_time[asked.offset])]

    def assign(self, partitions: list) -> None:
        self._at = partitions[0].offset

    def consume(self, count: int, seconds: float) -> list[Message]:
        assert count > 0, "there is nothing to ask for"
        self.waits.append(seconds)
        if self.is_cut_off:
            return []
        assert self._at >= self.low, "auto.offset.reset is error"
        messages, self._fetched = self._fetched[:count], self._fetched[count:]
        end = min(self.given, self._at + count - len(messages))
        messages += [self._message(at) for at in range(self._at, end)]
        self._at = end
        if not messages and self._at == self.given and self._ended_at != self._at:
            self._ended_at = self._at
            return [end_of_partition(self._at + self.markers)]
        if not self._fetched and end < self.given:
            self._fetched, self._at = [self._message(end)], end + 1
        return messages

    def _message(self, at: int) -> Message:
        return Message(at, self.kinds.get(at, 2), None, at in self.broken, self.millis.get(at))

    def close(self) -> None:
        self._fetched, self._ended_at = [], -1


def end_of_partition(at: int) -> Message:
    return Message(at, trouble=confluent_kafka.KafkaError(confluent_kafka.KafkaError._PARTITION_EOF))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1000.0]
    monkeypatch.setattr(kafka_reader.time, "monotonic", lambda: moment[0])
    return moment


def reader_of(broker: Broker, monkeypatch: pytest.MonkeyPatch, since_micros: int = 0, **more: object) -> KafkaReader:
    monkeypatch.setattr(KafkaTopic, "open_consumer", lambda topic, **callbacks: broker)
    topic = KafkaTopic("b:1", "t", EventFields(time_unit="ms"), **more)  # type: ignore[arg-type]
    return KafkaPartition(topic, 0).open(since_micros)


def offsets_of(polled: Polled) -> list[int]:
    return [] if polled.places is None else polled.places.tolist()


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
    with pytest.raises(StreamError, match="t:0 has records that no broker sends"):
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


# ---------------------------------------------------------------------------------------------------------------------
# Positions
# ---------------------------------------------------------------------------------------------------------------------


def position(offset: int) -> str:
    return json.dumps({"next_offset": offset})


def test_a_poll_from_an_earlier_position_gives_nothing_that_was_fetched_before(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    """A client that is assigned anew may still hand out what it had fetched."""
    broker = Broker()
    broker.shown = broker.given = 9
    reader = reader_of(broker, monkeypatch)
    first = reader.poll(None, max_records=3, max_seconds=0.2)
    assert (offsets_of(first), first.position) == ([0, 1, 2], position(3)), "it has fetched one more than it gave"
    again = reader.poll(position(1), max_records=3, max_seconds=0.2)
    assert (offsets_of(again), again.position) == ([1, 2, 3], position(4))
    assert offsets_of(reader.poll(position(4), max_records=3, max_seconds=0.2)) == [4, 5, 6]


@pytest.mark.parametrize("max_records", [1, 2, 9])
def test_a_poll_waits_for_its_first_record_alone(
    monkeypatch: pytest.MonkeyPatch, now: list[float], max_records: int
) -> None:
    """What has come is given at once: a slow partition is not read in steps of seconds."""
    broker = Broker()
    broker.shown = broker.given = 3
    polled = reader_of(broker, monkeypatch).poll(None, max_records=max_records, max_seconds=0.25)
    assert offsets_of(polled) == list(range(min(3, max_records)))
    assert broker.waits == [0.25, 0.0][:max_records]


def test_what_retention_has_deleted_is_never_passed_over(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    broker = Broker()
    broker.low, broker.shown, broker.given = 5, 9, 9
    beginning = reader_of(broker, monkeypatch).poll(None, max_records=2, max_seconds=0.2)
    assert offsets_of(beginning)[0] == 5, "the first that is still there"
    for offset, message in ((4, "no longer has the offset 4"), (10, "ends before the offset 10")):
        with pytest.raises(StreamError, match=message):
            reader_of(broker, monkeypatch).poll(position(offset), max_records=2, max_seconds=0.2)
    for offset, records in ((5, [5, 6]), (9, [])):
        broker.close()
        polled = reader_of(broker, monkeypatch).poll(position(offset), max_records=2, max_seconds=0.2)
        assert offsets_of(polled) == records


@pytest.mark.parametrize(
    ("found", "begins_at"), [(0, 2), (1, 2), (4, 4), (8, 8), (9, 8), (-1, 8)], ids=lambda offset: str(offset)
)
def test_reading_begins_at_the_first_record_that_may_count(
    monkeypatch: pytest.MonkeyPatch, now: list[float], found: int, begins_at: int
) -> None:
    """-1: there is none; 9: it came after the end of the log was asked for."""
    broker = Broker()
    broker.low, broker.shown, broker.given, broker.first_at_time = 2, 8, 8, {MILLIS: found}
    reader = reader_of(broker, monkeypatch, MILLIS * 1000 + 999)
    polled = reader.poll(None, max_records=2, max_seconds=0.2)
    assert offsets_of(polled)[:1] == ([begins_at] if begins_at < 8 else [])
    assert polled.position == position(begins_at + polled.records)


def test_markers_of_transactions_are_passed(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    """The last offset holds the marker of a commit: no record stands there, and the end lies behind it."""
    broker = Broker()
    broker.given, broker.markers, broker.shown = 3, 1, 4
    poll = Polls(reader := reader_of(broker, monkeypatch), now)
    polled = poll(5)
    assert (poll.read, polled.position, polled.is_at_end) == (3, position(4), True)
    assert reader.confirm_end()


def test_an_end_with_records_behind_it_is_no_end(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    broker = Broker()
    broker.shown = broker.given = 9
    reader = reader_of(broker, monkeypatch)
    answers = [[Message(0)], [Message(1), end_of_partition(2), Message(2)], [end_of_partition(2)], []]
    monkeypatch.setattr(broker, "consume", lambda count, seconds: answers.pop(0))
    polled = reader.poll(None, max_records=9, max_seconds=0.2)
    assert (polled.position, polled.is_at_end) == (position(3), False)
    polled = reader.poll(polled.position, max_records=9, max_seconds=0.2)
    assert polled.position == position(3), "an end never moves a position back"


def test_records_without_a_time_of_arrival_are_rejected(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    most = 253_402_300_800_000
    broker = Broker()
    broker.shown = broker.given = 6
    broker.kinds, broker.millis = {1: 0}, {0: 0, 2: -1, 3: most, 4: most - 1, 5: 1}
    poll = Polls(reader_of(broker, monkeypatch), now)
    poll(8)
    arrivals = [at for polled in poll.kept for at in polled.arrival_micros.tolist()]
    assert arrivals == [0, (most - 1) * 1000, 1000]
    rejected = [(place, part.reason) for one in poll.kept for part in one.rejected for place in part.positions]
    assert rejected == [(place, NO_ARRIVAL_TIME) for place in (1, 2, 3)]


def test_a_partition_is_read_to_where_it_ended_when_that_was_first_asked(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    broker = Broker()
    reader = reader_of(broker, monkeypatch)
    assert not reader.confirm_passed(), "nothing was polled"
    broker.shown = broker.given = 6
    at = reader.poll(None, max_records=2, max_seconds=0.2).position
    broker.is_cut_off = True
    assert not reader.confirm_passed(), "who is not answered knows nothing"
    broker.is_cut_off = False
    assert not reader.confirm_passed()
    broker.shown = broker.given = 99
    seen = []
    for _ in range(4):
        at = reader.poll(at, max_records=2, max_seconds=0.2).position
        seen.append((json.loads(at)["next_offset"], reader.confirm_passed()))
    assert seen == [(offset, offset >= 6) for offset, _ in seen]
    assert seen[-1][1]
    reader.poll(position(7), max_records=2, max_seconds=0.2)
    assert not reader.confirm_passed(), "it was opened anew, and asks anew"
