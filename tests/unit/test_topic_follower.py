"""A topic of reports read as it grows: the real client against the cluster that librdkafka simulates.

That cluster hides nothing that was given up and cannot be restarted; a real broker is in tests/engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dp_transforms.errors import StreamError, UserError
from dp_transforms.monitor.window_report import HeavyHitter, RunEnded, WindowReport
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.report_topic import ReportTopic
from dp_transforms.reports.report_writer import ReportNews
from dp_transforms.reports.topic_records import RUN_ID_FIELD, TopicFollower, encode_record
from dp_transforms.views.serving.report_source import Found, TopicSource, source_of
from tests.helpers.mock_topic import mock_topic

pytestmark = pytest.mark.waits
confluent_kafka = pytest.importorskip("confluent_kafka")

HOUR = 3_600_000_000
HEADER = ReportHeader("run-1", "news", "Each user's whole log is protected.", {"epsilon": 2.0})
OTHER = ReportHeader("run-2", "news", "Each user's whole log is protected.", {"epsilon": 2.0})


def report(window: int, users: int = 9) -> WindowReport:
    return WindowReport("news", window * HOUR, (window + 1) * HOUR, [HeavyHitter("a", None, users)], 2.0, 1e-9, 0.5)


REPORTS = [report(window) for window in range(6)]


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReportTopic]:
    with mock_topic(monkeypatch) as made:
        yield made


def write(topic: ReportTopic, reports: list[WindowReport], ended: RunEnded | None = None, run: Any = HEADER) -> None:
    writer = topic.open(run)
    for each in reports:
        writer.write(each)
    if ended is not None:
        writer.end(ended)
    writer.commit()
    writer.close()


def forge(topic: ReportTopic, report: WindowReport) -> None:
    """A record of another program under the name of the run."""
    producer = confluent_kafka.Producer({"bootstrap.servers": topic.bootstrap_servers})
    value = encode_record(report, "run-1", "json")
    producer.produce(topic.topic, value, headers={RUN_ID_FIELD: b"run-1"})
    assert producer.flush(60) == 0


def read_until_it_fails(follower: TopicFollower) -> None:
    for _ in range(100):
        assert follower.read_new().reports == []


def test_each_report_is_read_once_from_the_beginning_on(topic: ReportTopic) -> None:
    write(topic, REPORTS[2:4])
    write(topic, [report(0, 77)], run=OTHER)
    follower = TopicFollower(topic, "run-1")
    assert follower.read_new() == ReportNews(HEADER, REPORTS[2:4], None, True)
    assert follower.read_new() == ReportNews(HEADER, [], None, False)
    write(topic, [REPORTS[2], REPORTS[5], REPORTS[1]])
    assert follower.read_new() == ReportNews(HEADER, [REPORTS[1], REPORTS[5]], None, False)
    ended = RunEnded("news", 6, 4)
    write(topic, [], ended)
    assert follower.read_new() == ReportNews(HEADER, [], ended, False)
    follower.close()
    assert follower.read_new() == ReportNews(HEADER, [REPORTS[1], *REPORTS[2:4], REPORTS[5]], ended, True)
    follower.close()


def test_a_run_that_has_not_begun_is_waited_for_and_of_several_runs_one_is_named(topic: ReportTopic) -> None:
    with pytest.raises(StreamError, match="holds no reports yet"):
        TopicFollower(topic).read_new()
    follower = TopicFollower(topic, "run-1")
    assert follower.read_new() == ReportNews(None, [], None, True)
    write(topic, REPORTS[:1])
    assert follower.read_new() == ReportNews(HEADER, REPORTS[:1], None, False)
    follower.close()
    only = TopicFollower(topic)
    assert only.read_new().reports == REPORTS[:1]
    write(topic, REPORTS[:1], run=OTHER)
    assert only.read_new().reports == [], "it stays with its run"
    only.close()
    assert topic.run_ids() == ["run-1", "run-2"]
    with pytest.raises(StreamError, match=r"has 2 runs: 'run-1', 'run-2'\. Choose one with --run-id"):
        TopicFollower(topic).read_new()


def test_a_second_answer_is_refused_by_each_reading_as_by_the_reader_of_the_topic(topic: ReportTopic) -> None:
    write(topic, REPORTS[:1])
    source = TopicSource(topic, "run-1")
    assert source.poll() == Found(HEADER, REPORTS[:1], None, True)
    forge(topic, report(0, 8))
    for _ in range(3):
        with pytest.raises(UserError, match="a window of the run has two answers"):
            source.poll()
    with pytest.raises(StreamError, match="a window of the run has two answers"):
        topic.read("run-1")


def test_a_source_tells_only_what_is_new(topic: ReportTopic) -> None:
    source = TopicSource(topic, "run-1")
    with pytest.raises(UserError, match="once the stream has begun"):
        source.poll()
    write(topic, REPORTS[:2])
    assert source.poll() == Found(HEADER, REPORTS[:2], None, True)
    assert source.poll() is None
    write(topic, REPORTS[:3], RunEnded("news", 6, 3))
    assert source.poll() == Found(HEADER, REPORTS[2:3], RunEnded("news", 6, 3), False)
    assert source.poll() is None


def test_records_that_are_gone_make_it_read_all_again(topic: ReportTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the topic was made anew, or retention was faster than the page."""
    write(topic, REPORTS[:2])
    follower = TopicFollower(topic, "run-1")
    follower.read_new()
    places = [confluent_kafka.TopicPartition(topic.topic, number, 1_000_000) for number in range(4)]
    follower._consumer.assign(places)
    with pytest.raises(StreamError, match="made anew, or has lost records"):
        read_until_it_fails(follower)
    assert follower.read_new() == ReportNews(HEADER, REPORTS[:2], None, True)
    follower.close()


def test_an_address_names_servers_and_topic(tmp_path: Any) -> None:
    source = source_of(["kafka://a.example.org:9092,b:9093/the.reports_1"], "run-1", "client.properties")
    assert isinstance(source, TopicSource)
    expected = ReportTopic("a.example.org:9092,b:9093", "the.reports_1", client_config_file="client.properties")
    assert source._topic == expected
