"""``shh stream``: from a live stream to private reports, window by window, on a real engine.

Builds the pipeline, starts it, and watches it, or leaves it running with ``--detach``. With a ledger it pays for its
whole run when it starts, once for all its restarts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Sequence

import apache_beam as beam
import click
import numpy as np

from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.beam.set_up_workers import KeyFile
from dp_transforms.beam.write_files import WriteRejectedFolder
from dp_transforms.beam.write_report_stream import WriteReportStream
from dp_transforms.cli import operator_log
from dp_transforms.cli.engine_choice import FLINK
from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.flink_jobs import FlinkStart, FlinkWatch, StartedJob
from dp_transforms.cli.options import NothingFoundError, filled_by
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.stream_job import StreamJob, started_engine
from dp_transforms.cli.stream_options import STREAM_RULES, StreamOptions
from dp_transforms.cli.stream_request import StreamRequest, stream_request
from dp_transforms.cli.stream_status import StreamStatus
from dp_transforms.cli.stream_watch import StreamWatch
from dp_transforms.engines.flink_rest import FlinkRest
from dp_transforms.engines.portable import job_name
from dp_transforms.logs.streams.kafka_topic import KafkaTopic, check_clock, check_topic
from dp_transforms.logs.streams.partition_poller import MAX_RECORDS, MAX_SECONDS
from dp_transforms.logs.streams.partition_progress import PartitionProgress
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.runs.fingerprints import key_fingerprint

_NOTHING_STARTED = "nothing was started"


@filled_by(StreamOptions, "stream", STREAM_RULES)
def command(options: StreamOptions) -> None:
    """Watch a stream: which items are held by many users right now, window by window, under differential privacy for
    each user.

    The input is a Kafka topic or a folder of log files that grows. Ctrl-C drains the run: all
    windows close, and it ends; twice ends it at once. Options for Beam follow after `--`.

    \b
    shh stream --input kafka://localhost:9092/clicks --plan plan.json \\
        --noise-key-file noise.key --output reports/
    """
    beam_words = click.get_current_context().obj or []
    request = stream_request(options)
    account, plan = RunAccount.of_options(options.account), json.loads(request.plan.to_json())
    status = StreamStatus(plan=plan)
    # Engines are stopped in order.
    with Unwinding():
        run_stream(request, beam_words, status, account)


def run_stream(request: StreamRequest, beam_words: Sequence[str], status: StreamStatus, account: RunAccount) -> None:
    """Returns when the run has ended, was drained, or was left running with --detach.

    Raises UserError, one line without any cell, and SystemExit if the operator ended it at once.
    """
    with errors_in_one_line(_NOTHING_STARTED):
        _check_clock(request, status)
        _check_that_something_counts(request)
        _announce(request, status)
    with quiet_workers():
        if request.engine.runs_already:
            _watch_on(request, status, account)
        else:
            _start(request, beam_words, status, account)


def _start(
    request: StreamRequest,
    beam_words: Sequence[str],
    status: StreamStatus,
    account: RunAccount,
) -> None:
    """Starts the job, and watches it to its end unless it is left running."""
    with started_engine(request.engine, beam_words, job_name(request)) as (options, flink):
        with errors_in_one_line(_NOTHING_STARTED):
            pipeline = beam.Pipeline(options=options)
            build_pipeline(pipeline, request)
        # Before anything is charged: a cluster that does not answer gets no job.
        start = None if flink is None or request.engine.is_local else FlinkStart(flink, job_name(request))
        with _accounted(request, account):
            if request.options.job.cluster.detach:
                assert start is not None
                with errors_in_one_line(_NOTHING_STARTED):
                    result = pipeline.run()
                job_id = start.wait_until_running(result)
                status.tell(
                    f"The job runs on without this command: see it at http://{request.engine.flink_master}, and cancel"
                    " it there once its reports have an end record (docs/deploy.md)."
                )
                operator_log.note_done()
                print(job_id)
                return
            watch = None if flink is None else FlinkWatch(flink, job_name(request), request.engine.checkpoint_seconds)
            StreamWatch(StreamJob(pipeline), request, status, watch).to_the_end()


def _watch_on(request: StreamRequest, status: StreamStatus, account: RunAccount) -> None:
    """Watches a job that an earlier command of this run has started, to its end."""
    flink, name = FlinkRest(request.engine.flink_master), job_name(request)
    status.tell(f"The job {name} runs already at http://{flink.address}: this command watches it.")
    watch = FlinkWatch(flink, name, request.engine.checkpoint_seconds)
    with _accounted(request, account):
        StreamWatch(StartedJob(flink, name), request, status, watch).to_the_end()


def build_pipeline(pipeline: beam.Pipeline, request: StreamRequest) -> None:
    """Input, monitor, outputs. Raises StreamError and ValueError."""
    stream = MonitorStream(
        request.source,
        request.plan,
        clock=request.clock,
        noise_key=request.noise_key,
        run_id=request.run_id,
        stream=request.stream,
        shards=request.options.job.shards,
        domain=request.options.plan.domain_file,
        driver="loop" if request.engine.reads_once else "timers",
        confirm=request.engine.recovers,
        stop_file=request.stop_file,
    )
    reports, ended, rejected = pipeline | "MonitorStream" >> stream
    _ = (reports, ended) | "WriteReportStream" >> WriteReportStream(request.sink, request.header)
    if request.options.sink.dead_letter is not None:
        _ = rejected | "WriteRejected" >> WriteRejectedFolder(request.options.sink.dead_letter)


def _check_that_something_counts(request: StreamRequest) -> None:
    """With ``--once``, before anything is reserved or started: reads what is there now, as the stream does, until an
    event counts. Raises NothingFoundError if none does."""
    if not request.options.job.once or request.options.allow_empty or request.engine.goes_on:
        return
    schedule, clock, now_micros = request.plan.schedule, request.clock, time.time_ns() // 1000
    events = outside = rejected = 0
    for partition in request.source.partitions():
        progress, is_at_end = PartitionProgress(schedule, clock, shards=1), False
        with contextlib.closing(partition.open(clock.first_arrival_micros(schedule))) as reader:
            while not (is_at_end or progress.has_arrived_after(now_micros)):
                polled = reader.poll(progress.position, max_records=MAX_RECORDS, max_seconds=MAX_SECONDS)
                taken = progress.take(polled, now_micros)
                first = schedule.first_window(taken.batch.time_micros)
                last_end = np.minimum(first + schedule.windows_per_event, schedule.horizon)
                if ((first >= 0) & (last_end > taken.first_open)).any():
                    return
                events, outside, is_at_end = events + len(polled.batch), outside + taken.outside, polled.is_at_end
                rejected += polled.records - len(polled.batch)
    start, end = (format_utc(MICROS_PER_SECOND * at) for at in (schedule.start_seconds, schedule.end_seconds))
    raise NothingFoundError(
        f"no event that is there now counts in {start} .. {end}: {outside:,} are outside, {events - outside:,} come"
        f" too late or too early by --clock {clock.kind}, {rejected:,} records cannot be read. Nothing was published,"
        " and nothing is spent. Check --start, --end, --time-unit and --clock (history needs --clock event), or give"
        " --allow-empty, which spends the whole budget."
    )


def _announce(request: StreamRequest, status: StreamStatus) -> None:
    status.announce(request.plan.guarantee)
    keep = " Keep this name and the noise key: both are needed to resume it." if request.engine.name == FLINK else ""
    status.tell(f"Run {request.run_id} on {request.engine.name}.{keep}")
    if request.stop_file is not None and request.options.job.cluster.detach:
        status.tell(f"To drain it, so that all windows close and it ends: touch {request.stop_file}")


def _check_clock(request: StreamRequest, status: StreamStatus) -> None:
    check_clock(request.clock, status.tell)
    if isinstance(request.source, KafkaTopic):
        check_topic(request.source, request.clock, status.tell, allow="--producer-times")


@contextlib.contextmanager
def _accounted(request: StreamRequest, account: RunAccount) -> Iterator[None]:
    """Runs the block, in which the engine runs the stream, or starts it with --detach.

    Raises UserError if the run does not fit into what is left, and for a run id that was used before, unless the run is
    resumed from what its engine stored: then its restarts draw the same noise for the same records.
    """
    if not account.is_kept:
        yield
        return
    account.reserve_part(
        request.plan,
        stream=request.stream,
        run_id=request.run_id,
        # What decides which events the records are. The records themselves are still to come.
        input_fingerprint=hashlib.sha256(request.source.fingerprint().encode()).hexdigest(),
        key_fingerprint=_fingerprint_of_key(request.noise_key),
        draws_once=not request.engine.goes_on,
    )
    with account.whole(is_private=None, ends_here=not request.options.job.cluster.detach):
        yield


def _fingerprint_of_key(key: KeyFile | None) -> str:
    """Of the key itself where this process can read it, else of the place where it is."""
    if key is None:
        return secrets.token_hex(32)  # it is drawn for this process and forgotten
    with contextlib.suppress(ValueError):
        return key_fingerprint(key.get_secret_bytes())
    return hashlib.sha256(f"noise key at {key.path}".encode()).hexdigest()
