"""Numbers for the operator alone: counts and gauges, never released, never by user or item (docs/guarantee.md, 7)."""

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

# Of streams.
RECORDS_READ = "records_read"  # those that were rejected among them
EVENTS_LATE = "events_late"  # for at least one of their windows
EVENTS_FROM_THE_FUTURE = "events_from_the_future"
EVENTS_AFTER_STOP = "events_after_stop"  # arrived when no more was to count
STOPS_SEEN_LATE = "stops_seen_late"  # partitions that had counted what arrived after a stop when they saw it
WINDOWS_CLOSED = "windows_closed"  # by the monitor, those without heavy items among them
INTENTS = "intents"  # times that the wall clock or the operator moved the clock of a partition

# Gauges of streams: the latest of many workers.
CLOCK_LAG_SECONDS = "clock_lag_seconds"  # of one partition's clock behind the wall clock
PENDING_WINDOWS = "pending_windows"  # with candidates that wait in the monitor
PARTITION_STATE_BYTES = "partition_state_bytes"
BUDGET_STATE_BYTES = "budget_state_bytes"  # of the hits of all users that were ever charged
STREAM_GAUGES = (CLOCK_LAG_SECONDS, PENDING_WINDOWS, PARTITION_STATE_BYTES, BUDGET_STATE_BYTES)


def operator_counter(name: str) -> Metrics.DelegatingCounter:
    return Metrics.counter(NAMESPACE, name)


def operator_gauge(name: str) -> Metrics.DelegatingGauge:
    return Metrics.gauge(NAMESPACE, name)


def operator_counts(result: PipelineResult) -> dict[str, int]:
    """All counters of a run that has finished; those that were never touched are left out."""
    counters = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]
    counts: dict[str, int] = {}
    for counter in counters:
        name = counter.key.metric.name
        counts[name] = counts.get(name, 0) + counter.result
    return counts


def operator_gauges(result: PipelineResult) -> dict[str, int]:
    """The latest values of all gauges of a run; those that were never touched are left out."""
    gauges = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["gauges"]
    return {gauge.key.metric.name: gauge.result.value for gauge in gauges}
