"""Numbers for the operator alone: counts of events, never released, never by user or item (docs/guarantee.md, 7)."""

from __future__ import annotations

from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.runners.runner import PipelineResult

NAMESPACE = "shh.operator"

EVENTS_READ = "events_read"
EVENTS_REJECTED = "events_rejected"
EVENTS_OUTSIDE_RANGE = "events_outside_range"
EVENTS_OUTSIDE_DOMAIN = "events_outside_domain"  # of those inside the range
LATE_BATCHES = "late_batches_dropped"


def operator_counter(name: str) -> Metrics.DelegatingCounter:
    return Metrics.counter(NAMESPACE, name)


def operator_counts(result: PipelineResult) -> dict[str, int]:
    """All counters of a run that has finished; those that were never touched are left out."""
    counters = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]
    counts: dict[str, int] = {}
    for counter in counters:
        name = counter.key.metric.name
        counts[name] = counts.get(name, 0) + counter.result
    return counts
