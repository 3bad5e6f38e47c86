"""A topic as a source: its settings, its file of secrets, its schema; and the real client on a simulated cluster."""

import dataclasses
import logging
import time
import types
from typing import Any

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams import kafka_topic
from dp_transforms.logs.streams.kafka_topic import KafkaPartition, KafkaTopic
from dp_transforms.stores.kafka_client import client_settings, error_name, read_client_config_file, silent_logger

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
MEGABYTE = 1 << 20
FIELDS = EventFields("user", "item", "time", "s")


def trouble(name):
    return confluent_kafka.KafkaException(confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name)))


def test_a_file_of_settings_is_read_line_by_line(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text(
        "# note\n! note\n\n  sasl.password = a=b #c \nssl.ca.location=/ca.pem\nempty=\nsasl.password=last\n"
    )
    assert read_client_config_file(str(path)) == {"sasl.password": "last", "ssl.ca.location": "/ca.pem", "empty": ""}


def config_file(folder, lines):
    (folder / "client.properties").write_text(f"{lines}\n")
    return str(folder / "client.properties")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a=1\nhunter2\n", "line 2 is not a setting. Write key=value."),
        (b"#\n\n = hunter2\n", "line 3 is not a setting. Write key=value."),
        (b"a=\xff\n", "cannot be read. Put a regular file there, on every worker."),
        (b"a=" + b"x" * MEGABYTE, "has more than 1 MB"),
        (None, "cannot be read. Put a regular file there, on every worker."),
    ],
)
def test_a_file_of_settings_that_cannot_be_used_is_told_without_its_values(tmp_path, content, said):
    path = tmp_path / "client.properties"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StreamError) as caught:
        read_client_config_file(str(path))
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_the_command_sets_wins_and_cannot_be_set_in_the_file(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text("sasl.username=file\nretries=1\nbootstrap.servers=elsewhere:1\n")
    own, defaults = {"enable.auto.commit": False}, {"retries": "9", "group.id": "shh"}
    assert client_settings("here:1", str(path), own, defaults) == {
        "sasl.username": "file",
        "retries": "1",
        "group.id": "shh",
        "bootstrap.servers": "here:1",
        "enable.auto.commit": False,
    }
    assert client_settings("here:1", None, own) == {"bootstrap.servers": "here:1", **own}
    path.write_text("enable.auto.commit=true\nacks=0\n")
    with pytest.raises(StreamError, match=r"the settings acks, enable.auto.commit are set by the command"):
        client_settings("here:1", str(path), {**own, "acks": "all"})


def test_the_log_of_the_client_goes_nowhere():
    """Pytest may add handlers of its own."""
    for _ in range(2):
        logger = silent_logger()
        assert not logger.propagate
        assert len([handler for handler in logger.handlers if type(handler) is logging.NullHandler]) == 1


def test_errors_are_named_by_words_of_the_library():
    error = confluent_kafka.KafkaError(confluent_kafka.KafkaError._ALL_BROKERS_DOWN, "host secret:9092")
    assert error_name(error) == error_name(confluent_kafka.KafkaException(error)) == "_ALL_BROKERS_DOWN"
    assert error_name(None) == error_name(ValueError()) == "unknown error"


def test_a_source_names_what_is_read_and_not_where(tmp_path):
    """The fingerprint tells whether a run may go on with what it had."""
    base = {"bootstrap_servers": "b:1", "topic": "t", "fields": FIELDS}
    same = [{"bootstrap_servers": "c:2,d:3"}, {"client_config_file": "/f"}, {"unreachable_seconds": 5.0}]
    others = [
        {"topic": "u"},
        {"fields": EventFields("mail", "item", "time", "s")},
        {"fields": EventFields("user", "page", "time", "s")},
        {"fields": EventFields("user", "item", "at", "s")},
        {"fields": EventFields("user", "item", "time", "ms")},
        {"append_times_only": True},
    ]
    fingerprint = KafkaTopic(**base).fingerprint()
    assert {KafkaTopic(**{**base, **change}).fingerprint() for change in same} == {fingerprint}
    assert len({fingerprint, *(KafkaTopic(**{**base, **change}).fingerprint() for change in others)}) == 7
    for change, said in (
        ({"topic": ""}, "needs bootstrap servers"),
        ({"bootstrap_servers": ""}, "needs bootstrap servers"),
        ({"unreachable_seconds": 0.9}, "1 to 86400, got 0.9"),
        ({"unreachable_seconds": 86_401}, "1 to 86400, got 86401"),
    ):
        with pytest.raises(ValueError, match=said):
            KafkaTopic(**{**base, **change})
    for seconds in (1, 86_400):
        assert KafkaTopic(**base, unreachable_seconds=seconds).unreachable_seconds == seconds


def test_partitions_are_those_of_the_broker_and_read_from_where_they_are_told():
    cluster = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(cluster.list_topics("clicks", timeout=60).brokers.values()))
    topic = KafkaTopic(f"{broker.host}:{broker.port}", "clicks", FIELDS)
    assert topic.partitions() == [KafkaPartition(topic, number, 4) for number in range(4)]
    assert [partition.name for partition in topic.partitions()] == [f"clicks:{number}" for number in range(4)]
    with pytest.raises(StreamError, match="there is no Kafka topic 'not one' that can be read"):
        KafkaTopic(topic.bootstrap_servers, "not one", FIELDS).partitions()
    for since, millis in ((5_000_999, 5_000), (0, 0)):
        reader = topic.partitions()[2].open(since_micros=since)
        assert reader._since_millis == millis
        reader.close()
    del cluster


