"""Monitor a stream: `MonitorStream`, the transform that users import for streams that do not end by themselves."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import apache_beam as beam

from dp_transforms.beam.in_order import ReleaseStagesInOrder
from dp_transforms.beam.keys import resolve_noise_key
from dp_transforms.beam.poll_partitions import LOOP, TIMERS, PollPartitions
from dp_transforms.beam.runner_options import keep_bundles_whole
from dp_transforms.checks import check_names
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItems, PublicItemsSource
from dp_transforms.core.stage import Sharding
from dp_transforms.core.steps import stages_of
from dp_transforms.errors import StreamError
from dp_transforms.logs.streams.open_partitions import Polling
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.logs.streams.stream_source import StreamSource
from dp_transforms.plan.plan import Plan


class StreamOutput(NamedTuple):
    """What `MonitorStream` returns.

    reports: PCollection of `WindowReport`, one per window with heavy items, at the maximal timestamp of its window, in
        the GlobalWindow. ended: PCollection of `RunEnded`, one, when the last window of the schedule is closed.
        rejected: PCollection of `RejectedEvents`, for the operator alone.
    """

    reports: beam.PCollection
    ended: beam.PCollection
    rejected: beam.PCollection


class MonitorStream(beam.PTransform):
    """Which items are held by many users in each window of a stream, under user-level differential privacy.

    Guarantee: as in `ShiftingHeavyHitters`, over all windows of the plan's schedule. The reports are those that
    `ShiftingHeavyHitters` returns for a stream with the events that came in time. For hits,
    bounded input gives the same reports; for contributions it does not: a stream does not know what a user will do
    later, so each user spends its budget at its own pace (`core.user_budgets`).

    Which events came in time depends on the records of the partitions and on the clock only (docs/guarantee.md,
    "Streams and parts"): not on watermarks, not on the engine, and not on restarts from the stored state.

    source: a `StreamSource`. Its partitions are listed when the transform is applied, and are fixed for the run.
    plan, noise_key, stream, shards, public_items: as in `ShiftingHeavyHitters`. A run that continues after a restart
        must have the same ones.
    clock: when a window is closed, and which events are too late.
    run_id: new for every run. Give an old one only to continue from the stored state of that run.
    driver: ``timers`` for engines that store and restore state; ``loop`` where timers cannot go on forever: then each
        partition is read in one call until it has ended.
    confirm: whether a decision of the wall clock or of the operator waits until the engine has stored it. False only
        where nothing is ever restored.
    stop_file: when a file appears at this path, what arrived by then counts, all windows are closed, and the run ends.
        All workers must see the file. Leave it there unchanged until the run has ended. "By then" includes an allowance
        for clocks that differ: `StreamClock.stop_micros`.
    poll_seconds: how long to wait when a partition has nothing more.

    Raises ValueError for an argument that cannot be used, and StreamError for a source that cannot be used.
    """

    def __init__(
        self,
        source: StreamSource,
        plan: Plan,
        *,
        clock: StreamClock,
        noise_key: beam.Secret | str | os.PathLike[str] | None = None,
        run_id: str,
        stream: str = "events",
        shards: int | None = None,
        public_items: PublicItems | str | os.PathLike[str] | None = None,
        driver: str = TIMERS,
        confirm: bool = True,
        stop_file: str | None = None,
        poll_seconds: float = 0.5,
    ) -> None:
        super().__init__()
        if not isinstance(plan, Plan):
            raise ValueError(
                f"plan must be a Plan, got a {type(plan).__name__}."
                " Use Plan.for_contributions(...) or Plan.for_hits(...)."
            )
        if not isinstance(clock, StreamClock):
            raise ValueError(f"clock must be a StreamClock, got a {type(clock).__name__}.")
        if not isinstance(run_id, str):
            raise ValueError("run_id must be given: a new name for a new run, or the name of the run to continue.")
        check_names(stream=stream, run_id=run_id)
        if driver not in (TIMERS, LOOP):
            raise ValueError(f"driver must be {TIMERS!r} or {LOOP!r}, got {driver!r}.")
        if isinstance(poll_seconds, bool) or not 0 < poll_seconds < math.inf:
            raise ValueError(f"poll_seconds must be > 0 and finite, got {poll_seconds!r}.")
        if stop_file is not None and "://" in stop_file:
            raise ValueError(f"stop_file must be a path that all workers see, not a URL, got {stop_file!r}.")
        if shards is None and driver == LOOP:
            shards = 1  # such an engine works in one process, where each key costs time
        self._source, self._clock, self._noise_key, self._driver = source, clock, noise_key, driver
        self._shards = Sharding.of_stream(shards).shards
        self._confirm, self._stop_file, self._poll_seconds = confirm, stop_file, poll_seconds
        self._public_items = PublicItemsSource.of_plan(public_items, plan)
        self._run = PlannedRun(plan=plan, stream=stream, run_id=run_id)
        self._stages = stages_of(self._run, self._public_items)

    def expand(self, begin: beam.pvalue.PBegin) -> StreamOutput:
        noise_key = resolve_noise_key(self._noise_key, begin.pipeline)
        keep_bundles_whole(begin.pipeline)
        listed = self._source.partitions()
        partitions = {partition.name: partition for partition in listed}
        if not partitions or len(partitions) != len(listed):
            raise StreamError(f"a source must have partitions with different names, got {len(listed)} partitions.")
        polling = Polling(
            partitions,
            self._run,
            self._clock,
            self._source.fingerprint(),
            self._shards,
            self._confirm,
            self._stop_file,
            self._poll_seconds,
        )
        poll = PollPartitions(polling, noise_key, self._public_items, driver=self._driver)
        messages, rejected = begin | "PollPartitions" >> poll
        release = ReleaseStagesInOrder(self._stages, noise_key, self._shards, len(partitions))
        reports, ended = messages | "Release" >> release
        return StreamOutput(reports, ended, rejected)
