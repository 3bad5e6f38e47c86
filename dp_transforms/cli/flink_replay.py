"""A replay on Flink: its job is started, and watched to its end or left running.

The report gets its name once: from the command that waits, or from the last step of a job that was left running. A job
may be repeated in part or as a whole. That changes nothing: each answer is a function of the key, the run id and the
log, and files appear under their names once.
"""

from __future__ import annotations

import dataclasses
import time

import apache_beam as beam
from apache_beam.runners.runner import PipelineResult

from dp_transforms.beam.write_files import PublishReport, WriteRejected, WriteReports, new_draft
from dp_transforms.cli.engine_choice import check_ports
from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.flink_jobs import FlinkProgress, FlinkStart, ReplayWatch
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.replay_request import (
    LEAST_WORKER_MEGABYTES,
    USUAL_WORKER_MEGABYTES,
    ClusterReplay,
    ReplayRequest,
    ReplaySummary,
)
from dp_transforms.cli.replay_run import read_log, release_whole, run_replay
from dp_transforms.cli.stream_job import StreamJob, started_engine
from dp_transforms.engines.flink_rest import FlinkRest
from dp_transforms.engines.portable import job_name
from dp_transforms.logs import estimate_log

_NOTHING_STARTED = "nothing was started"
_SECONDS_TO_CANCEL = 10.0
_SECONDS_BETWEEN_LOOKS = 2.0
_EVENTS_PER_SHARD = 1_000_000  # fewer messages than with half a million, and less work (docs/engines.md)
_LEAST_SHARDS, _MOST_SHARDS = 8, 1024
_GROUPS_OF_WINDOWS = 128  # as `stages.stage` cuts them
# Measured (docs/engines.md) and rounded up: what a worker holds beside the
# part that it works on (code, a block of the log, what waits to be sent), and what it holds for each event of two
# parts, since a task manager may begin one while another ends.
_FIXED_MEGABYTES = 1200
_BYTES_PER_EVENT = 2 * 165


def replay_on_flink(request: ReplayRequest, engine: ClusterReplay) -> ReplaySummary | None:
    """Returns when the report is published; with --detach None as soon as the cluster runs the job.

    Raises UserError, one line without any cell, and KeyboardInterrupt when the operator ends it; the job is cancelled.
    """
    parallelism = engine.choice.parallelism
    shards = shards_for(request, parallelism, engine.worker_megabytes)
    request = dataclasses.replace(request, shards=shards, workers=parallelism)
    name = job_name(request)
    with Unwinding(), started_engine(engine.choice, engine.beam_words, name) as (options, flink):
        assert flink is not None
        if engine.detach:
            with quiet_workers(), errors_in_one_line(_NOTHING_STARTED):
                pipeline = beam.Pipeline(options=options)
                build_detached(pipeline, request)
                _leave(pipeline, flink, name, request.output)
            return None
        watch = ReplayWatch(flink, name)
        return run_replay(request, options, run=lambda pipeline: _run_to_end(pipeline, watch, engine))


def build_detached(pipeline: beam.Pipeline, request: ReplayRequest) -> None:
    """The pipeline of a replay that publishes by itself (`PublishReport`)."""
    draft = new_draft(request.output)
    batches, bad_rows = read_log(pipeline, request)
    paths = release_whole(batches, request).reports | "WriteReports" >> WriteReports(
        draft, request.header, shown_name=request.output
    )
    publish = PublishReport(draft, request.output, request.header, request.options.max_bad_fraction)
    _ = (paths, batches, bad_rows) | "PublishReport" >> publish
    if request.options.dead_letter is not None:
        _ = bad_rows | "WriteRejected" >> WriteRejected(request.options.dead_letter)


def _run_to_end(pipeline: beam.Pipeline, watch: ReplayWatch, engine: ClusterReplay) -> PipelineResult:
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


def _leave(pipeline: beam.Pipeline, flink: FlinkRest, name: str, output: str) -> None:
    """Returns when Flink runs the job. Raises UserError."""
    start = FlinkStart(flink, name)
    job_id = start.wait_until_running(pipeline.run())
    tell(
        f"The job runs on without this command: see it at http://{flink.address}/#/job/{job_id}. When it is FINISHED,"
        f" the report is there: {output}. If it is not, too many rows could not be read (--max-bad-fraction)."
    )
    print(job_id)


def shards_for(request: ReplayRequest, parallelism: int, worker_megabytes: int = USUAL_WORKER_MEGABYTES) -> int:
    """So many that a part has at most a million events, or what a worker of this memory can hold if that is less. Of a
    log with more than a billion the parts grow up to that; then their number does.

    In mode looks one part holds all windows of its users; in others windows are cut as well. Results do not
    depend on it.
    """
    schedule = request.plan.schedule
    events = estimate_log(request.chunks, request.fields).events * schedule.windows_per_event
    slabs = 1 if request.plan.mode == "looks" else min(schedule.horizon, _GROUPS_OF_WINDOWS)
    wanted = max(-(-events // (_EVENTS_PER_SHARD * slabs)), -(-max(_LEAST_SHARDS, 4 * parallelism) // slabs))
    needed = -(-events // (events_that_fit(worker_megabytes) * slabs))
    return max(min(_MOST_SHARDS, wanted), needed)


def events_that_fit(worker_megabytes: int) -> int:
    """Of one part, in a worker of this memory. Raises ValueError."""
    if worker_megabytes < LEAST_WORKER_MEGABYTES:
        raise ValueError(f"a worker needs at least {LEAST_WORKER_MEGABYTES} MB, got {worker_megabytes}.")
    return (worker_megabytes - _FIXED_MEGABYTES) * 1_000_000 // _BYTES_PER_EVENT
