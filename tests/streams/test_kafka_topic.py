"""A topic as a source: its settings, its file of secrets, whose clock it has; and the real client on a simulated
cluster."""

import dataclasses
import time

import pytest

from dp_transforms.cli.options import Options
from dp_transforms.cli.stream import command, stream_job
from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams import kafka_topic
from dp_transforms.logs.streams.kafka_topic import KafkaPartition, KafkaTopic, check_topic
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.stores.kafka_client import client_settings, error_name, silent_logger
from tests.helpers.small_runs import key_file, small_plan

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
FIELDS = EventFields("user", "item", "time", "s")
TOPIC = KafkaTopic("b:1", "t", FIELDS)


def trouble(name):
    return confluent_kafka.KafkaException(confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name)))


def config_file(folder, content):
    path = folder / "client.properties"
    path.write_bytes(content)
    return str(path)


def test_a_file_of_settings_gives_way_to_what_the_command_sets(tmp_path):
    path = config_file(
        tmp_path,
        b"# note\n! note\n\n  sasl.password = a=b #c \nretries=1\nempty=\nsasl.password=last\nbootstrap.servers=x:1\n",
    )
    settings = {"sasl.password": "last", "retries": "1", "empty": ""}
    own, defaults = {"enable.auto.commit": False}, {"retries": "9", "group.id": "shh"}
    made = {**settings, "group.id": "shh", "bootstrap.servers": "here:1", **own}
    assert client_settings("here:1", path, own, defaults) == made
    assert client_settings("here:1", None, own, {}) == {"bootstrap.servers": "here:1", **own}
    path = config_file(tmp_path, b"enable.auto.commit=true\nacks=0\n")
    with pytest.raises(StreamError, match=r"the settings acks, enable.auto.commit are set by the command"):
        client_settings("here:1", path, {**own, "acks": "all"}, {})


@pytest.mark.parametrize(
    "content", [b"a=1\nhunter2\n", b"#\n\n = hunter2\n", b"a=\xff\n", b"a=" + b"x" * (1 << 20), None]
)
def test_a_file_of_settings_that_cannot_be_used_is_told_without_its_values(tmp_path, content):
    path = str(tmp_path / "none") if content is None else config_file(tmp_path, content)
    with pytest.raises(StreamError) as caught:
        client_settings("here:1", path, {}, {})
    assert path in str(caught.value)
    assert "cannot be read. Put a regular file of at most 1 MB there, on every worker" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_errors_are_named_by_words_of_the_library():
    error = confluent_kafka.KafkaError(confluent_kafka.KafkaError._ALL_BROKERS_DOWN, "host secret:9092")
    assert error_name(error) == error_name(confluent_kafka.KafkaException(error)) == "_ALL_BROKERS_DOWN"
    assert error_name(None) == error_name(ValueError()) == "unknown error"


def test_a_source_names_what_is_read_and_not_where():
    """The fingerprint tells whether a run may go on with what it had."""
    same = [{"bootstrap_servers": "c:2,d:3"}, {"client_config_file": "/f"}, {"unreachable_seconds": 5.0}]
    fields = ("mail item time s", "user page time s", "user item at s", "user item time ms")
    others = [{"fields": EventFields(*words.split())} for words in fields]
    others += [{"topic": "u"}, {"append_times_only": True}]
    assert {dataclasses.replace(TOPIC, **change).fingerprint() for change in same} == {TOPIC.fingerprint()}
    found = {dataclasses.replace(TOPIC, **change).fingerprint() for change in others}
    assert len({TOPIC.fingerprint(), *found}) == 7
    for change, said in (
        ({"topic": ""}, "needs bootstrap servers"),
        ({"bootstrap_servers": ""}, "needs bootstrap servers"),
        ({"unreachable_seconds": 0.9}, "1 to 86400, got 0.9"),
        ({"unreachable_seconds": 86_401}, "1 to 86400, got 86401"),
    ):
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(TOPIC, **change)


