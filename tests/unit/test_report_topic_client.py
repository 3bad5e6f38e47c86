"""What a topic of reports asks of Kafka's client, to the letter: the real client, on librdkafka's simulated cluster.

Settings, timeouts and offsets decide nothing while all goes well, so the tests of results do not see them.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import HeavyHitter, RunEnded, WindowReport
from dp_transforms.reports import ReportHeader, report_topic, topic_records
from dp_transforms.reports.report_topic import ReportTopic, TopicPlace, _partition
from dp_transforms.reports.report_writer import HeldRun, ReportWriter
from dp_transforms.reports.topic_records import TopicRun
from dp_transforms.stores.kafka_client import silent_logger

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

START = 1_506_826_800_000_000
REPORT = WindowReport("news", START, START + 3_600_000_000, [HeavyHitter("a", None, 3)], 2.0, 1e-9, 0.5)
HEADER = ReportHeader("run-1", "news", "Each user's whole log is protected.", {"epsilon": 2.0})


class Client:
    """Notes each call, and then makes it."""

    calls: list[tuple[Any, ...]]

    def __init__(self, settings: dict[str, object], **more: object) -> None:
        self.calls.append((type(self).__name__, settings, more))
        super().__init__(settings, **more)  # type: ignore[call-arg]

    def list_topics(self, *given: Any, **more: Any) -> Any:
        self.calls.append(("list_topics", given, more))
        return super().list_topics(*given, **more)  # type: ignore[misc]


class Consumer(Client, confluent_kafka.Consumer):
    def assign(self, places: list[Any]) -> None:
        self.calls.append(("assign", [(place.topic, place.partition, place.offset) for place in places]))
        super().assign(places)

    def consume(self, *given: Any, **more: Any) -> Any:
        self.calls.append(("consume", given, more))
        return super().consume(*given, **more)

    def close(self) -> None:
        self.calls.append(("close",))
        super().close()


class Producer(Client, confluent_kafka.Producer):
    def init_transactions(self, *given: Any) -> None:
        self.calls.append(("init_transactions", given))
        super().init_transactions(*given)

    def commit_transaction(self, *given: Any) -> None:
        self.calls.append(("commit_transaction", given))
        super().commit_transaction(*given)

    def abort_transaction(self, *given: Any) -> None:
        self.calls.append(("abort_transaction", given))
        super().abort_transaction(*given)

    def purge(self, *given: Any) -> None:
        self.calls.append(("purge", given))
        super().purge(*given)

    def produce(self, *given: Any, **more: Any) -> None:
        self.calls.append(("produce", given, more))
        super().produce(*given, **more)


class AdminClient(Client, admin.AdminClient):
    def list_offsets(self, asked: dict[Any, Any], **more: Any) -> Any:
        places = [(place.topic, place.partition, type(spec)) for place, spec in asked.items()]
        self.calls.append(("list_offsets", places, more))
        return super().list_offsets(asked, **more)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    monkeypatch.setattr(Client, "calls", [], raising=False)
    for kind in (Consumer, Producer):
        monkeypatch.setattr(confluent_kafka, kind.__name__, kind)
    monkeypatch.setattr(confluent_kafka, "admin", types.SimpleNamespace(AdminClient=AdminClient))
    return Client.calls


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReportTopic]:
    monkeypatch.setitem(topic_records.CONSUMER, "check.crcs", False)  # that cluster computes none
    cluster = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(cluster.list_topics("reports", timeout=60).brokers.values()))
    yield ReportTopic(f"{broker.host}:{broker.port}", "reports", client_config={"retries": "7"})
    del cluster


def settings_of(sink: ReportTopic, own: dict[str, object]) -> dict[str, object]:
    return {"retries": "7", "bootstrap.servers": sink.bootstrap_servers, "allow.auto.create.topics": False, **own}


def test_what_a_run_asks_of_the_client(sink: ReportTopic, calls: list[tuple[Any, ...]]) -> None:
    writer = sink.open(HEADER)
    logger = {"logger": silent_logger()}
    made = {call[0]: call for call in calls if call[0] in ("Consumer", "Producer", "AdminClient")}
    assert made["Consumer"] == ("Consumer", settings_of(sink, topic_records.CONSUMER), logger)
    assert made["AdminClient"] == ("AdminClient", settings_of(sink, {}), logger)
    name = report_topic._transactional_id(HEADER)
    assert len(name) == 36
    own = {**report_topic._PRODUCER, "transactional.id": name}
    assert made["Producer"] == ("Producer", settings_of(sink, own), logger)

    named = [call[0] for call in calls if call[0] != "consume"]
    shut_out_first = ["Producer", "list_topics", "init_transactions", "Consumer", "list_topics", "AdminClient"]
    assert named == [*shut_out_first, "list_offsets", "assign", "close", "produce", "commit_transaction"]
    assert [call[1:] for call in calls if call[0] == "list_topics"] == [(("reports",), {"timeout": 15.0})] * 2
    (asked,) = (call for call in calls if call[0] == "list_offsets")
    assert asked[1] == [("reports", number, type(admin.OffsetSpec.latest())) for number in range(4)]
    uncommitted = confluent_kafka.IsolationLevel.READ_UNCOMMITTED
    assert asked[2] == {"isolation_level": uncommitted, "request_timeout": 30.0}
    beginning = [("reports", number, confluent_kafka.OFFSET_BEGINNING) for number in range(4)]
    assert [call[1] for call in calls if call[0] == "assign"] == [beginning]
    assert {str(call[1:]) for call in calls if call[0] == "consume"} == {str(((1000,), {"timeout": 0.1}))}

    del calls[:]
    writer.write(REPORT)
    writer.close()
    writer.close()
    (produced, *ended) = calls
    assert produced[1][0] == "reports"
    assert produced[1][2:] == (b"run-1|news|2017-10-01T03:00:00Z", _partition(HEADER, 4))
    assert produced[2] == {"headers": {"shh.run_id": b"run-1"}}
    assert ended == [("abort_transaction", (10.0,)), ("purge", ()), ("purge", ())], "what is open is given up, once"


def test_how_long_a_run_waits_for_the_broker(sink: ReportTopic, calls: list[tuple[Any, ...]]) -> None:
    writer = sink.open(HEADER)
    writer.commit()
    writer.write(REPORT)
    writer.commit()
    writer.commit()
    writer.close()
    waits = [call for call in calls if call[0] in ("init_transactions", "commit_transaction", "abort_transaction")]
    assert waits == [("init_transactions", (120.0,)), *[("commit_transaction", (120.0,))] * 2]


def test_reading_alone_asks_for_no_last_offsets_and_makes_no_producer(
    sink: ReportTopic, calls: list[tuple[Any, ...]]
) -> None:
    assert sink.read("run-1") == (None, [], None)
    assert [call[0] for call in calls if call[0] != "consume"] == ["Consumer", "list_topics", "assign", "close"]


def test_a_topic_whose_end_does_not_come_is_given_up(sink: ReportTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another producer's open transaction hides it; here the broker is said to hold one record more than it has."""
    monkeypatch.setattr(topic_records, "WAIT_SECONDS", 0.6)
    ends = {number: int(number == 2) for number in range(4)}
    monkeypatch.setattr(ReportTopic, "_last_offsets", lambda self, places: ends)
    with pytest.raises(StreamError, match=r"^the topic 'reports' could not be read to its end in 1 s"):
        sink._read(TopicRun("run-1").take, to_last_record=True)


