"""A topic on the mock cluster of librdkafka, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import confluent_kafka
import pytest

from dp_transforms.reports import topic_records
from dp_transforms.reports.report_topic import ReportTopic


@contextlib.contextmanager
def mock_topic(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReportTopic]:
    monkeypatch.setitem(topic_records.CONSUMER, "check.crcs", False)  # that cluster computes none
    cluster = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(cluster.list_topics("reports", timeout=60).brokers.values()))
    yield ReportTopic(f"{broker.host}:{broker.port}", "reports")
    del cluster
