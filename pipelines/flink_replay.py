"""A replay on Flink: starts the job, watches it to its end or leaves it running; the command publishes the report.

A job may be repeated in part or as a whole. That changes nothing: each answer is a function of the key, the run id and
the log, and files appear under their names once.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import secrets
import time

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult, PipelineState

from dp_transforms.beam.publish_report import PublishReport
from dp_transforms.beam.read_events import ReadEvents
from dp_transforms.beam.write_rejected import WriteRejected
from dp_transforms.beam.write_reports import WriteReports
from dp_transforms.event_files import estimate_log
from dp_transforms.pipelines.exit_signals import Unwinding
from dp_transforms.pipelines.flink_progress import FlinkProgress, ReplayWatch
from dp_transforms.pipelines.operator_log import tell
from dp_transforms.pipelines.options import UserError
from dp_transforms.pipelines.pipeline_errors import errors_in_one_line
from dp_transforms.pipelines.quiet_workers import quiet_workers
from dp_transforms.pipelines.replay_engine import FlinkReplay
from dp_transforms.pipelines.replay_run import ReplayRequest, ReplaySummary, release_whole, run_replay
from dp_transforms.pipelines.stream_engine import started_engine
from dp_transforms.pipelines.stream_job import StreamJob, job_name
from dp_transforms.pipelines.stream_ports import check_ports
from dp_transforms.runners.engine_process import EngineError
from dp_transforms.runners.flink_rest import FlinkRest

_EVENTS_PER_SHARD = 500_000
_LEAST_SHARDS, _MOST_SHARDS = 8, 1024
_GROUPS_OF_WINDOWS = 128  # as `assign_windows.Sharding` cuts them
_SECONDS_TO_START = 300.0
_SECONDS_TO_CANCEL = 10.0
_SECONDS_BETWEEN_LOOKS = 2.0
_NOTHING_STARTED = "nothing was started"


def replay_on_flink(request: ReplayRequest, engine: FlinkReplay) -> ReplaySummary | None:
    """Returns when the report is published; with --detach None as soon as Flink runs the job.

    Raises UserError, one line without any cell, and KeyboardInterrupt when the operator ends it; the job is cancelled.
    """
    request = dataclasses.replace(request, shards=shards_for(request, engine.choice.parallelism))
    name = job_name(request)
    with Unwinding(), started_engine(engine.choice, engine.beam_words, name) as (options, flink):
        assert flink is not None
        if engine.detach:
            _leave_running(request, options, flink)
            return None
        watch = ReplayWatch(flink, name)
        return run_replay(request, options, None, run=lambda pipeline: _run(pipeline, watch, engine))


def shards_for(request: ReplayRequest, parallelism: int) -> int:
    """Into how many parts users and items are cut, so that a part has about half a million events, whatever the log.

    In release mode names one part holds all windows of its users; in others windows are cut as well.
    """
    schedule = request.plan.schedule
    events = estimate_log(request.chunks, request.fields).events * schedule.windows_per_event
    slabs = 1 if request.plan.release == "names" else min(schedule.horizon, _GROUPS_OF_WINDOWS)
    wanted = max(-(-events // (_EVENTS_PER_SHARD * slabs)), -(-max(_LEAST_SHARDS, 4 * parallelism) // slabs))
    return min(_MOST_SHARDS, wanted)


def _run(pipeline: beam.Pipeline, watch: ReplayWatch, engine: FlinkReplay) -> PipelineResult:
    """Returns when the job has succeeded. Raises what it fails with, also what every restart of it would fail with."""
    job = StreamJob(pipeline)
    try:
        with FlinkProgress() as progress:
            while not job.is_over:
                if not engine.choice.allow_open_ports:
                    check_ports(engine.choice.name, allow=False)
                progress.show(watch.look())
                _wait(job, _SECONDS_BETWEEN_LOOKS)
        job.raise_error()
    except BaseException:
        watch.cancel(_SECONDS_TO_CANCEL)
        raise
    assert job.result is not None
    return job.result


def _wait(job: StreamJob, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not job.is_over and time.monotonic() < deadline:
        time.sleep(0.05)


def _leave_running(request: ReplayRequest, options: PipelineOptions, flink: FlinkRest) -> None:
    with quiet_workers(), errors_in_one_line(_NOTHING_STARTED):
        pipeline = beam.Pipeline(options=options)
        build_detached(pipeline, request)
        result = pipeline.run()
        try:
            job_id = _wait_until_running(result, flink, job_name(request))
        except EngineError as error:
            raise UserError(" ".join(str(error).split())) from None
    tell(
        f"The job runs on without this command: see it at http://{flink.address}/#/job/{job_id}. When it is FINISHED,"
        f" the report is there: {request.output}. If it is not, too many rows could not be read (--max-bad-fraction)."
    )
    print(job_id)


def build_detached(pipeline: beam.Pipeline, request: ReplayRequest) -> None:
    """The pipeline of a replay that publishes by itself (`PublishReport`)."""
    output = pathlib.Path(request.output)
    folder = output.with_name(f".{output.name}.{secrets.token_hex(8)}.detached")
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        raise UserError(f"--output {output} cannot be written: {error.strerror}. Check its folder.") from None
    draft = str(folder / f"file{output.suffix}")
    batches, bad_rows = pipeline | "ReadEvents" >> ReadEvents(request.chunks, request.fields)
    reports = release_whole(batches, request)
    paths = reports | "WriteReports" >> WriteReports(draft, request.header, shown_name=request.output)
    publish = PublishReport(draft, request.output, request.header, request.max_bad_fraction)
    _ = (paths, batches, bad_rows) | "PublishReport" >> publish
    if request.dead_letter is not None:
        _ = bad_rows | "WriteRejected" >> WriteRejected(request.dead_letter)


def _wait_until_running(result: PipelineResult, flink: FlinkRest, name: str) -> str:
    """The id of the job. Beam says RUNNING before Flink has it, and the job server must stay until Flink has it."""
    deadline = time.monotonic() + _SECONDS_TO_START
    while (job := flink.newest(name)) is None or job.state == "CREATED":
        if PipelineState.is_terminal(state := result.state) or time.monotonic() > deadline:
            raise UserError(f"the job is {state}, and Flink does not run it. See the log of the Flink cluster.")
        time.sleep(0.5)
    return job.job_id