class _Refusing:
    """A producer whose queue is full twice, as the client's is when much is written at once; or that has failed."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.calls: list[tuple[Any, ...]] = []

    def begin_transaction(self) -> None:
        self.calls.append(("begin_transaction",))

    def produce(self, topic: str, *given: Any, headers: object) -> None:
        self.calls.append(("produce", topic))
        if self._errors:
            raise self._errors.pop(0)

    def poll(self, seconds: float) -> None:
        self.calls.append(("poll", seconds))

    def commit_transaction(self, seconds: float) -> None:
        self.calls.append(("commit_transaction", seconds))


def writer_on(producer: _Refusing) -> ReportWriter:
    place = TopicPlace(producer, ReportTopic("b:1", "reports"), HEADER, HeldRun("the topic"), 3)
    return ReportWriter(place, HEADER)


def test_a_full_queue_is_waited_for() -> None:
    producer = _Refusing(BufferError(), BufferError())
    writer = writer_on(producer)
    writer.write(REPORT)
    produce, wait = ("produce", "reports"), ("poll", 0.1)
    assert producer.calls == [("begin_transaction",), produce, wait, produce, wait, produce]
    writer.end(RunEnded("news", 1, 1))
    assert producer.calls[-1] == produce, "in the same transaction"


@pytest.mark.parametrize("code", ["_STATE", "MSG_SIZE_TOO_LARGE"])
def test_a_transaction_that_has_failed_is_ended_for_its_reason_and_no_other_is(code: str) -> None:
    error = confluent_kafka.KafkaException(confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, code)))
    producer = _Refusing(error)
    with pytest.raises(StreamError, match=r"^the topic 'reports'"):
        writer_on(producer).write(REPORT)
    ended = [("commit_transaction", 120.0)] * (code == "_STATE")
    assert producer.calls == [("begin_transaction",), ("produce", "reports"), *ended]
