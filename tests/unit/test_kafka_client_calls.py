"""What a topic as a source asks of Kafka's client: settings, offsets and seconds, and what it says when refused."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams import kafka_reader, kafka_topic
from dp_transforms.logs.streams.kafka_reader import KafkaReader
from dp_transforms.logs.streams.kafka_topic import KafkaPartition, KafkaTopic, TopicSettings
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.stores import kafka_client
from dp_transforms.stores.kafka_client import silent_logger

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
FIELDS = EventFields(time_unit="ms")
MILLIS = 1_506_826_800_000
Calls = list[tuple[Any, ...]]


def trouble(name: str) -> Any:
    return confluent_kafka.KafkaException(confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name)))


class Record:
    def __init__(self, at: int, value: bytes | None = None) -> None:
        self._at = at
        self._value = json.dumps({"user": "u", "item": "i", "timestamp": MILLIS}).encode() if value is None else value

    def offset(self) -> int:
        return self._at

    def error(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 2, MILLIS

    def value(self) -> bytes:
        return self._value


class Consumer:
    """Notes what it is asked, and answers by what is set here."""

    def __init__(self) -> None:
        self.calls: Calls = []
        self.watermarks: Any = (0, 0)
        self.times: Any = 0
        self.records: list[list[Any]] = []

    def _answer(self, answer: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def get_watermark_offsets(self, place: Any, *, timeout: float, cached: bool) -> Any:
        self.calls.append(("watermarks", place.topic, place.partition, timeout, cached))
        return self._answer(self.watermarks)

    def offsets_for_times(self, places: list[Any], *, timeout: float) -> Any:
        self.calls.append(("times", [(place.topic, place.partition, place.offset) for place in places], timeout))
        return [self._answer(self.times)]

    def assign(self, places: list[Any]) -> None:
        self.calls.append(("assign", [(place.topic, place.partition, place.offset) for place in places]))

    def consume(self, count: int, seconds: float) -> Any:
        self.calls.append(("consume", count, seconds))
        return self._answer(self.records.pop(0) if self.records else [])

    def close(self) -> None:
        self.calls.append(("close",))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1000.0]
    monkeypatch.setattr(kafka_reader.time, "monotonic", lambda: moment[0])
    return moment


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    made = Consumer()

    def open_consumer(topic: KafkaTopic, **callbacks: Any) -> Consumer:
        made.calls.append(("open", sorted(callbacks)))
        return made

    monkeypatch.setattr(KafkaTopic, "open_consumer", open_consumer)
    return made


def reader(since_micros: int = 0, **more: Any) -> KafkaReader:
    return KafkaPartition(KafkaTopic("b:1", "t", FIELDS, **more), 3).open(since_micros)


def poll(one: KafkaReader, position: str | None = None, seconds: float = 0.25, records: int = 10) -> Any:
    return one.poll(position, max_records=records, max_seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "x", "{}", "[]", "null", "7", '{"next_offset": -1}', '{"next_offset": "3"}', '{"next_offset": 1.5}']
)
def test_a_position_that_is_none_of_a_topic_is_refused(consumer: Consumer, text: str) -> None:
    """Nobody begins at the beginning because a position cannot be read."""
    with pytest.raises(
        StreamError,
        match=r"^a stored position is not a position in a Kafka topic\. Start a new run, without the stored state\.$",
    ):
        poll(reader(), text)
    assert consumer.calls == []


@pytest.mark.parametrize(("since", "asked"), [(0, False), (999, False), (1000, True), (5_000_999, True)])
def test_what_a_reader_asks_before_its_first_record(
    consumer: Consumer, now: list[float], since: int, asked: bool
) -> None:
    consumer.watermarks = (2, 9)
    consumer.times = confluent_kafka.TopicPartition("t", 3, 5)
    polled = poll(reader(since), None)
    times = [("times", [("t", 3, since // 1000)], 0.25)] * asked
    begins = ("assign", [("t", 3, 5 if asked else 2)])
    opened = ("open", ["error_cb"])
    assert consumer.calls[: 3 + asked] == [opened, ("watermarks", "t", 3, 0.25, False), *times, begins]
    assert consumer.calls[3 + asked :] == [("consume", 1, 0.25)]
    assert isinstance(polled.batch, EventBatch)
    assert (len(polled.batch), polled.records, polled.is_at_end, polled.rejected) == (0, 0, False, ())
    assert (polled.arrival_micros.dtype, polled.arrival_micros.shape) == (np.int64, (0,))


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 0.1), (0.0625, 0.1), (0.375, 0.375), (9.0, 9.0)])
def test_a_broker_has_a_tenth_of_a_second_at_least(
    consumer: Consumer, now: list[float], seconds: float, asked: float
) -> None:
    poll(one := reader(), None, seconds)
    assert consumer.calls[1] == ("watermarks", "t", 3, asked, False)
    for seconds_later, is_asked in ((5.0, False), (1 / 128, True)):
        del consumer.calls[:]
        now[0] += seconds_later
        poll(one, '{"next_offset": 0}', seconds)
        again = [("watermarks", "t", 3, min(1.0, asked), False)] * is_asked
        assert consumer.calls == [("consume", 1, seconds), *again], "where nothing comes, every five seconds"
    del consumer.calls[:]
    one.confirm_passed()
    assert consumer.calls == [("watermarks", "t", 3, 1.0, False)]
    one.confirm_passed()
    assert len(consumer.calls) == 1, "asked once"


def test_the_end_is_confirmed_within_a_second_or_not_at_all(consumer: Consumer, now: list[float]) -> None:
    consumer.watermarks = (0, 1)
    end = types.SimpleNamespace(
        offset=lambda: 1, error=lambda: confluent_kafka.KafkaError(confluent_kafka.KafkaError._PARTITION_EOF)
    )
    consumer.records = [[Record(0)], [end]]
    polled = poll(one := reader())
    assert polled.is_at_end
    del consumer.calls[:]
    assert one.confirm_end()
    assert consumer.calls == [("watermarks", "t", 3, 1.0, False)]
    one.close()
    assert not one.confirm_end()
    assert not one.confirm_passed()
    one.close()
    assert consumer.calls[1:] == [("close",)]


@pytest.mark.parametrize(
    ("where", "answer"),
    [
        ("watermarks", trouble("_TRANSPORT")),
        ("watermarks", None),
        ("records", trouble("_TRANSPORT")),
    ],
)
def test_a_broker_that_does_not_answer_is_named_by_its_error_when_it_is_given_up(
    consumer: Consumer, now: list[float], where: str, answer: Any
) -> None:
    one = reader(5_000_000, unreachable_seconds=60)
    consumer.times = confluent_kafka.TopicPartition("t", 3, 0)
    setattr(consumer, where, [answer] * 1000 if where == "records" else answer)
    if where == "records":
        consumer.watermarks = answer  # else the reader confirms that the broker is there
    said = "unknown error" if answer is None else "_TRANSPORT"
    polled = poll(one)
    now[0] += 60.0
    assert poll(one, polled.position).records == 0, "a minute is not more than a minute"
    now[0] += 0.001
    with pytest.raises(StreamError, match=rf"no Kafka broker answers at b:1 \({said}\)"):
        poll(one, polled.position)


@pytest.mark.parametrize(
    "answer",
    [trouble("_TRANSPORT"), types.SimpleNamespace(error=trouble("_TRANSPORT").args[0], offset=3)],
)
def test_nothing_is_read_before_it_is_known_where_to_begin(consumer: Consumer, now: list[float], answer: Any) -> None:
    consumer.watermarks, consumer.times, consumer.records = (0, 9), answer, [[Record(4)]]
    polled = poll(one := reader(5_000_000))
    assert (polled.records, polled.position, polled.is_at_end) == (0, '{"next_offset": null}', False)
    assert kafka_client.error_name(one._last_error) == "_TRANSPORT"
    consumer.times = confluent_kafka.TopicPartition("t", 3, 4)
    assert poll(one, polled.position, records=1).places.tolist() == [4]


def test_an_error_that_no_waiting_mends_ends_at_once(consumer: Consumer, now: list[float]) -> None:
    one = reader()
    one._note_error(confluent_kafka.KafkaError(confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED))
    one._check_patience()
    one._note_error(confluent_kafka.KafkaError(confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(StreamError, match=r"\(TOPIC_AUTHORIZATION_FAILED\)"):
        one._check_patience()


@pytest.mark.parametrize("low", [0, 7])
def test_an_offset_that_is_gone_is_told_by_where_the_log_begins(consumer: Consumer, now: list[float], low: int) -> None:
    gone = types.SimpleNamespace(
        offset=lambda: 0, error=lambda: confluent_kafka.KafkaError(confluent_kafka.KafkaError._AUTO_OFFSET_RESET)
    )
    poll(one := reader(), None)
    consumer.watermarks = (low, 9)
    consumer.records = [[gone]]
    said = "no longer has the offset 0" if low else "ends before the offset 0"
    with pytest.raises(StreamError, match=f"the Kafka partition t:3 {said}"):
        poll(one, '{"next_offset": 0}')
    assert consumer.calls[-1] == ("watermarks", "t", 3, 1.0, False)


def test_what_is_rejected_is_placed_in_its_partition(consumer: Consumer, now: list[float]) -> None:
    consumer.watermarks = (0, 3)
    consumer.records = [[Record(0)], [Record(1, b"{"), Record(2, b"")]]
    polled = poll(one := reader(), records=3)
    assert {part.source for part in polled.rejected} == {"t:3"}
    assert sorted(place for part in polled.rejected for place in part.positions) == [1, 2]
    assert (polled.records, len(polled.batch), polled.places.tolist()) == (3, 1, [0])
    assert [call for call in consumer.calls if call[0] == "consume"] == [("consume", 1, 0.25), ("consume", 2, 0.0)]
    assert one.poll(polled.position, max_records=1, max_seconds=0.0).position == polled.position


# ---------------------------------------------------------------------------------------------------------------------
# The topic
# ---------------------------------------------------------------------------------------------------------------------


def test_settings_are_those_of_the_moment_a_topic_was_named() -> None:
    given = {"retries": "3"}
    topic = KafkaTopic("b:1", "t", FIELDS, client_config=given)
    given["debug"] = "all"
    assert topic.client_config == {"retries": "3"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return []


def noting(calls: Calls, kind: Any) -> Callable[..., Any]:
    def make(settings: dict[str, Any], **more: Any) -> Any:
        calls.append((settings, more))
        return kind(settings, **more)

    return make


def test_what_a_consumer_is_made_with(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    monkeypatch.setattr(confluent_kafka, "Consumer", noting(calls, confluent_kafka.Consumer))
    topic = KafkaTopic("127.0.0.1:1", "t", FIELDS, client_config={"retries": "3", "group.id": "mine"})

    def note(error: object) -> None: ...

    topic.open_consumer(error_cb=note).close()
    ((settings, more),) = calls
    assert more == {"logger": silent_logger()}
    assert settings == {
        "group.id": "mine",
        "queued.max.messages.kbytes": "16384",
        "reconnect.backoff.max.ms": "2000",
        "retries": "3",
        "bootstrap.servers": "127.0.0.1:1",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "allow.auto.create.topics": False,
        "check.crcs": True,
        "error_cb": note,
    }


class Described:
    """The consumer of a broker that describes topics like this."""

    def __init__(self, **topics: Any) -> None:
        self._topics = topics
        self.calls: Calls = []

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        self.calls.append((topic, timeout))
        return types.SimpleNamespace(topics=self._topics)

    def close(self) -> None:
        self.calls.append(("close",))


@pytest.mark.parametrize(
    ("topics", "said"),
    [
        ({}, "(no partitions)"),
        ({"t": types.SimpleNamespace(error=None, partitions={})}, "(no partitions)"),
        (
            {"t": types.SimpleNamespace(error=trouble("TOPIC_AUTHORIZATION_FAILED").args[0], partitions={0: None})},
            "(TOPIC_AUTHORIZATION_FAILED)",
        ),
    ],
)
def test_why_a_topic_cannot_be_read(monkeypatch: pytest.MonkeyPatch, topics: dict[str, Any], said: str) -> None:
    described = Described(**topics)
    monkeypatch.setattr(KafkaTopic, "open_consumer", lambda self: described)
    with pytest.raises(StreamError) as refused:
        KafkaTopic("b:1", "t", FIELDS).partitions()
    assert str(refused.value).startswith(f"there is no Kafka topic 't' that can be read {said}. Create it")
    assert described.calls == [("t", 8.0), ("close",)]


def test_partitions_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    described = Described(t=types.SimpleNamespace(error=None, partitions={2: None, 0: None, 1: None}))
    monkeypatch.setattr(KafkaTopic, "open_consumer", lambda self: described)
    topic = KafkaTopic("b:1", "t", FIELDS)
    assert topic.partitions() == [KafkaPartition(topic, number) for number in (0, 1, 2)]


class Administrator:
    """Answers for the settings of topics; the answer may be an error."""

    entries: Any = None

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __call__(self, settings: dict[str, Any], **more: Any) -> Administrator:
        self._calls.append(("made", settings, more))
        return self

    def describe_configs(self, resources: list[Any], *, request_timeout: float) -> Any:
        (resource,) = resources
        self._calls.append(("describe", resource.restype, resource.name, request_timeout))
        return {resource: self}

    def result(self, *, timeout: float) -> Any:
        self._calls.append(("result", timeout))
        if isinstance(self.entries, BaseException):
            raise self.entries
        return {name: types.SimpleNamespace(value=value) for name, value in self.entries.items()}


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ({}, TopicSettings(None, None)),
        ({"message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete"}, TopicSettings(True, False)),
        ({"message.timestamp.type": "CreateTime", "cleanup.policy": "compact,delete"}, TopicSettings(False, True)),
        ({"cleanup.policy": "compact"}, TopicSettings(None, True)),
        ({"message.timestamp.type": "LogAppendTime"}, TopicSettings(True, None)),
        (trouble("TOPIC_AUTHORIZATION_FAILED"), TopicSettings(None, None)),
        (trouble("_TRANSPORT"), r"no Kafka broker answers at b:1 \(_TRANSPORT\)"),
        (ValueError('No such configuration property: "no.such"'), r"refuses its settings: check no\.such"),
    ],
)
def test_what_a_broker_says_of_a_topic(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, entries: Any, wanted: Any
) -> None:
    made = Administrator(calls)
    made.entries = entries
    monkeypatch.setattr(admin, "AdminClient", made)
    topic = KafkaTopic("b:1", "t", FIELDS, client_config={"no.such": "3"})
    if isinstance(wanted, str):
        with pytest.raises(StreamError, match=wanted):
            topic.settings()
    else:
        assert topic.settings() == wanted
    assert calls == [
        ("made", {"no.such": "3", "bootstrap.servers": "b:1"}, {"logger": silent_logger()}),
        ("describe", admin.ResourceType.TOPIC, "t", 8.0),
        ("result", 10.0),
    ]
    assert kafka_topic._ASK_SECONDS == 8.0