def test_a_broker_that_is_not_there_is_told_within_seconds(monkeypatch, tmp_path):
    monkeypatch.setattr(kafka_topic, "_ASK_SECONDS", 0.5)
    topic = KafkaTopic("127.0.0.1:1", "clicks", FIELDS)
    for ask in (topic.partitions, topic.settings):
        begin = time.monotonic()
        with pytest.raises(StreamError, match=r"no Kafka broker answers at 127.0.0.1:1 \(_[A-Z_]+\)"):
            ask()
        assert time.monotonic() - begin < 60
    with pytest.raises(StreamError, match=r"refuses its settings: check no\.such\.setting"):
        dataclasses.replace(topic, client_config_file=config_file(tmp_path, "no.such.setting=hunter2")).partitions()


# What it asks of the client


def noting(calls, kind):
    def make(settings, **more):
        calls.append((settings, more))
        return kind(settings, **more)

    return make


def test_what_a_consumer_is_made_with(monkeypatch, tmp_path):
    """The group of the file, which the rights of a user may name, and not the one that the library requires."""
    calls = []
    monkeypatch.setattr(confluent_kafka, "Consumer", noting(calls, confluent_kafka.Consumer))
    topic = KafkaTopic("127.0.0.1:1", "t", FIELDS, client_config_file=config_file(tmp_path, "retries=3\ngroup.id=mine"))

    def note(error): ...

    topic.open_consumer(error_cb=note).close()
    ((settings, more),) = calls
    assert more == {"logger": silent_logger()}
    assert settings == {
        "group.id": "mine",
        "queued.max.messages.kbytes": "16384",
        "fetch.queue.backoff.ms": "20",
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

    def __init__(self, **topics):
        self._topics = topics
        self.calls = []

    def list_topics(self, topic, *, timeout):
        self.calls.append((topic, timeout))
        return types.SimpleNamespace(topics=self._topics)

    def close(self):
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
def test_why_a_topic_cannot_be_read(monkeypatch, topics, said):
    described = Described(**topics)
    monkeypatch.setattr(KafkaTopic, "open_consumer", lambda self: described)
    with pytest.raises(StreamError) as refused:
        KafkaTopic("b:1", "t", FIELDS).partitions()
    assert str(refused.value).startswith(f"there is no Kafka topic 't' that can be read {said}. Create it")
    assert described.calls == [("t", 8.0), ("close",)]


def test_partitions_are_in_order(monkeypatch):
    described = Described(t=types.SimpleNamespace(error=None, partitions={2: None, 0: None, 1: None}))
    monkeypatch.setattr(KafkaTopic, "open_consumer", lambda self: described)
    topic = KafkaTopic("b:1", "t", FIELDS)
    assert topic.partitions() == [KafkaPartition(topic, number, 3) for number in (0, 1, 2)]


class Administrator:
    """Answers for the settings of topics; the answer may be an error."""

    entries: Any = None

    def __init__(self, calls):
        self._calls = calls

    def __call__(self, settings, **more):
        self._calls.append(("made", settings, more))
        return self

    def describe_configs(self, resources, *, request_timeout):
        (resource,) = resources
        self._calls.append(("describe", resource.restype, resource.name, request_timeout))
        return {resource: self}

    def result(self, *, timeout):
        self._calls.append(("result", timeout))
        if isinstance(self.entries, BaseException):
            raise self.entries
        return {name: types.SimpleNamespace(value=value) for name, value in self.entries.items()}


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ({}, (None, None)),
        ({"message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete"}, (True, False)),
        ({"message.timestamp.type": "CreateTime", "cleanup.policy": "compact,delete"}, (False, True)),
        ({"cleanup.policy": "compact"}, (None, True)),
        ({"message.timestamp.type": "LogAppendTime"}, (True, None)),
        (trouble("TOPIC_AUTHORIZATION_FAILED"), (None, None)),
        (trouble("_TRANSPORT"), r"no Kafka broker answers at b:1 \(_TRANSPORT\)"),
    ],
)
def test_what_a_broker_says_of_a_topic(monkeypatch, tmp_path, entries, wanted):
    made = Administrator(calls := [])
    made.entries = entries
    monkeypatch.setattr(admin, "AdminClient", made)
    topic = KafkaTopic("b:1", "t", FIELDS, client_config_file=config_file(tmp_path, "no.such=3"))
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
