"""Sinks of every kind, each new and empty; a run to write into them; and what is stored there, seen by other means than
the readers under test."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, WindowReport
from dp_transforms.reports import ReportHeader, topic_records
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.reports.report_topic import ReportTopic
from dp_transforms.reports.report_writer import ReportSink

HOUR = 3_600_000_000
START = 1_506_826_800_000_000  # 2017-10-01T03:00:00Z
ENDED = RunEnded("news", 48, 4)
KINDS = ("folder", "topic")
PARTITIONS = 4  # of each topic of the simulated cluster


def header(run_id: str = "run-1", stream: str = "news", epsilon: float = 2.0, words: str = "ε = 2") -> ReportHeader:
    return ReportHeader(run_id, stream, words, {"epsilon": epsilon})


HEADER = header()


def report(window: int, *heavy_hitters: HeavyHitter, stream: str = "news") -> WindowReport:
    start = START + window * HOUR
    return WindowReport(stream, start, start + HOUR, list(heavy_hitters), 2.0, 1e-9, 0.1 * (window + 1))


def one_item(window: int, users: int = 9) -> WindowReport:
    return report(window, HeavyHitter("a", None, users))


_LONG = (1 << 63) - 1
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_998  # of the calendar
REPORTS = [
    report(0, HeavyHitter("Ünïcode ☃ 🎄 '\";--", ABOVE, None), HeavyHitter("b", BETWEEN, 812)),
    report(2, HeavyHitter("", None, -3), HeavyHitter("a\0b", None, -(1 << 63)), HeavyHitter("a\ufffdb", None, _LONG)),
    report(7),
    report(30, *(HeavyHitter(f"item-{rank}", None, None, _LONG - rank, rank) for rank in range(40))),
]
OTHER = report(2, HeavyHitter("", None, -4))
EDGES = [
    WindowReport("news", _FIRST, _FIRST + 1, [HeavyHitter("x", None, 1)], 2.0, 1e-9, 0.1 + 0.2),
    WindowReport("news", START, START + 1, [HeavyHitter("\\x41\n\t\u202e", None, 1)], 5e-324, 1e-9, 1 / 3),
    WindowReport("news", _LAST, _LAST + 1, [HeavyHitter("x" * 16_384, None, 1)], 1.7976931348623157e308, 1.0, 2.0),
]
MANY = [report(window, HeavyHitter(f"item-{window}", ABOVE, None)) for window in range(60)]


def write_all(
    sink: ReportSink, reports: Sequence[Any] = REPORTS, ended: RunEnded | None = ENDED, run: ReportHeader = HEADER
) -> list[str]:
    with contextlib.closing(sink.open(run)) as writer:
        keys = [writer.write(window) for window in reports]
        if ended is not None:
            keys.append(writer.end(ended))
        writer.commit()
    return keys


# --- Kinds


@contextlib.contextmanager
def sink_of_kind(kind: str, place: pathlib.Path) -> Iterator[Any]:
    if kind == "folder":
        yield ReportFolder(str(place / "deep" / "reports"))
    else:
        with simulated_topic() as topic:
            yield ReportTopic(topic.bootstrap_servers, topic.topic)


@contextlib.contextmanager
def simulated_topic(**more: Any) -> Iterator[ReportTopic]:
    """On the cluster that librdkafka simulates in this process. It takes transactions and commits them, but fences no
    writer and hides nothing that was given up: a real broker is in tests/engines."""
    kafka = pytest.importorskip("confluent_kafka")
    cluster = kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(cluster.list_topics("reports", timeout=60).brokers.values()))
    with pytest.MonkeyPatch.context() as changed:
        changed.setitem(topic_records.CONSUMER, "check.crcs", False)  # that cluster computes none
        yield ReportTopic(f"{broker.host}:{broker.port}", "reports", **more)
    del cluster


# --- What is stored


def stored(sink: ReportSink) -> Any:
    """All of it: equal if and only if nothing was written meanwhile."""
    return files_of(sink.path) if isinstance(sink, ReportFolder) else records_of(sink)


def files_of(folder: str | pathlib.Path) -> dict[str, bytes]:
    """Hidden ones too."""
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def records_of(topic: Any) -> list[tuple[int, bytes, bytes]]:
    """Partition, key and value of all records."""
    import confluent_kafka as kafka

    settings = {"bootstrap.servers": topic.bootstrap_servers, "group.id": "test", "enable.partition.eof": True}
    found, at_end = [], 0
    with contextlib.closing(kafka.Consumer(settings)) as consumer:
        consumer.assign([kafka.TopicPartition(topic.topic, number, 0) for number in range(PARTITIONS)])
        while at_end < PARTITIONS:
            message = consumer.poll(60.0)
            assert message is not None, "the cluster answers"
            if message.error() is None:
                found.append((message.partition(), message.key(), message.value()))
            else:
                assert message.error().code() == kafka.KafkaError._PARTITION_EOF
                at_end += 1
    return found
