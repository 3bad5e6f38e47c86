"""Read: a Kafka topic -> rows of heavy items, declared by plain values alone: for Beam YAML and for other languages."""

from __future__ import annotations

import logging
from typing import Any

import apache_beam as beam

from dp_transforms.beam.encode_rows import EncodeRows
from dp_transforms.beam.load_noise_key import stays_in_this_process
from dp_transforms.beam.monitor_stream import MonitorStream, StreamOutput
from dp_transforms.beam.poll_partitions import LOOP, TIMERS
from dp_transforms.beam.release_rows import HeavyHitterRows
from dp_transforms.logs.streams.kafka_topic import KafkaTopic, check_clock, check_topic
from dp_transforms.logs.streams.partition_progress import ARRIVAL, StreamClock
from dp_transforms.monitor.run_settings import fresh_run_id

_LOG = logging.getLogger(__name__)


class ReadHeavyHittersOfTopic(beam.PTransform):
    """A Kafka topic -> a PCollection of `HeavyHitterRow`, one for each heavy item of each window. It begins a pipeline.

    Guarantee and arguments: as in `HeavyHitterRows`, for the stream of `MonitorStream`. On a local runner it reads what
    the topic has and ends when all windows of the declared range are closed, so the range must lie in the past; on an
    engine that keeps state it goes on. What is written after it may come twice when an engine recovers: an answer that
    comes again is the same one. A pipeline that is built again is a new run, with new noise, and costs its budget
    again; it refuses what an engine stored for another one.

    bootstrap_servers, topic, client_config_file: as in `KafkaTopic`. Records are JSON objects.
    time: as in `EventFields`, ``timestamp`` by default.
    clock, allowed_lateness, idle_timeout: kind and times, in seconds, of the `StreamClock`. By ``arrival`` the broker
        must set the times of records (``message.timestamp.type=LogAppendTime``): records whose time was set by their
        producer are rejected, since one of them could close windows for all. ``event`` is for history whose disorder is
        known: one event far ahead makes events of others late, which the guarantee does not cover.

    Raises ValueError for an argument that cannot be used, and StreamError for a topic that cannot: in which producers
    set the times of records (by ``arrival``), or which is compacted.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        plan: str | None = None,
        *,
        time: str = "timestamp",
        client_config_file: str | None = None,
        clock: str = ARRIVAL,
        allowed_lateness: float = 60,
        idle_timeout: float = 60,
        **more: Any,
    ) -> None:
        super().__init__()
        self._rows = HeavyHitterRows(plan, time=time, **more)
        self._source = KafkaTopic(
            bootstrap_servers,
            topic,
            self._rows.fields_of_log,
            client_config_file=client_config_file,
            append_times_only=clock == ARRIVAL,
        )
        self._clock = StreamClock(clock, allowed_lateness_seconds=allowed_lateness, idle_timeout_seconds=idle_timeout)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        check_clock(self._clock, _LOG.warning)
        check_topic(self._source, self._clock, _LOG.warning)
        is_local = stays_in_this_process(begin.pipeline)
        monitor = MonitorStream(
            self._source,
            self._rows.plan,
            clock=self._clock,
            driver=LOOP if is_local else TIMERS,
            confirm=not is_local,
            run_id=fresh_run_id(),
            **self._rows.arguments,
        )
        output = begin | "MonitorStream" >> monitor
        assert isinstance(output, StreamOutput)
        return output.reports | "EncodeRows" >> EncodeRows(in_order=is_local)
