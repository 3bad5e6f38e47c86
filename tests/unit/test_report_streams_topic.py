"""A topic of reports without a broker of its own: the real client against the cluster that librdkafka simulates.

That cluster takes transactions and commits them, but fences no writer and hides nothing that was given up; those are
tested on a real broker, in tests/engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import ABOVE, BETWEEN, HeavyHitter, RunEnded, WindowReport
from dp_transforms.reports import ReportFileError, ReportHeader, topic_records
from dp_transforms.reports.report_topic import ReportTopic, _partition, _transactional_id
from dp_transforms.reports.report_writer import TopicRecord
from dp_transforms.reports.topic_records import RECORD_FORMATS, RUN_ID_FIELD, TopicRun, encode_record

pytestmark = pytest.mark.waits

confluent_kafka = pytest.importorskip("confluent_kafka")

HOUR = 3_600_000_000
START = 1_506_826_800_000_000  # 2017-10-01T03:00:00Z
PARTITIONS = 4  # of every topic there
ENDED = RunEnded("news", 48, 10_000)


def header(run_id: str = "run-1", stream: str = "news", epsilon: float = 2.0) -> ReportHeader:
    return ReportHeader(run_id, stream, "Each user's whole log is protected with ε = 2.", {"epsilon": epsilon})


def report(window: int, *heavy_hitters: HeavyHitter, stream: str = "news", spent: float = 0.5) -> WindowReport:
    start = START + window * HOUR
    return WindowReport(stream, start, start + HOUR, list(heavy_hitters), 2.0, 1e-9, spent)


REPORTS = [
    report(0, HeavyHitter("Ünïcode ☃", ABOVE, None), HeavyHitter("b", BETWEEN, 812)),
    report(2, HeavyHitter("", None, -3)),
    report(30, *(HeavyHitter(f"item-{rank}", None, 900 - rank) for rank in range(50))),
]


@pytest.fixture
def sink(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReportTopic]:
    """A topic of its own; with the test's parameter, if it has one, as its format."""
    monkeypatch.setitem(topic_records.CONSUMER, "check.crcs", False)  # that cluster computes none
    cluster = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(cluster.list_topics("reports", timeout=60).brokers.values()))
    yield ReportTopic(f"{broker.host}:{broker.port}", "reports", getattr(request, "param", "json"))
    del cluster


def write_all(sink: ReportTopic, reports: list[WindowReport], ended: RunEnded | None, run: ReportHeader) -> list[str]:
    writer = sink.open(run)
    keys = [writer.write(window) for window in reports]
    if ended is not None:
        keys.append(writer.end(ended))
    writer.commit()
    writer.close()
    return keys


