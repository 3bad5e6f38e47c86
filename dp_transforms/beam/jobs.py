"""The two pipelines that are submitted to Beam: a replay and a stream, each built by one function.

``shh replay --runner`` and ``shh stream`` build them, and so do pipelines/replay_log.py and pipelines/live_stream.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping

import apache_beam as beam
from apache_beam.options.pipeline_options import FlinkRunnerOptions, GoogleCloudOptions, PipelineOptions
from apache_beam.runners.runner import PipelineResult

from dp_transforms.beam.monitor_stream import LOOP, TIMERS, MonitorStream
from dp_transforms.beam.read_events import ReadEvents
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.replay_job import ReplayJob
from dp_transforms.beam.runner_options import FLINK, cluster_address, is_local, runner_of, waits_for_storing
from dp_transforms.beam.workers import counts_and_gauges, operator_values
from dp_transforms.beam.write_reports import WriteRejected, WriteRejectedFolder, WriteReports, WriteReportStream
from dp_transforms.errors import StreamError
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.logs.streams.stream_source import StreamSource
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportFolder, ReportHeader
from dp_transforms.reports.report_folder import StreamContents

_SECONDS_TO_CANCEL, _REST_SECONDS, _PATIENCE_SECONDS = 30.0, 60.0, 120.0
_EVENTS_PER_SHARD = 1_000_000  # fewer messages than with half a million, and less work
_LEAST_SHARDS, _MOST_SHARDS = 8, 1024
_GROUPS_OF_WINDOWS = 128  # as `core.stage` cuts them


def build_replay(pipeline: beam.Pipeline, job: ReplayJob) -> None:
    """Reading, the transform and, in a last step, the reports: each appears whole or not at all, over no other file,
    however often a worker dies. Raises ValueError for what cannot be used."""
    of_flink = pipeline.options.view_as(FlinkRunnerOptions)
    parallelism = of_flink.parallelism if runner_of(pipeline.options) == FLINK else None  # others choose it themselves
    batches, unread = pipeline | "ReadEvents" >> ReadEvents(job.chunks, job.fields, workers=parallelism)
    heavy = batches | "ShiftingHeavyHitters" >> ShiftingHeavyHitters(
        job.plan,
        noise_key=job.noise_key,
        run_id=job.run_id,
        stream=job.stream,
        public_items=job.public_items,
        shards=_shards(job, parallelism),
    )
    header = ReportHeader.of_plan(job.plan, job.run_id, job.stream)
    write = WriteReports(job.output, header, allow_empty=job.allow_empty)
    _ = (heavy.reports, batches, unread) | "WriteReport" >> write
    if job.dead_letter is not None:
        _ = unread | "WriteRejected" >> WriteRejected(job.dead_letter)


def _shards(job: ReplayJob, parallelism: int | None) -> int:
    """So many that a part has at most a million events, as long as there are less than a billion. Where users pay for
    contributions one part holds all windows of its users; else windows are cut as well. Results do not depend on it."""
    schedule = job.plan.schedule
    events = sum(chunk.rows_about for chunk in job.chunks) * schedule.windows_per_event
    window_ranges = 1 if job.plan.contributions is not None else min(schedule.horizon, _GROUPS_OF_WINDOWS)
    fewest = max(_LEAST_SHARDS, 4 * (parallelism or 1))
    return min(_MOST_SHARDS, max(-(-events // (_EVENTS_PER_SHARD * window_ranges)), -(-fewest // window_ranges)))


def run_to_end(pipeline: beam.Pipeline) -> PipelineResult:
    """Runs it. Raises what it fails with; a job that is not waited for any more is cancelled."""
    cancel = _Cancel(pipeline.options)
    result = _started(pipeline)
    try:
        result.wait_until_finish()
    except BaseException:
        if left := cancel(result):
            print(left, file=sys.stderr)
        raise
    return result


class _Cancel:
    """Ends a job, if it runs. Made before it runs: Beam takes the runner out of the options then."""

    def __init__(self, options: PipelineOptions) -> None:
        self._cluster, self._name = cluster_address(options), options.view_as(GoogleCloudOptions).job_name

    def __call__(self, result: PipelineResult) -> str:
        """What to say where the job may still be there; else empty."""
        left = ""
        if self._cluster is not None:
            try:
                self._on_cluster(self._cluster)
            except OSError as error:
                left = f"The job {self._name} may still be there: {error}. Cancel it at {self._cluster}."
        with contextlib.suppress(Exception):  # it may be over
            result.cancel()
        return left

    def _on_cluster(self, address: str) -> None:
        """By Flink's REST API: a job server that is told to cancel leaves the job there."""
        with urllib.request.urlopen(f"{address}/jobs/overview", timeout=_REST_SECONDS) as answer:
            jobs = json.load(answer)["jobs"]
        for job in jobs:
            if job["name"] == self._name and job["state"] not in ("FINISHED", "CANCELED", "FAILED"):
                request = urllib.request.Request(f"{address}/jobs/{job['jid']}?mode=cancel", method="PATCH")
                urllib.request.urlopen(request, timeout=_REST_SECONDS).close()


