"""Metrics: what an operator sees of a run in an engine. Never released, never by user or item (docs/guarantee.md, "What
may be published")."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.runners.runner import PipelineResult

from dp_transforms.core.operator_counts import (
    BUDGET_STATE_BYTES,
    CLOCK_LAG_SECONDS,
    COUNTER_STATE_BYTES,
    FOLLOWED_ITEMS,
    PARTITION_STATE_BYTES,
    PARTITIONS_UNREAD,
    PENDING_WINDOWS,
    WINDOWS_ANSWERED,
    WINDOWS_SENT,
)

NAMESPACE = "shh.operator"
STREAM_GAUGES = (
    CLOCK_LAG_SECONDS,
    WINDOWS_SENT,
    WINDOWS_ANSWERED,
    PARTITIONS_UNREAD,
    PARTITION_STATE_BYTES,
    COUNTER_STATE_BYTES,
    BUDGET_STATE_BYTES,
    FOLLOWED_ITEMS,
)
_OF_PARTITION = re.compile(rf"({CLOCK_LAG_SECONDS}|{WINDOWS_SENT})_\d+")


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


def of_partition(name: str, number: int) -> str:
    """The gauge of one partition: several share a worker, and the latest value would be that of any of them."""
    return f"{name}_{number}"


def counts_and_gauges(values: Mapping[str, Sequence[int]]) -> tuple[dict[str, int], dict[str, int]]:
    """From the values of all workers by name, without names of no value: sums of counters, and the largest gauges.

    While the last step has told nothing since a restart, `PENDING_WINDOWS` is what the partitions have told: no window
    is answered before all have sent it.
    """
    gauges: dict[str, list[int]] = {}
    counts: dict[str, int] = {}
    for name, parts in values.items():
        found = _OF_PARTITION.fullmatch(name)
        if found or name in STREAM_GAUGES:
            gauges.setdefault(found[1] if found else name, []).extend(parts)
        else:
            counts[name] = sum(parts)
    largest = {name: max(parts) for name, parts in gauges.items()}
    if (sent := gauges.get(WINDOWS_SENT)) is not None:
        largest[PENDING_WINDOWS] = largest.pop(WINDOWS_SENT) - largest.pop(WINDOWS_ANSWERED, min(sent))
    return counts, largest
