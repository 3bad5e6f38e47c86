"""`MonitorStream`: the transform that users import for streams that never end by themselves."""

from __future__ import annotations

import os
from typing import NamedTuple

import apache_beam as beam

from dp_transforms.accounting.release_plan import ReleasePlan
from dp_transforms.event_streams.partition_progress import StreamClock
from dp_transforms.event_streams.stream_source import StreamSource
from dp_transforms.item_domain import ItemDomain


class StreamOutput(NamedTuple):
    """What `MonitorStream` returns.

    reports: PCollection of `WindowReport`, one per window with heavy items, in the GlobalWindow. ended: PCollection of
        `RunEnded`, one when the last window of the schedule is closed. rejected: PCollection of `RejectedEvents`, for
        the operator alone.
    """

    reports: beam.PCollection
    ended: beam.PCollection
    rejected: beam.PCollection


class MonitorStream(beam.PTransform):
    """Which items are held by many users in each window of a stream, under user-level differential privacy."""

    def __init__(
        self,
        source: StreamSource,
        plan: ReleasePlan,
        *,
        clock: StreamClock,
        noise_key: beam.Secret | str | os.PathLike[str] | None = None,
        run_id: str,
        stream: str = "events",
        shards: int | None = None,
        domain: ItemDomain | str | os.PathLike[str] | None = None,
        driver: str = "timers",
        confirm: bool = True,
        stop_file: str | None = None,
        poll_seconds: float = 0.5,
    ) -> None:
        super().__init__()
        self._arguments = (source, plan, clock, noise_key, run_id, stream, shards, domain)
        self._driving = (driver, confirm, stop_file, poll_seconds)

    def expand(self, begin: beam.pvalue.PBegin) -> StreamOutput:
        raise RuntimeError("MonitorStream is not finished in this commit.")
