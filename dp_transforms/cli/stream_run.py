"""A run on an engine: builds the pipeline, starts it, and watches it, or leaves it running with ``--detach``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, TestOptions
from apache_beam.runners.runner import PipelineResult

from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.write_rejected import WriteRejectedFolder
from dp_transforms.beam.write_report_stream import WriteReportStream
from dp_transforms.beam.write_state import WriteState
from dp_transforms.cli.flink_start import FlinkStart
from dp_transforms.cli.flink_watch import FlinkWatch
from dp_transforms.cli.ledger_account import LedgerAccount
from dp_transforms.cli.pipeline_errors import errors_in_one_line
from dp_transforms.cli.quiet_workers import quiet_workers
from dp_transforms.cli.run_account import DONE, RunAccount
from dp_transforms.cli.state_part import part_is_done, part_is_taken, state_errors
from dp_transforms.cli.stream_account import accounted
from dp_transforms.cli.stream_engine import started_engine
from dp_transforms.cli.stream_job import StreamJob, job_name
from dp_transforms.cli.stream_metrics import LOOPBACK, served_metrics
from dp_transforms.cli.stream_options import FLINK
from dp_transforms.cli.stream_pubsub import PubSubSubscription, item_of, monitor_subscription, user_of
from dp_transforms.cli.stream_request import StreamRequest
from dp_transforms.cli.stream_state import StreamPart, no_window_was_over, part_of_stream, source_of_part
from dp_transforms.cli.stream_status import StreamStatus
from dp_transforms.cli.stream_watch import watch_stream
from dp_transforms.engines import dataflow
from dp_transforms.errors import UserError
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.logs.streams.topic_rules import check_clock, check_topic
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.runs.state_file import hold_state

_NOTHING_STARTED = "nothing was started"


def run_stream_part(
    request: StreamRequest, beam_words: Sequence[str], status: StreamStatus, account: LedgerAccount | None
) -> None:
    """One part of a run with a state. Returns when it has handed its state over, or was done before.

    Raises UserError and SystemExit like `run_stream`.
    """
    assert request.state is not None
    if any(word.startswith("--dry_run") for word in beam_words):
        raise UserError("--dry_run cannot be used with --state, whose part would count as begun. Leave --state out.")
    keeper = account or RunAccount()
    with state_errors(), hold_state(request.state.path):
        with errors_in_one_line(_NOTHING_STARTED):
            part = part_of_stream(request, keeper)
        if part.facts.how == DONE:
            keeper.finish(part.facts, part.facts.state_fingerprint)
            status.tell(part_is_done(part.facts))
            return
        part.prepare()
        with errors_in_one_line(_NOTHING_STARTED):
            source = source_of_part(request, part)
            request.sink.open(request.header).close()  # whose header shows later that the output is still there
        request = dataclasses.replace(request, source=source)
        if part.is_published:  # by a process that was killed then
            with part.account_of(keeper):
                part.publish(part.found_end)
        else:
            run_stream(request, beam_words, status, account, part)
    status.tell(no_window_was_over(part.facts) if part.is_empty else part_is_taken(part.facts))


def run_stream(
    request: StreamRequest,
    beam_words: Sequence[str],
    status: StreamStatus,
    account: LedgerAccount | None = None,
    part: StreamPart | None = None,
) -> None:
    """Returns when the run has ended, was drained, or was left running with --detach. account: None without a ledger.
    part: of a run with a state.

    Raises UserError, one line without any cell, and SystemExit if the operator ended it at once.
    """
    with errors_in_one_line(_NOTHING_STARTED):
        _check_clock(request, status)
        _announce(request, status)
    with (
        quiet_workers(),
        served_metrics(request.metrics_port, _labels(request)) as served,
        started_engine(request.engine, beam_words, job_name(request)) as (options, flink),
    ):
        if served is not None:
            status.tell(f"Numbers for the operator, for Prometheus: http://{LOOPBACK}:{served[1]}/metrics")
        with errors_in_one_line(_NOTHING_STARTED):
            pipeline = beam.Pipeline(options=options)
            build_pipeline(pipeline, request, part)
        if options.view_as(TestOptions).dry_run:
            with errors_in_one_line(_NOTHING_STARTED):
                size = dataflow.build_job(pipeline).ByteSize()
            status.tell(f"The job can be made; it has {size:,} bytes. Nothing was sent: --dry_run=true.")
            return
        # Before anything is charged: a cluster that does not answer gets no job.
        start = None if flink is None or request.engine.is_local else FlinkStart(flink, job_name(request))
        with accounted(request, account) if part is None else part.account_of(account or RunAccount()):
            if request.detach:
                with errors_in_one_line(_NOTHING_STARTED):
                    result = pipeline.run()
                _detach(result, start, request, options, status)
                return
            watch = None if flink is None else FlinkWatch(flink, job_name(request), request.engine.checkpoint_seconds)
            ended = watch_stream(StreamJob(pipeline), request, status, watch, part, served and served[0])
            if part is not None:
                part.publish(ended)


def build_pipeline(pipeline: beam.Pipeline, request: StreamRequest, part: StreamPart | None = None) -> None:
    """Input, monitor, outputs; of a part also its state. Raises StreamError and ValueError."""
    if isinstance(request.source, PubSubSubscription):
        monitor = ShiftingHeavyHitters(
            request.plan,
            noise_key=request.noise_key,
            run_id=request.run_id,
            stream=request.stream,
            user=user_of,
            item=item_of,
            domain=request.domain_file,
        )
        reports, rejected = monitor_subscription(pipeline, request.source, monitor)
        ended = pipeline | "NeverEnds" >> beam.Create([]).with_output_types(RunEnded)
    else:
        stream = MonitorStream(
            request.source,
            request.plan,
            clock=request.clock,
            noise_key=request.noise_key if part is None else part.facts.noise_key,
            run_id=request.run_id,
            stream=request.stream,
            domain=request.domain_file,
            driver="loop" if request.engine.reads_once else "timers",
            confirm=request.engine.recovers,
            stop_file=request.stop_file,
            part=None if part is None else part.run_part,
        )
        reports, ended, rejected, *states = pipeline | "MonitorStream" >> stream
        if part is not None:
            _ = states[0] | "WriteState" >> WriteState(
                part.draft,
                part.begun,
                part.run_part,
                part.forget_after,
                part.facts.state_path,
                part.facts.noise_key,
                stream.state_senders,
            )
    _ = (reports, ended) | "WriteReportStream" >> WriteReportStream(request.sink, request.header)
    if request.dead_letter is not None:
        _ = rejected | "WriteRejected" >> WriteRejectedFolder(request.dead_letter)


def _labels(request: StreamRequest) -> dict[str, str]:
    return {"run_id": request.run_id, "stream": request.stream, "engine": request.engine.name}


def _announce(request: StreamRequest, status: StreamStatus) -> None:
    status.announce(request.plan.guarantee)
    keep = " Keep this name and the noise key: both are needed to resume it." if request.engine.name == FLINK else ""
    status.tell(f"Run {request.run_id} on {request.engine.name}.{keep}")
    if (
        request.is_named
        and request.state is None
        and request.noise_key is not None
        and request.engine.resume_from is None
    ):
        status.tell(
            f"--run-id {request.run_id} begins a new run. Was this name used before with this noise key, on other data?"
            " Then both runs draw the same noise, and together they show what changed: stop, and leave --run-id out."
        )
    if request.stop_file is not None and request.detach:
        status.tell(f"To drain it, so that all windows close and it ends: touch {request.stop_file}")


def _check_clock(request: StreamRequest, status: StreamStatus) -> None:
    check_clock(request.clock, status.tell)
    if isinstance(request.source, KafkaTopic):
        check_topic(request.source, request.clock, status.tell, allow="--producer-times")


def _detach(
    result: PipelineResult,
    start: FlinkStart | None,
    request: StreamRequest,
    options: PipelineOptions,
    status: StreamStatus,
) -> None:
    """Prints the id of the job when the engine has it. start: of a job on Flink."""
    if start is None:
        if options.view_as(GoogleCloudOptions).template_location:
            return  # a template was made; no job runs yet
        print(result.job_id())
        return
    job_id = start.wait_until_running(result)
    status.tell(
        f"The job runs on without this command: see it at http://{request.engine.flink_master}, and cancel it there"
        " once its reports have an end record (docs/deploy.md)."
    )
    print(job_id)