def _started(pipeline: beam.Pipeline) -> PipelineResult:
    """In the main thread, where Beam starts a job server or a Prism. They inherit that SIGINT is ignored: Ctrl-C of a
    terminal is for this process, which must not lose them before it has drained or cancelled its job. And Beam sets a
    handler of its own meanwhile, which would end them first."""
    if threading.current_thread() is not threading.main_thread():
        return pipeline.run()
    before = signal.getsignal(signal.SIGINT)
    if not is_local(pipeline.options):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return pipeline.run()
    finally:
        signal.signal(signal.SIGINT, before)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamJob:
    """A stream, and where its reports go.

    source, plan, noise_key, run_id, stream, public_items, stop_file: as in `MonitorStream`; clock: its keyword
        arguments of that.
    dead_letter: a folder.
    """

    source: StreamSource
    clock: StreamClock
    plan: Plan
    noise_key: beam.Secret | str | None
    run_id: str
    stream: str
    public_items: str | None
    sink: ReportFolder
    dead_letter: str | None
    stop_file: str | None

    @property
    def header(self) -> ReportHeader:
        return ReportHeader.of_plan(self.plan, self.run_id, self.stream)


def build_stream(pipeline: beam.Pipeline, job: StreamJob) -> None:
    """Reading, the monitor, and a sink that keeps the first answer. Raises ValueError and StreamError."""
    options = pipeline.options
    monitor = MonitorStream(
        job.source,
        job.plan,
        noise_key=job.noise_key,
        run_id=job.run_id,
        stream=job.stream,
        public_items=job.public_items,
        # The local runner cannot run loops of timers, on and on: a partition is read in one call.
        driver=LOOP if is_local(options) else TIMERS,
        confirm=waits_for_storing(options),
        stop_file=job.stop_file,
        **vars(job.clock),
    )
    reports, ended, rejected = pipeline | "MonitorStream" >> monitor
    write = WriteReportStream(job.sink.path, job.plan, run_id=job.run_id, stream=job.stream)
    _ = (reports, ended) | "WriteReportStream" >> write
    if job.dead_letter is not None:
        _ = rejected | "WriteRejected" >> WriteRejectedFolder(job.dead_letter)


def watch_to_end(pipeline: beam.Pipeline, job: StreamJob, *, pause_seconds: float = 2.0) -> None:
    """Runs a stream until all its reports are there (`watch`), and cancels the job, which else might never end."""
    running = RunningPipeline(pipeline)
    try:
        looks = watch(running, job, pause_seconds=pause_seconds)
        while not running.is_over and next(looks, None):
            pass
        running.raise_error()
    finally:
        running.cancel()


def watch(running: RunningPipeline, job: StreamJob, *, pause_seconds: float) -> Iterator[StreamContents]:
    """What each look at the output of a stream finds, until all reports are there that the end of its run counts, or
    the job is over: some runners never end a job by themselves, and the end may come before the last reports.

    Raises what the job fails with, and StreamError where its output cannot be read for two minutes: cancel the job
    then, which would go on unwatched.
    """
    reports, read_at = job.sink.follow(job.run_id), time.monotonic()
    while True:
        if is_over := running.is_over:  # before the look, which is the last then
            running.raise_error()
        try:
            found = reports.read_new()
        except StreamError:
            if time.monotonic() - read_at >= _PATIENCE_SECONDS:
                raise
            yield None, [], None
        else:
            read_at = time.monotonic()
            yield found
            _, _, ended = found
            has_all = ended is not None and len(reports.known) >= ended.reports
            if is_over or (has_all and not running.ends_by_itself):
                return
        time.sleep(pause_seconds)


class RunningPipeline:
    """A pipeline that is waited for in a thread. Made in the main thread. The local runner also runs it there: it
    returns a result only when the job is done. Raises what a runner says of a job that it does not take."""

    def __init__(self, pipeline: beam.Pipeline) -> None:
        self._pipeline, self._cancel = pipeline, _Cancel(pipeline.options)
        self.ends_by_itself = is_local(pipeline.options)  # and cannot be cancelled
        self._result: PipelineResult | None = None if self.ends_by_itself else _started(pipeline)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._result = self._result or self._pipeline.run()
            self._result.wait_until_finish()
        except BaseException as error:
            self._error = error

    def raise_error(self) -> None:
        """Raises what the pipeline failed with, if it did."""
        if self._error is not None:
            raise self._error

    def counts_and_gauges(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """For the operator, as the runner has them by now; some have them at the end alone."""
        if self._result is None:
            return {}, {}
        if hasattr(self._result, "_metrics"):
            self._result._metrics = None  # else Beam would return its first answer again
        try:
            return counts_and_gauges(operator_values(self._result))
        except Exception:  # of any runner's client; numbers for the operator must not end a run
            return {}, {}

    def cancel(self) -> str:
        """Returns when it is over, or after half a minute; and what to say where the job may still be there."""
        left = self._cancel(self._result) if self._result is not None and not self.is_over else ""
        self._thread.join(_SECONDS_TO_CANCEL)
        return left
