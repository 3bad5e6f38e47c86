"""A replay on a cluster, Flink or Dataflow: starts the job, watches it to its end or leaves it running.

The report gets its name once: from the command that waits, or from the last step of a job that was left running.
"""

from __future__ import annotations

import dataclasses

import apache_beam as beam

from dp_transforms.beam.write_files import PublishReport, WriteRejected, WriteReports, new_draft
from dp_transforms.cli.dataflow_replay import is_dry_run, leave_on_dataflow, make_job, run_on_dataflow
from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.flink_progress import ReplayWatch
from dp_transforms.cli.flink_replay import leave_on_flink, run_on_flink
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.replay_engine import ClusterReplay
from dp_transforms.cli.replay_request import ReplayRequest, ReplaySummary
from dp_transforms.cli.replay_run import read_log, release_whole, run_replay
from dp_transforms.cli.replay_shards import shards_for
from dp_transforms.cli.stream_engine import StartedEngine, started_engine
from dp_transforms.cli.stream_job import job_name
from dp_transforms.cli.stream_options import DATAFLOW

_WORKERS_OF_DATAFLOW = 16  # the service decides how many there are
_NOTHING_STARTED = "nothing was started"


def replay_on_cluster(request: ReplayRequest, engine: ClusterReplay) -> ReplaySummary | None:
    """Returns when the report is published; with --detach None as soon as the cluster runs the job, and None of a job
    that was only made (``--dry_run=true``).

    Raises UserError, one line without any cell, and KeyboardInterrupt when the operator ends it; the job is cancelled.
    """
    is_dataflow = engine.choice.name == DATAFLOW
    parallelism = _WORKERS_OF_DATAFLOW if is_dataflow else engine.choice.parallelism
    request = dataclasses.replace(
        request,
        shards=shards_for(request, parallelism, engine.worker_megabytes),
        workers=parallelism,
    )
    name = job_name(request)
    with Unwinding(), started_engine(engine.choice, engine.beam_words, name) as started:
        if engine.detach or is_dry_run(beam.Pipeline(options=started.options)):
            _leave(request, started, name)
            return None
        if is_dataflow:
            return run_replay(request, started.options, None, run=run_on_dataflow)
        assert started.flink is not None
        watch = ReplayWatch(started.flink, name)
        return run_replay(request, started.options, None, run=lambda pipeline: run_on_flink(pipeline, watch, engine))


def _leave(request: ReplayRequest, started: StartedEngine, name: str) -> None:
    with quiet_workers(), errors_in_one_line(_NOTHING_STARTED):
        pipeline = beam.Pipeline(options=started.options)
        build_detached(pipeline, request)
        if started.flink is not None:
            leave_on_flink(pipeline, started.flink, name, request.output)
        elif is_dry_run(pipeline):
            make_job(pipeline)
        else:
            leave_on_dataflow(pipeline, request.output)


def build_detached(pipeline: beam.Pipeline, request: ReplayRequest) -> None:
    """The pipeline of a replay that publishes by itself (`PublishReport`)."""
    draft = new_draft(request.output)
    batches, bad_rows = read_log(pipeline, request)
    reports = release_whole(batches, request)
    paths = reports | "WriteReports" >> WriteReports(draft, request.header, shown_name=request.output)
    publish = PublishReport(draft, request.output, request.header, request.max_bad_fraction)
    _ = (paths, batches, bad_rows) | "PublishReport" >> publish
    if request.dead_letter is not None:
        _ = bad_rows | "WriteRejected" >> WriteRejected(request.dead_letter)
