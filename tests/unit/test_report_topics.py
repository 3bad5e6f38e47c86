"""Topics of reports: their records, what a topic tells of a run, following it, and waiting for a broker.

On the cluster that librdkafka simulates; a real broker is in tests/engines. What topics share with other sinks is in
test_report_sinks.
"""

import json
import time

import pytest

from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.errors import StreamError
from dp_transforms.reports import ReportFileError, decode_report, topic_records
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.reports.report_topic import ReportTopic, TopicWriter, _partition, _transactional_id
from dp_transforms.reports.report_writer import ReportNews
from dp_transforms.reports.topic_records import (
    RUN_ID_FIELD,
    TopicFollower,
    TopicRun,
    decode_record,
    encode_record,
    kafka_errors,
    read_from_beginning,
)
from tests.helpers import report_samples
from tests.helpers.sinks import (
    ENDED,
    HEADER,
    REPORTS,
    header,
    one_item,
    records_of,
    report,
    simulated_topic,
    write_all,
)

pytestmark = pytest.mark.waits
confluent_kafka = pytest.importorskip("confluent_kafka")


@pytest.fixture
def sink(tmp_path):
    (tmp_path / "topic.properties").write_text("retries=7\n")
    with simulated_topic(client_config_file=str(tmp_path / "topic.properties")) as made:
        yield made


RECORDS = (*report_samples.REPORTS, report_samples.HEADER, RunEnded("news", 24, reports=2))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_with_the_name_of_its_run(record):
    value = encode_record(record, "run-1")
    assert decode_record(value) == ("run-1", record)
    fields = json.loads(value)
    assert fields.pop("run_id") == "run-1"
    if isinstance(record, WindowReport):
        assert decode_report(json.dumps(fields)) == record, "beside it, a line of a report file"


def test_the_end_of_a_run_to_its_edges():
    for windows, reports in ((0, 0), (126, 127), (2**63 - 1, 2**63 - 1)):
        ended = RunEnded("news", windows, reports)
        assert decode_record(encode_record(ended, "r")) == ("r", ended)
    fields = RunEnded("news", 5, 3)._asdict()
    wrong = [{**fields, name: value} for name in ("windows", "reports") for value in (-1, 2**63, True, 1.0)]
    wrong += [{**fields, "stream": 7}, {**fields, "stream": "\ud800"}, {**fields, "more": 1}, [], None, "x"]
    wrong += [{name: fields[name] for name in fields if name != left_out} for left_out in fields]
    for one in wrong:
        with pytest.raises(ReportFileError):
            decode_record(json.dumps({"run_id": "r", "ended": one}).encode())


class Message:
    """A record as the client hands it over."""

    def __init__(self, record, run_id="run-1", in_header=None):
        self._value = encode_record(record, run_id)
        self._run_id = in_header or run_id

    def headers(self):
        return [("other", b"run-1"), (RUN_ID_FIELD, self._run_id.encode())]

    def value(self):
        return self._value

    def partition(self):
        return 0


def taken(*messages, stream="news"):
    run = TopicRun("run-1", stream)
    for message in messages:
        run.take(message)
    return run


def test_a_topic_that_contradicts_itself_is_not_read():
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
    with pytest.raises(StreamError, match="it has another plan"):
        taken(Message(header()), Message(header(epsilon=3.0)))
    with pytest.raises(StreamError, match="its stream is 'news', and not 'olds'"):
        taken(Message(header()), Message(header(stream="olds")), stream=None)


def test_streams_of_a_run_and_runs_of_a_stream_share_a_topic(sink):
    runs = [header(*names) for names in (("run-1", "news"), ("run-2", "news"), ("run-1", "olds"), ("run", "1news"))]
    for _ in range(2):
        for number, run in enumerate(runs):
            write_all(sink, [one_item(0, number)._replace(stream=run.stream)], None, run)
    assert len(records_of(sink)) == 2 * len(runs)
    assert sink.read("run-2")[1] == [one_item(0, 1)]
    assert len({_transactional_id(run) for run in runs}) == len(runs), "none shuts out another"
    assert all(_transactional_id(run).startswith("shh-") for run in runs)
    assert {_partition(header(f"run-{number}"), 3) for number in range(50)} == {0, 1, 2}


def test_a_run_stays_in_the_partition_where_it_began(sink):
    """A topic may be given more partitions meanwhile, and a run's own number then comes out as another one."""
    elsewhere = (_partition(HEADER, 4) + 1) % 4
    producer = confluent_kafka.Producer({"bootstrap.servers": sink.bootstrap_servers})
    value, key = encode_record(HEADER, "run-1"), b"run-1|news|header"
    producer.produce("reports", value, key, elsewhere, headers={"shh.run_id": b"run-1"})
    assert producer.flush(60) == 0
    write_all(sink)
    assert {partition for partition, _, _ in records_of(sink)} == {elsewhere}
    with pytest.raises(StreamError, match=r"^the topic 'reports' belongs to another run: it has another plan"):
        sink.open(header(epsilon=3.0))


WINDOWS = [one_item(window) for window in range(6)]
SECOND = header("run-2")


def read_until_it_fails(follower):
    for _ in range(100):
        assert follower.read_new().reports == []