def records(sink: ReportTopic) -> list[tuple[int, bytes, bytes]]:
    """Partition, key and value of all records."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": sink.bootstrap_servers, "group.id": "test", "enable.partition.eof": True}
    )
    places = [confluent_kafka.TopicPartition(sink.topic, number, 0) for number in range(PARTITIONS)]
    consumer.assign(places)
    found, at_end = [], 0
    while at_end < PARTITIONS:
        message = consumer.poll(60.0)
        assert message is not None, "the cluster answers"
        if message.error() is None:
            found.append((message.partition(), message.key(), message.value()))
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            at_end += 1
    consumer.close()
    return found


@pytest.mark.parametrize("sink", RECORD_FORMATS, indirect=True)
def test_what_is_written_is_read_in_order_and_written_once(sink: ReportTopic) -> None:
    assert sink.read("run-1") == (None, [], None)
    keys = write_all(sink, REPORTS[::-1], None, header())
    assert keys == ["news|2017-10-02T09:00:00Z", "news|2017-10-01T05:00:00Z", "news|2017-10-01T03:00:00Z"]
    assert sink.read("run-1") == (header(), REPORTS, None)
    assert sink.ended("run-1") is None
    assert write_all(sink, REPORTS, ENDED, header()) == [*keys[::-1], "news|end"]
    before = records(sink)
    other_format = ReportTopic(sink.bootstrap_servers, sink.topic, *({*RECORD_FORMATS} - {sink.record_format}))
    for again in (sink, other_format):
        write_all(again, REPORTS, ENDED, header())
        assert again.read("run-1") == (header(), REPORTS, ENDED)
    assert records(sink) == before
    wanted = [b"run-1|news|header", *(b"run-1|" + key.encode() for key in keys), b"run-1|news|end"]
    assert [key for _, key, _ in before] == wanted
    assert {partition for partition, _, _ in before} == {_partition(header(), PARTITIONS)}
    assert sink.read("run-2") == (None, [], None)


def test_a_second_answer_is_refused_by_the_writer_that_wrote_the_first_and_by_the_next(sink: ReportTopic) -> None:
    writer = sink.open(header())
    for which in range(2):
        if which:
            writer.commit()
            writer.close()
            before = records(sink)
            writer = sink.open(header())
        assert writer.write(REPORTS[1]) == "news|2017-10-01T05:00:00Z"
        assert writer.end(ENDED) == "news|end"
        for other in (report(2, HeavyHitter("", None, -4)), report(2), REPORTS[1]._replace(epsilon_spent=0.6)):
            with pytest.raises(StreamError, match="T05:00:00Z' already has another answer"):
                writer.write(other)
        with pytest.raises(StreamError, match="has already ended"):
            writer.end(ENDED._replace(windows=47))
        assert writer.write(REPORTS[1]) == "news|2017-10-01T05:00:00Z"
    writer.commit()
    writer.close()
    assert records(sink) == before
    assert sink.read("run-1") == (header(), [REPORTS[1]], ENDED)


def test_another_run_or_plan_under_the_name_is_refused_and_writes_nothing(sink: ReportTopic) -> None:
    write_all(sink, REPORTS, None, header())
    before = records(sink)
    with pytest.raises(StreamError, match="with another plan"):
        sink.open(header(epsilon=3.0))
    writer = sink.open(header())
    for refused in (lambda: writer.write(report(3, stream="olds")), lambda: writer.end(ENDED._replace(stream="olds"))):
        with pytest.raises(StreamError, match="different streams"):
            refused()
    with pytest.raises(ReportFileError, match="noisy_count must be null"):
        writer.write(report(3, HeavyHitter("a", ABOVE, 5)))
    writer.commit()
    writer.close()
    assert records(sink) == before


def test_streams_of_a_run_and_runs_of_a_stream_share_a_topic(sink: ReportTopic) -> None:
    runs = [("run-1", "news"), ("run-2", "news"), ("run-1", "olds"), ("run", "1news")]
    for number, (run_id, stream) in enumerate(runs):
        reports = [window._replace(stream=stream, epsilon_spent=0.1 * number) for window in REPORTS]
        write_all(sink, reports, None, header(run_id, stream))
    before = records(sink)
    for number, (run_id, stream) in enumerate(runs):
        reports = [window._replace(stream=stream, epsilon_spent=0.1 * number) for window in REPORTS]
        write_all(sink, reports, None, header(run_id, stream))
    assert records(sink) == before
    assert len(before) == 4 * (1 + len(REPORTS))
    assert sink.read("run-2")[1] == [window._replace(epsilon_spent=0.1) for window in REPORTS]
    assert len({_transactional_id(header(*run)) for run in runs}) == len(runs), "none shuts out another"
    assert all(_transactional_id(header(*run)).startswith("shh-") for run in runs)
    assert {_partition(header(f"run-{number}"), 3) for number in range(50)} == {0, 1, 2}


class Message:
    """A record as the client hands it over."""

    def __init__(self, record: TopicRecord, run_id: str = "run-1", in_header: str | None = None, at: int = 0) -> None:
        self._value = encode_record(record, run_id, "json")
        self._run_id = in_header or run_id
        self._at = at

    def headers(self) -> list[tuple[str, bytes]]:
        return [("other", b"run-1"), (RUN_ID_FIELD, self._run_id.encode())]

    def value(self) -> bytes:
        return self._value

    def partition(self) -> int:
        return self._at


def taken(*messages: Any, stream: str | None = "news", keep: bool = True) -> TopicRun:
    held = TopicRun("run-1", stream, keep=keep)
    for message in messages:
        held.take(message)
    return held


def test_what_a_topic_holds_of_a_run() -> None:
    held = taken(
        Message(header(), at=3),
        Message(REPORTS[1]),
        Message(REPORTS[0]),
        Message(REPORTS[1]),
        Message(header("run-2"), "run-2"),
        Message(report(2, HeavyHitter("", None, -9)), "run-2"),
        Message(report(2, HeavyHitter("", None, -9), stream="olds")),
        Message(ENDED),
        Message(ENDED),
    )
    assert (held.header, held.partition, held.reports, held.ended) == (header(), 3, [REPORTS[1], REPORTS[0]], ENDED)
    assert list(held.answers) == ["news|2017-10-01T05:00:00Z", "news|2017-10-01T03:00:00Z"]
    assert taken(Message(REPORTS[0]), keep=False).reports == []
    assert list(taken(Message(REPORTS[0]), keep=False).answers) == ["news|2017-10-01T03:00:00Z"]
    olds = report(2, stream="olds")
    assert taken(Message(REPORTS[0]), Message(olds), stream=None).reports == [REPORTS[0], olds]


def test_records_are_short_and_readable_whatever_the_letters() -> None:
    """UTF-8, not escapes of six bytes for each letter."""
    for record in (header(stream="Ünï ☃"), report(0, HeavyHitter("Ünï ☃", None, 3)), RunEnded("Ünï ☃", 3)):
        assert "Ünï ☃".encode() in encode_record(record, "run-1", "json")


def test_a_topic_that_contradicts_itself_is_not_read() -> None:
    for messages, said in (
        ((Message(REPORTS[1]), Message(report(2, HeavyHitter("", None, -4)))), "two answers"),
        ((Message(REPORTS[1]), Message(REPORTS[1]), Message(report(2))), "two answers"),
        ((Message(ENDED), Message(ENDED._replace(windows=47))), "two ends"),
        ((Message(REPORTS[1], "run-2", in_header="run-1"),), "two run ids"),
    ):
        taken(*messages[:-1])
        with pytest.raises(
            ReportFileError, match=rf"{said}\. .* wrote to this topic\. Use a new topic and start a new run\.$"
        ):
            taken(*messages)
    with pytest.raises(StreamError, match="with another plan"):
        taken(Message(header()), Message(header(epsilon=3.0)))
    with pytest.raises(StreamError, match="its stream is 'news', and this run has 'olds'"):
        taken(Message(header()), Message(header(stream="olds")), stream=None)


def test_a_topic_that_cannot_be_used_is_told_in_one_line(sink: ReportTopic) -> None:
    with pytest.raises(StreamError, match=r"^the topic 'no topic' cannot be used .* Create it first"):
        ReportTopic(sink.bootstrap_servers, "no topic").open(header())
    for arguments, said in (
        ({"topic": ""}, "topic of a report topic must be text"),
        ({"bootstrap_servers": ""}, "bootstrap_servers of a report topic must be text"),
        ({"topic": 7}, "topic of a report topic must be text"),
        ({"record_format": "xml"}, "json, avro, got 'xml'"),
        ({"client_config": {"transactional.id": "mine"}}, "transactional.id"),
        ({"client_config": {"isolation.level": "read_uncommitted"}}, "isolation.level"),
        ({"client_config": {"acks": "0"}}, "acks"),
        ({"client_config": {"bootstrap.servers": "other:1"}}, "bootstrap.servers"),
    ):
        with pytest.raises(ValueError, match=said):
            ReportTopic(**{"bootstrap_servers": "localhost:1", "topic": "reports", **arguments})