def test_partitions_are_those_of_the_broker_and_read_from_where_they_are_told():
    cluster = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(cluster.list_topics("clicks", timeout=60).brokers.values()))
    topic = KafkaTopic(f"{broker.host}:{broker.port}", "clicks", FIELDS)
    assert topic.partitions() == [KafkaPartition(topic, number) for number in range(4)]
    assert [partition.name for partition in topic.partitions()] == [f"clicks:{number}" for number in range(4)]
    assert len(dataclasses.replace(topic, first_partitions=3).partitions()) == 3
    with pytest.raises(StreamError, match=r"has 4 partitions, and this run reads 5\. Bring the others back"):
        dataclasses.replace(topic, first_partitions=5).partitions()
    with pytest.raises(StreamError, match="there is no Kafka topic 'not one' that can be read"):
        KafkaTopic(topic.bootstrap_servers, "not one", FIELDS).partitions()
    del cluster


def test_a_broker_that_is_not_there_is_told_within_seconds(monkeypatch, tmp_path):
    monkeypatch.setattr(kafka_topic, "_ASK_SECONDS", 0.5)
    topic = KafkaTopic("127.0.0.1:1", "clicks", FIELDS)
    for ask in (topic.partitions, topic.settings):
        begin = time.monotonic()
        with pytest.raises(StreamError, match=r"no Kafka broker answers at 127.0.0.1:1 \(_[A-Z_]+\)"):
            ask()
        assert time.monotonic() - begin < 60
    refused = config_file(tmp_path, b"no.such.setting=hunter2\n")
    with pytest.raises(StreamError, match=r"refuses its settings: check no\.such\.setting"):
        dataclasses.replace(topic, client_config_file=refused).partitions()


def test_what_a_consumer_is_made_with(monkeypatch, tmp_path):
    """The group of the file, which the rights of a user may name, and not the one that the library requires."""
    made = []
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda settings, **more: made.append((settings, more)))
    dataclasses.replace(TOPIC, client_config_file=config_file(tmp_path, b"retries=3\ngroup.id=mine\n")).open_consumer()
    ((settings, more),) = made
    assert more == {"logger": silent_logger()}, "nobody has checked what the log of the client holds"
    assert not silent_logger().propagate
    wanted = {
        "group.id": "mine",
        "retries": "3",
        "fetch.queue.backoff.ms": "20",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    assert wanted.items() <= settings.items()


# --- Whose clock a topic has, before a run begins

BROKERS, PRODUCERS = ({"message.timestamp.type": f"{kind}Time"} for kind in ("LogAppend", "Create"))


@pytest.mark.parametrize(
    ("said", "kind", "only", "refused"),
    [
        (BROKERS | {"cleanup.policy": "delete"}, "arrival", True, None),
        (
            PRODUCERS,
            "arrival",
            True,
            "message.timestamp.type=LogAppendTime.* give --clock producer",
        ),
        (PRODUCERS, "arrival", False, None),
        (PRODUCERS, "event", False, None),
        ({}, "arrival", True, None),
        *((BROKERS | {"cleanup.policy": "compact,delete"}, kind, True, "compacted") for kind in ("arrival", "event")),
    ],
)
def test_a_topic_that_loses_records_or_whose_producers_could_move_the_clock_is_refused(
    monkeypatch, said, kind, only, refused
):
    monkeypatch.setattr(KafkaTopic, "settings", lambda _: said)
    topic = dataclasses.replace(TOPIC, append_times_only=only)
    if refused is None:
        check_topic(topic, StreamClock(kind))
        return
    with pytest.raises(StreamError, match=refused):
        check_topic(topic, StreamClock(kind))


@pytest.mark.parametrize(
    ("words", "only"), [([], True), (["--clock", "producer"], False), (["--clock", "event"], False)]
)
def test_the_command_believes_producers_only_where_it_was_told_to(words, only, tmp_path):
    given = ["--input", "kafka://b:1/clicks", "--output", str(tmp_path / "reports"), *words]
    given += ["--noise-key-file", key_file(tmp_path), "--start", "2026-01-01", "--end", "2026-01-02", "--window", "1h"]
    given += ["--epsilon", "2", "--delta", "1e-9", "--charge", "hits"]
    options = Options(**command.make_context("stream", given, obj=[]).params)
    job = stream_job(options, small_plan(), options.noise_key_file, "run-1")
    assert job.source.append_times_only is only