def test_a_run_that_has_not_begun_is_waited_for_and_is_named(sink):
    follower = TopicFollower(sink, "run-1")
    assert follower.read_new() == ReportNews(None, [], None, True)
    write_all(sink, WINDOWS[:1], None)
    write_all(sink, WINDOWS[:1], None, SECOND)
    assert follower.read_new() == ReportNews(HEADER, WINDOWS[:1], None, False)
    follower.close()
    with pytest.raises(StreamError, match=r"may hold many runs\. Choose one by its run id"):
        sink.read()


def test_records_that_are_gone_make_it_read_all_again(sink):
    """As after the topic was made anew, or retention was faster than the page."""
    write_all(sink, WINDOWS[:2], None)
    follower = TopicFollower(sink, "run-1")
    follower.read_new()
    places = [confluent_kafka.TopicPartition(sink.topic, number, 1_000_000) for number in range(4)]
    follower._consumer.assign(places)
    with pytest.raises(StreamError, match="made anew, or has lost records"):
        read_until_it_fails(follower)
    assert follower.read_new() == ReportNews(HEADER, WINDOWS[:2], None, True)
    follower.close()


def test_a_look_at_a_topic_without_news_does_not_wait_for_the_broker(sink):
    """`shh stream` pauses ten times as long as a look took: reports would be shown late."""
    write_all(sink, WINDOWS, None)
    follower = sink.follow("run-1")
    assert follower.read_new()[1] == WINDOWS
    took = []
    for _ in range(8):
        begin = time.monotonic()
        assert follower.read_new()[1] == []
        took.append(time.monotonic() - begin)
    follower.close()
    assert min(took) < 0.35


def test_earlier_writers_are_shut_out_before_the_topic_is_read(sink, monkeypatch):
    """Else one of them could still commit an answer that the new one has not seen."""
    order = []

    class Producer(confluent_kafka.Producer):
        def init_transactions(self, *given):
            order.append("shut out")
            super().init_transactions(*given)

    class Consumer(confluent_kafka.Consumer):
        def assign(self, places):
            order.append("read")
            super().assign(places)

    for kind in (Producer, Consumer):
        monkeypatch.setattr(confluent_kafka, kind.__name__, kind)
    sink.open(HEADER).close()
    assert order == ["shut out", "read"]


def test_a_topic_whose_end_does_not_come_is_given_up(sink, monkeypatch):
    """Another producer's open transaction hides it; here the broker is said to hold one record more than it has."""
    monkeypatch.setattr(topic_records, "WAIT_SECONDS", 0.6)
    consumer, places = sink.consumer({})
    with pytest.raises(StreamError, match=r"^the topic 'reports' could not be read to its end in 1 s"):
        read_from_beginning(consumer, places, TopicRun("run-1").take, {2: 1})
    consumer.close()


class _Refusing:
    """A producer whose queue is full twice, as the client's is when much is written at once; or that has failed."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = []

    def begin_transaction(self):
        self.calls.append(("begin_transaction",))

    def produce(self, topic, *given, headers):
        self.calls.append(("produce", topic))
        if self.errors:
            raise self.errors.pop(0)

    def poll(self, seconds):
        self.calls.append(("poll", seconds))

    def commit_transaction(self, seconds):
        self.calls.append(("commit_transaction", seconds))
        if self.errors:
            raise self.errors.pop(0)


def writer_on(producer):
    return TopicWriter(producer, ReportTopic("b:1", "reports"), HEADER, TopicRun("run-1"), 3)


def test_a_full_queue_is_waited_for():
    producer = _Refusing(BufferError(), BufferError())
    writer = writer_on(producer)
    writer.write(REPORTS[0])
    produce, wait = ("produce", "reports"), ("poll", 0.1)
    assert producer.calls == [("begin_transaction",), produce, wait, produce, wait, produce]
    writer.end(RunEnded("news", 1, 1))
    assert producer.calls[-1] == produce, "in the same transaction"


@pytest.mark.parametrize("code", ["_STATE", "MSG_SIZE_TOO_LARGE"])
def test_a_transaction_that_has_failed_is_ended_for_its_reason_and_no_other_is(code):
    error = confluent_kafka.KafkaException(confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, code)))
    producer = _Refusing(error)
    with pytest.raises(StreamError, match=r"^the topic 'reports'"):
        writer_on(producer).write(REPORTS[0])
    ended = [("commit_transaction", 120.0)] * (code == "_STATE")
    assert producer.calls == [("begin_transaction",), ("produce", "reports"), *ended]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("_FENCED", "the topic 'reports': another worker has taken over this run"),
        ("PRODUCER_FENCED", "the topic 'reports': another worker has taken over this run"),
        ("MSG_SIZE_TOO_LARGE", "the topic 'reports' does not take a record as large"),
        ("_TRANSPORT", r"the topic 'reports' cannot be used \(_TRANSPORT\)"),
    ],
)
def test_an_error_of_a_topic_of_reports_names_the_topic(name, said):
    error = confluent_kafka.KafkaException(confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name)))
    with pytest.raises(StreamError, match=f"^{said}"), kafka_errors("reports"):
        raise error
