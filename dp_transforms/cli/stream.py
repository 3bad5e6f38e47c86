"""``shh stream``: from a live stream to private reports, window by window, in this process or on a runner of Beam.

Builds the pipeline that pipelines/live_stream.py builds, runs it, and watches its reports. With a ledger it pays for
its whole run when it starts, once for all its restarts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Iterator

import apache_beam as beam
import numpy as np

from dp_transforms.beam.jobs import RunningPipeline, build_stream
from dp_transforms.beam.workers import KeyFile
from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.operator_log import note_done
from dp_transforms.cli.options import NothingFoundError, beam_words, filled_by
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.stream_options import STREAM_RULES, StreamOptions
from dp_transforms.cli.stream_request import StreamRequest, stream_request
from dp_transforms.cli.stream_status import StreamStatus
from dp_transforms.cli.stream_watch import StreamWatch
from dp_transforms.logs.streams.kafka_topic import KafkaTopic, check_clock, check_topic
from dp_transforms.logs.streams.partition_poller import MAX_RECORDS, MAX_SECONDS
from dp_transforms.logs.streams.partition_progress import PartitionProgress
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.runs.fingerprints import key_fingerprint

_NOTHING_STARTED = "nothing was started"
_IN_PROCESS = (
    "Without --runner this process alone reads the stream, and shows its reports when all windows are closed. If it"
    " ends before, the run cannot be resumed, and a new one pays its budget again. --runner=PrismRunner shows each"
    " window as it closes; --runner=FlinkRunner also goes on after a crash (docs/engines.md)."
)


@filled_by(StreamOptions, "stream", STREAM_RULES, has_runner=True)
def command(options: StreamOptions) -> None:
    """Watch a stream: which items are held by many users right now, window by window, under differential privacy for
    each user.

    The input is a Kafka topic or a folder of log files that grows. Ctrl-C drains the run: all windows close, and it
    ends; twice ends it at once. Options of Beam may follow, such as --runner=FlinkRunner --flink_master=HOST:PORT
    (docs/engines.md); without a runner this process reads the stream.

    \b
    shh stream --input kafka://localhost:9092/clicks --plan plan.json \\
        --noise-key-file noise.key --output reports/ --runner=PrismRunner
    """
    request = stream_request(options, beam_words())
    account = RunAccount.of_options(options.account)
    status = StreamStatus(plan=json.loads(request.job.plan.to_json()))
    with Unwinding():  # engines are stopped in order
        run_stream(request, status, account)
    note_done()


def run_stream(request: StreamRequest, status: StreamStatus, account: RunAccount) -> None:
    """Returns when the run has ended or was drained.

    Raises UserError, one line without any cell, and SystemExit if the operator ended it at once.
    """
    with errors_in_one_line(_NOTHING_STARTED):
        _check_clock(request, status)
        _check_that_something_counts(request)
        _announce(request, status)
    with quiet_workers():
        with errors_in_one_line(_NOTHING_STARTED):
            pipeline = beam.Pipeline(options=request.runner)
            build_stream(pipeline, request.job)
        with _accounted(request, account):
            with errors_in_one_line(_NOTHING_STARTED):
                running = RunningPipeline(pipeline)
            StreamWatch(running, request, status).to_the_end()


def _check_that_something_counts(request: StreamRequest) -> None:
    """With ``--once``, before anything is reserved or started: reads what is there now, as the stream does, until an
    event counts. Raises NothingFoundError if none does."""
    if not request.options.job.once or request.options.allow_empty or request.resumes:
        return
    schedule, clock, now_micros = request.job.plan.schedule, request.job.clock, time.time_ns() // 1000
    events = outside = rejected = 0
    for partition in request.job.source.partitions():
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
    run_id = request.job.run_id
    status.announce(request.job.plan.guarantee)
    if request.reads_once:
        status.tell(_IN_PROCESS)
    keep = " Keep this name and the noise key: both are needed to resume it." if request.recovers else ""
    status.tell(f"Run {run_id}.{keep}")


def _check_clock(request: StreamRequest, status: StreamStatus) -> None:
    check_clock(request.job.clock, status.tell)
    if isinstance(request.job.source, KafkaTopic):
        check_topic(request.job.source, request.job.clock, status.tell, allow="--producer-times")


@contextlib.contextmanager
def _accounted(request: StreamRequest, account: RunAccount) -> Iterator[None]:
    """Runs the block, in which the stream runs.

    Raises UserError if the run does not fit into what is left, and for a run id that was used before, unless the run is
    resumed from what its runner stored: then its restarts draw the same noise for the same records.
    """
    if not account.is_kept:
        yield
        return
    job = request.job
    account.reserve_part(
        job.plan,
        stream=job.stream,
        run_id=job.run_id,
        # What decides which events the records are. The records themselves are still to come.
        input_fingerprint=hashlib.sha256(job.source.fingerprint().encode()).hexdigest(),
        key_fingerprint=_fingerprint_of_key(request.noise_key),
        draws_once=not request.resumes,
    )
    with account.whole(is_private=None):
        yield


def _fingerprint_of_key(key: KeyFile | None) -> str:
    """Of the key itself where this process can read it, else of the place where it is."""
    if key is None:
        return secrets.token_hex(32)  # it is drawn for this process and forgotten
    with contextlib.suppress(ValueError):
        return key_fingerprint(key.get_secret_bytes())
    return hashlib.sha256(f"noise key at {key.path}".encode()).hexdigest()
