"""A run on an engine: builds the pipeline, starts it, watches it to its end, and stops it when asked to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pathlib
import re
import threading
import time
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, TestOptions
from apache_beam.runners.runner import PipelineResult, PipelineState

from dp_transforms.beam.count_for_operator import operator_counts, operator_gauges
from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.write_rejected import WriteRejectedFolder
from dp_transforms.beam.write_report_stream import WriteReportStream
from dp_transforms.event_streams.kafka_topic import KafkaTopic
from dp_transforms.event_streams.partition_progress import ARRIVAL
from dp_transforms.monitoring.window_report import RunEnded
from dp_transforms.pipelines.flink_watch import FlinkWatch
from dp_transforms.pipelines.options import UserError
from dp_transforms.pipelines.pipeline_errors import told_in_one_line
from dp_transforms.pipelines.quiet_workers import quiet_workers
from dp_transforms.pipelines.sink_look import SinkLook
from dp_transforms.pipelines.stop_signals import caught_stops
from dp_transforms.pipelines.stream_engine import started_engine
from dp_transforms.pipelines.stream_options import DATAFLOW, FLINK, IN_PROCESS
from dp_transforms.pipelines.stream_ports import check_ports
from dp_transforms.pipelines.stream_pubsub import PubSubSubscription, monitor_subscription
from dp_transforms.pipelines.stream_request import StreamRequest
from dp_transforms.pipelines.stream_status import StreamStatus
from dp_transforms.pipelines.stream_topic import check_topic
from dp_transforms.report_streams import ReportFolder
from dp_transforms.runners import dataflow
from dp_transforms.runners.engine_process import EngineError
from dp_transforms.runners.flink_rest import ENDED, FlinkRest
from dp_transforms.window_schedule import MICROS_PER_SECOND

_SECONDS_BETWEEN_LOOKS = 1.0
_LOOKING_SHARE = 10  # a look that takes long is followed by a pause so many times longer
_METRICS_EVERY_SECONDS = 5.0
_SECONDS_TO_CANCEL = 30.0
_SECONDS_TO_START = 300.0
_FAILED = "the windows that were reported before are valid and stay"


def run_stream(request: StreamRequest, beam_words: Sequence[str], status: StreamStatus) -> None:
    """Returns when the run has ended, was drained, or was left running with --detach.

    Raises UserError, one line without any cell, and SystemExit where the operator stopped it at once.
    """
    with told_in_one_line("nothing was started"):
        _check_clock(request, status)
        _announce(request, status)
    with quiet_workers(), started_engine(request.engine, beam_words, _job_name(request)) as (options, flink):
        with told_in_one_line("nothing was started"):
            pipeline = beam.Pipeline(options=options)
            build_pipeline(pipeline, request)
        if options.view_as(TestOptions).dry_run:
            with told_in_one_line("nothing was started"):
                size = dataflow.build_job(pipeline).ByteSize()
            status.tell(f"The job can be made; it has {size:,} bytes. Nothing was sent: --dry_run=true.")
            return
        if request.detach:
            try:
                with told_in_one_line("nothing was started"):
                    result = pipeline.run()
                _detach(result, request, options, status)
            except EngineError as error:
                raise UserError(" ".join(str(error).split())) from None
            return
        watch = None if flink is None else FlinkWatch(flink, _job_name(request), request.engine.checkpoint_seconds)
        _watch(_Job(pipeline), request, status, watch)


def build_pipeline(pipeline: beam.Pipeline, request: StreamRequest) -> None:
    """Input, monitor, outputs. Raises StreamError and ValueError."""
    if isinstance(request.source, PubSubSubscription):
        monitor = ShiftingHeavyHitters(
            request.plan,
            noise_key=request.noise_key,
            run_id=request.run_id,
            stream=request.stream,
            domain=request.domain_file,
        )
        reports, rejected = monitor_subscription(pipeline, request.source, monitor)
        ended = pipeline | "NeverEnds" >> beam.Create([]).with_output_types(RunEnded)
    else:
        reports, ended, rejected = pipeline | "MonitorStream" >> MonitorStream(
            request.source,
            request.plan,
            clock=request.clock,
            noise_key=request.noise_key,
            run_id=request.run_id,
            stream=request.stream,
            domain=request.domain_file,
            driver="loop" if request.engine.reads_once else "timers",
            confirm=request.engine.recovers,
            stop_file=request.stop_file,
        )
    _ = (reports, ended) | "WriteReportStream" >> WriteReportStream(request.sink, request.header)
    if request.dead_letter is not None:
        _ = rejected | "WriteRejected" >> WriteRejectedFolder(request.dead_letter)


def _job_name(request: StreamRequest) -> str:
    """What the engine shows; also within the rules of Dataflow. Another run has another one: it is cancelled by it."""
    name = re.sub(r"[^a-z0-9]+", "-", f"shh-{request.stream}-{request.run_id}".lower())
    digest = hashlib.sha256(json.dumps([request.stream, request.run_id]).encode()).hexdigest()
    return f"{name[:50].rstrip('-')}-{digest[:12]}"


def _announce(request: StreamRequest, status: StreamStatus) -> None:
    status.announce(request.plan.guarantee)
    keep = " Keep this name and the key: both are needed to go on with it." if request.engine.name == FLINK else ""
    status.tell(f"Run {request.run_id} on {request.engine.name}.{keep}")
    if request.is_named and request.noise_key is not None and request.engine.resume_from is None:
        status.tell(
            f"--run-id {request.run_id} begins a new run. Was this name used before with this noise key, on other data?"
            " Then both runs draw the same noise, and together they tell what changed: stop, and leave --run-id out."
        )
    if request.stop_file is not None and request.detach:
        status.tell(f"To drain it, so that all windows close and it ends: touch {request.stop_file}")


def _check_clock(request: StreamRequest, status: StreamStatus) -> None:
    if request.clock.kind != ARRIVAL:
        status.tell(
            "--clock event is for history: one event far ahead closes windows for everybody. For live streams use"
            " --clock arrival."
        )
    if isinstance(request.source, KafkaTopic):
        check_topic(request.source, request.clock, status.tell)


class _Job:
    """A pipeline that runs in a thread of its own: some engines give their result only when it is done."""

    def __init__(self, pipeline: beam.Pipeline) -> None:
        self._pipeline = pipeline
        self._result: PipelineResult | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._result = self._pipeline.run()
            self._result.wait_until_finish()
        except BaseException as error:
            self._error = error

    def raise_error(self) -> None:
        """What the pipeline failed with, if it did."""
        if self._error is not None:
            raise self._error

    def metrics(self) -> tuple[dict[str, int], dict[str, int]] | None:
        """Counters and gauges; None while the engine gives none."""
        if self._result is None:
            return None
        if hasattr(self._result, "_metrics"):
            self._result._metrics = None  # else Beam would give its first answer again
        try:
            counts, gauges = operator_counts(self._result), operator_gauges(self._result)
        except Exception:  # of any engine's client; numbers for the operator must not end a run
            return None
        return (counts, gauges) if counts or gauges else None

    def cancel(self) -> None:
        """Returns when it is over, or after half a minute."""
        if self._result is not None and not self.is_over:
            with contextlib.suppress(Exception):  # it may end at this moment
                self._result.cancel()
        self._thread.join(_SECONDS_TO_CANCEL)


def _watch(job: _Job, request: StreamRequest, status: StreamStatus, flink: FlinkWatch | None) -> None:
    # A run that is taken up again goes on to drain where that was asked for.
    is_draining = request.engine.resume_from is not None and os.path.lexists(request.stop_file or "")
    made_stop_file = is_draining
    ended: RunEnded | None = None
    next_metrics = 0.0
    sink = SinkLook(request.sink, request.run_id, status)
    try:
        with caught_stops() as stops:
            if request.stop_file is not None:  # not before signals are caught
                status.tell(f"Ctrl-C drains it: all windows close and it ends. So does: touch {request.stop_file}")
                if is_draining:
                    status.tell(_draining_words(request, request.stop_file))
            asked = 0
            # What is over ends by itself on engines that read once.
            while not job.is_over and (ended is None or request.engine.reads_once):
                if stops.count > asked:
                    asked = stops.count
                    made_stop_file = _ask_to_stop(asked, stops.code, job, request, status) or made_stop_file
                looked = time.monotonic()
                ended = sink.look(_goes_on_words(request))
                if looked >= next_metrics:
                    if not request.engine.allow_open_ports:
                        check_ports(request.engine.name, allow=False)
                    metrics = job.metrics() if flink is None else flink.metrics()
                    if metrics is not None:
                        status.show_operator_line(*metrics)
                    stuck = None if flink is None else flink.stuck(looked)
                    if stuck is not None:
                        status.tell(stuck)
                    # A cluster that does not answer must not delay reports and signals at every look.
                    next_metrics = time.monotonic() + _METRICS_EVERY_SECONDS
                if ended is None:
                    took = time.monotonic() - looked
                    stops.wait(max(_SECONDS_BETWEEN_LOOKS, _LOOKING_SHARE * took), asked)
            if ended is None:
                with told_in_one_line(_FAILED):
                    job.raise_error()
                ended = sink.look_until_read(lambda: stops.wait(_SECONDS_BETWEEN_LOOKS, asked))
            _cancel_on_cluster(request, status)
            job.cancel()
        stop_file = request.stop_file
        _tell_end(ended, made_stop_file or (stop_file is not None and os.path.lexists(stop_file)), request, status)
    finally:
        status.close()
        if made_stop_file and (ended is not None or not request.engine.can_go_on):
            _remove_stop_file(request)


def _ask_to_stop(times: int, code: int, job: _Job, request: StreamRequest, status: StreamStatus) -> bool:
    """The first time drains, the second stops. Returns whether the stop file was made here."""
    if times == 1:
        if request.stop_file is None:
            status.tell("This run has no --stop-file, so it cannot be drained. Ask again to stop it at once.")
            return False
        try:
            pathlib.Path(request.stop_file).touch(exist_ok=False)
            made = True
        except FileExistsError:
            made = False
        status.tell(_draining_words(request, request.stop_file))
        return made
    status.tell(_stopped_words(request))
    status.close()
    if request.engine.name == IN_PROCESS:
        _remove_stop_file(request)
        os._exit(code)  # its threads cannot be cancelled
    _cancel_on_cluster(request, status)
    job.cancel()
    if not request.engine.can_go_on:
        _remove_stop_file(request)
    raise SystemExit(code)


def _remove_stop_file(request: StreamRequest) -> None:
    if request.stop_file is not None:
        pathlib.Path(request.stop_file).unlink(missing_ok=True)


def _draining_words(request: StreamRequest, stop_file: str) -> str:
    """What counts, and how long it takes at least: a stop and the end behind it wait for two checkpoints each."""
    checkpoints = 2 * request.engine.checkpoint_seconds if request.engine.recovers else 0
    now_micros = time.time_ns() // 1000
    try:
        asked_micros = os.stat(stop_file).st_ctime_ns // 1000
    except OSError:  # somebody has taken it away again
        asked_micros = now_micros
    stop_micros = request.clock.stop_micros(asked_micros)
    waiting = stop_micros + request.clock.shown_within_micros - now_micros
    seconds = max(math.ceil(waiting / MICROS_PER_SECOND), checkpoints) + checkpoints
    until = time.strftime("%H:%M:%S", time.gmtime(stop_micros // MICROS_PER_SECOND))
    return (
        f"Draining: what arrives by {until} UTC counts; all windows then close, in about {seconds:,} s, or when all of"
        " it is read. Ask again to stop at once."
    )


def _cancel_on_cluster(request: StreamRequest, status: StreamStatus) -> None:
    """Ends the job on a Flink cluster: a job server that is cancelled leaves it there."""
    if request.engine.name != FLINK or request.engine.is_local:
        return
    cluster = FlinkRest(request.engine.flink_master)
    try:
        for job in cluster.jobs():
            if job.name == _job_name(request) and job.state not in ENDED:
                cluster.cancel(job.job_id)
                cluster.wait_for_state(job.job_id, ENDED, _SECONDS_TO_CANCEL)
    except EngineError:
        status.tell(f"The job {_job_name(request)} may still be there: cancel it at http://{cluster.address}.")


def _goes_on_words(request: StreamRequest) -> str:
    """Of a job that does not end with this command; empty for others."""
    if request.engine.is_local:
        return ""
    place = f"http://{request.engine.flink_master}" if request.engine.name == FLINK else "the console of Dataflow"
    return f"The job {_job_name(request)} still runs: see it at {place}. When to cancel it: docs/deploy.md."


def _stopped_words(request: StreamRequest) -> str:
    words = "Stopped at once. What was reported stays; open windows were not answered."
    if request.engine.can_go_on:
        drain = "" if request.stop_file is None else f" It then ends by the same stop: leave {request.stop_file} there."
        return (
            f"{words} Go on from the last checkpoint with --resume-from PATH --run-id {request.run_id}, and the rest of"
            f" this command line.{drain}"
        )
    return f"{words} This run cannot go on; a new one has a new run id and a budget of its own."


def _tell_end(ended: RunEnded | None, was_asked: bool, request: StreamRequest, status: StreamStatus) -> None:
    """was_asked: whether somebody asked for a stop. The end of a run does not say so: that would depend on its data."""
    if ended is None:
        status.tell("All that was there is read. Windows that were still open then are not answered.")
    elif was_asked:
        status.tell(f"A stop was asked for: all {ended.windows:,} windows are closed; nothing more is answered.")
    else:
        status.tell(f"The declared range is over ({ended.windows:,} windows); nothing more is answered.")
    if isinstance(request.sink, ReportFolder):
        status.tell(f"{status.windows_shown:,} windows with heavy items; see all with: shh show {request.sink.path}")


def _detach(result: PipelineResult, request: StreamRequest, options: PipelineOptions, status: StreamStatus) -> None:
    """Prints the name of the job when the engine has taken it."""
    if request.engine.name == DATAFLOW:
        if options.view_as(GoogleCloudOptions).template_location:
            return  # a template was made; no job runs yet
        print(result.job_id())
        return
    cluster, name = FlinkRest(request.engine.flink_master), _job_name(request)
    deadline = time.monotonic() + _SECONDS_TO_START
    # Beam calls a job running before Flink has it, and the job server must stay until then.
    while (job := next((job for job in cluster.jobs() if job.name == name), None)) is None or job.state != "RUNNING":
        if PipelineState.is_terminal(state := result.state) or time.monotonic() > deadline:
            raise UserError(f"the job is {state}, and Flink does not run it. See the log of the Flink cluster.")
        time.sleep(0.5)
    status.tell(
        f"It goes on without this command: see it at http://{request.engine.flink_master}, and cancel it there once its"
        " reports have an end record (docs/deploy.md)."
    )
    print(job.job_id)
