"""Metrics: what an operator sees of a run in an engine. Never released, never by user or item (docs/guarantee.md, "What
may be published")."""

from __future__ import annotations

from collections import Counter

from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.runners.runner import PipelineResult

NAMESPACE = "shh.operator"


def operator_counter(name: str) -> Metrics.DelegatingCounter:
    return Metrics.counter(NAMESPACE, name)


def operator_gauge(name: str) -> Metrics.DelegatingGauge:
    return Metrics.gauge(NAMESPACE, name)


def add_counts(counts: Counter[str]) -> None:
    """To the counters of these names."""
    for name, count in counts.items():
        if count:
            operator_counter(name).inc(count)


def operator_counts(result: PipelineResult) -> dict[str, int]:
    """All counters of a finished run, without those that were never used."""
    counts: Counter[str] = Counter()
    for counter in result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]:
        counts[counter.key.metric.name] += counter.result or 0  # Beam answers None for a 0 of Prism
    return dict(counts)


def operator_values(result: PipelineResult) -> dict[str, list[int]]:
    """Counters, and the latest value of a gauge in each step that has it, for `counts_and_gauges`."""
    values = {name: [count] for name, count in operator_counts(result).items()}
    for gauge in result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["gauges"]:
        values.setdefault(gauge.key.metric.name, []).append(gauge.result.value)
    return values
