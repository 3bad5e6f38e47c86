"""A topic of reports on a real broker: first answers stay, and a writer that was replaced can write no more."""

import random
import threading
import time
import uuid

import pytest

from dp_transforms.core.window_report import HeavyHitter
from dp_transforms.errors import StreamError
from dp_transforms.reports.report_topic import ReportTopic, _partition
from dp_transforms.reports.topic_records import encode_record
from tests.engines import needs
from tests.helpers.sinks import ENDED, REPORTS, header, report, write_all

pytestmark = needs("kafka")


@pytest.fixture
def sink(server):
    """A topic of its own for each test, of three partitions."""
    topic = f"reports-{uuid.uuid4().hex[:8]}"
    server.create_topic(topic, partitions=3)
    return ReportTopic(server.bootstrap, topic)


def records(sink, isolation="read_committed"):
    """Partition, key and value of all records that anybody can read, also of those that were given up."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": sink.bootstrap_servers,
            "group.id": "test",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([TopicPartition(sink.topic, partition, OFFSET_BEGINNING) for partition in range(3)])
    found, at_end = [], set()
    while len(at_end) < 3:
        message = consumer.poll(60.0)
        assert message is not None, "the broker answers"
        if message.error() is None:
            found.append((message.partition(), message.key(), message.value()))
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            at_end.add(message.partition())
    consumer.close()
    return found


def eventually(question, answer):
    """Readers see a commit a moment after it: waits until they do."""
    deadline = time.monotonic() + 60
    while question() != answer and time.monotonic() < deadline:
        time.sleep(0.05)
    assert question() == answer


def test_a_writer_that_was_replaced_writes_no_more(sink):
    """A worker that was given up and lives on: neither what it had open nor what it tries later is ever read."""
    zombie = sink.open(header())
    zombie.write(REPORTS[0])
    zombie.commit()
    zombie.write(report(1, HeavyHitter("of the zombie", None, 1)))
    zombie.producer.flush(60.0)  # on the broker, and not committed
    successor = sink.open(header())
    with pytest.raises(StreamError, match="another worker has taken over this run"):
        zombie.commit()
    with pytest.raises(StreamError, match=r"cannot be used|taken over"):
        zombie.write(report(3, HeavyHitter("of the zombie", None, 2)))
    zombie.close()
    successor.write(report(1, HeavyHitter("of the successor", None, 1)))
    successor.commit()
    successor.close()
    expected = [REPORTS[0], report(1, HeavyHitter("of the successor", None, 1))]
    eventually(lambda: sink.read("run-1"), (header(), expected, None))
    assert any(b"of the zombie" in value for _, _, value in records(sink, "read_uncommitted"))


def test_what_was_not_committed_is_written_by_the_next(sink):
    writer = sink.open(header())
    writer.write(REPORTS[0])
    writer.close()
    assert sink.read("run-1") == (header(), [], None)
    write_all(sink)
    eventually(lambda: sink.read("run-1"), (header(), REPORTS, ENDED))


def test_a_writer_waits_behind_the_open_transaction_of_another_run(sink):
    """Readers do not see past it. A writer that did not wait would take windows for unanswered."""
    writer = sink.open(header())
    # A run whose records go to the same partition.
    runs = (header(f"run-{number}") for number in range(2, 100))
    other = sink.open(next(run for run in runs if _partition(run, 3) == _partition(header(), 3)))
    other.write(report(0))
    other.producer.flush(60.0)
    for window in REPORTS:
        writer.write(window)
    writer.commit()
    writer.close()
    assert sink.read("run-1")[1] == [], "hidden from readers behind the other transaction"
    releaser = threading.Timer(1.0, other.commit)
    releaser.start()
    begin = time.monotonic()
    writer = sink.open(header())
    assert time.monotonic() - begin > 0.5
    with pytest.raises(StreamError, match="another answer"):
        writer.write(report(2, HeavyHitter("", None, -4)))
    writer.close()
    releaser.join()
    other.close()


def large_report(window, items):
    """Its items are as long as they may be, and cannot be compressed much."""
    labels = (random.Random(rank).randbytes(8_000).hex() for rank in range(items))
    return report(window, *(HeavyHitter(label, None, items - rank) for rank, label in enumerate(labels)))


def test_a_topic_that_takes_no_large_report_is_told_with_its_remedy(sink, server):
    """The broker decides, after compression. What it refuses is not lost: the run goes on when the topic takes it."""
    reports = [REPORTS[0], large_report(1, 75)]
    assert len(encode_record(reports[1], "run-1")) > 1_200_000
    write_all(sink, reports, ended=None)
    eventually(lambda: sink.read("run-1")[1], reports)
    with pytest.raises(StreamError, match=r"Raise its max\.message\.bytes") as caught:
        write_all(sink, [large_report(3, 140)], ended=None)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300, "it holds nothing of the report"
    writer = sink.open(header())
    writer.write(large_report(3, 140))
    writer.producer.flush(10.0)  # it is refused before the next one is written
    with pytest.raises(StreamError, match=r"Raise its max\.message\.bytes"):
        writer.write(REPORTS[2])
    writer.close()
    assert sink.read("run-1")[1] == reports
    set_most_bytes(server, sink.topic, 10_000_000)
    reports += [large_report(3, 140), REPORTS[2]]
    write_all(sink, reports)
    eventually(lambda: sink.read("run-1"), (header(), reports, ENDED))


def set_most_bytes(server, topic, most):
    """As an operator does, with kafka-configs.sh."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("max.message.bytes", str(most), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = server.admin()
    admin.incremental_alter_configs([resource])[resource].result(timeout=15.0)
