"""Count: metrics for the operator alone. Never released, never by user or item (docs/guarantee.md, section 7)."""

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


class Counters:
    """Operator counters by name."""

    def __init__(self) -> None:
        self._counters: dict[str, Metrics.DelegatingCounter] = {}

    def add(self, counts: Counter[str]) -> None:
        for name, count in counts.items():
            if count:
                if name not in self._counters:
                    self._counters[name] = operator_counter(name)
                self._counters[name].inc(count)


def operator_counts(result: PipelineResult) -> dict[str, int]:
    """All counters of a finished run, without those that were never used."""
    counters = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]
    counts: dict[str, int] = {}
    for counter in counters:
        name = counter.key.metric.name
        counts[name] = counts.get(name, 0) + counter.result
    return counts


def operator_gauges(result: PipelineResult) -> dict[str, int]:
    """The latest values of all gauges of a run, without those that were never used."""
    gauges = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["gauges"]
    return {gauge.key.metric.name: gauge.result.value for gauge in gauges}
