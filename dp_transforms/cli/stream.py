"""``shh stream``: from a live stream to private reports, window by window, in this process or on a runner of Beam.

Builds the pipeline that pipelines/live_stream.py builds, runs it, and watches its reports. With a ledger it pays for
its whole run when it starts, once for all its restarts.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator

import apache_beam as beam
import click

from dp_transforms.beam.jobs import RunningPipeline, build_stream
from dp_transforms.beam.workers import KeyFile
from dp_transforms.checks import time_zone
from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.operator_log import note_done, tell
from dp_transforms.cli.options import (
    ACCOUNT,
    DURATION,
    DURATION_OR_ZERO,
    FIELDS,
    PLAN_FILE,
    STREAM_NAME,
    TITLES,
    VERBOSE,
    Command,
    Options,
    beam_words,
    option,
    rare,
    read_titles,
)
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.plan_options import PLAN
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.stream_request import CLOCKS, PRODUCER, StreamRequest, stream_request
from dp_transforms.cli.stream_watch import StreamPage, StreamWatch
from dp_transforms.logs.streams.kafka_topic import KafkaTopic, check_clock, check_topic
from dp_transforms.logs.streams.partition_progress import ARRIVAL
from dp_transforms.runs.fingerprints import key_fingerprint
from dp_transforms.runs.records import PartRequest
from dp_transforms.stores.kafka_client import TOPIC

_NOTHING_STARTED = "nothing was started"
_IN_PROCESS = (
    "Without --runner this process alone reads the stream, and shows its reports when all windows are closed. If it"
    " ends before, the run cannot be resumed, and a new one pays its budget again. --runner=PrismRunner shows each"
    " window as it closes; --runner=FlinkRunner also goes on after a crash (docs/engines.md)."
)
_CLOCK = (
    "arrival, or event for history. What closes windows: the log's own clock; that of producers, none of them a user;"
    " times of events."
)


@click.command(
    "stream",
    cls=Command,
    takes_runner=True,
    params=[
        option(["--input"], required=True, metavar="FOLDER|URL", help=f"A folder that grows, or {TOPIC}."),
        rare(
            ["--kafka-config"],
            metavar="FILE",
            help="Settings of the Kafka client, NAME=VALUE a line; a file that every worker has.",
        ),
        option(["--clock"], type=click.Choice(CLOCKS), default=ARRIVAL, metavar="CLOCK", help=_CLOCK),
        rare(
            ["--partitions"],
            type=click.IntRange(min=1),
            metavar="N",
            help="To resume a run after others were added: the first N alone.",
        ),
        rare(
            ["--allowed-lateness"],
            type=DURATION_OR_ZERO,
            default="1m",
            help="How long after its end a window accepts events.",
        ),
        rare(
            ["--out-of-order"],
            type=DURATION_OR_ZERO,
            default="10s",
            help="By how much the clock of a partition may run back.",
        ),
        rare(
            ["--idle-timeout"],
            type=DURATION,
            default="1m",
            help="Then a partition with nothing new keeps no window open.",
        ),
        *FIELDS,
        PLAN_FILE,
        *PLAN,
        *ACCOUNT,
        option(
            ["--noise-key-file"],
            metavar="FILE",
            help="A secret that all workers share, 32 bytes or more. Needed with --runner.",
        ),
        rare(["--run-id"], metavar="NAME", help="To resume a run, or with --ledger."),
        option(["--output"], required=True, metavar="FOLDER|URL", help="Where reports go: a folder, or a topic."),
        option(["--html"], metavar="FILE.html", help="A page, anew at each window."),
        TITLES,
        option(["--dead-letter"], metavar="FOLDER", help="Lists of records that cannot be read."),
        STREAM_NAME,
        rare(["--stop-file"], metavar="FILE", help="When it appears the run is drained. Default: beside --output."),
        option(["--once"], is_flag=True, help="Read what is there now, and end. All windows close."),
        VERBOSE,
    ],
)
def command(options: Options) -> None:
    """Watch a stream: which items are held by many users right now, window by window, under differential privacy for
    each user.

    The input is a Kafka topic or a folder of log files that grows. Ctrl-C drains the run: all windows close, and it
    ends; twice ends it at once. Options of Beam may follow, such as --runner=FlinkRunner --flink_master=HOST:PORT
    (docs/engines.md); without a runner this process reads the stream.

    \b
    shh stream --input kafka://localhost:9092/clicks --plan plan.json \\
        --noise-key-file noise.key --output reports/ --runner=PrismRunner
    """
    request, page = stream_request(options, beam_words()), None
    if options.html is not None:
        titles = read_titles(options.titles)
        page = StreamPage(options.html, request.job.header, time_zone(options.time_zone or "UTC"), titles)
    with Unwinding():  # engines are stopped in order
        run_stream(request, page, RunAccount.of_options(options))
    note_done()


def run_stream(request: StreamRequest, page: StreamPage | None, account: RunAccount) -> None:
    """Returns when the run has ended or was drained.

    Raises UserError, one line without any cell, and SystemExit if the operator ended it at once.
    """
    job = request.job
    with errors_in_one_line(_NOTHING_STARTED):
        check_clock(job.clock, tell)
        if isinstance(job.source, KafkaTopic):
            check_topic(job.source, job.clock, tell, allow=f"--clock {PRODUCER}")
        watch = StreamWatch(request, page)
        if request.reads_once:
            tell(_IN_PROCESS)
        keep = " Keep this name and the noise key: both are needed to resume it." if request.recovers else ""
        tell(f"Run {job.run_id}.{keep}")
    with quiet_workers():
        with errors_in_one_line(_NOTHING_STARTED):
            pipeline = beam.Pipeline(options=request.runner)
            build_stream(pipeline, job)
        with _accounted(request, account):
            with errors_in_one_line(_NOTHING_STARTED):
                running = RunningPipeline(pipeline)
            watch.to_the_end(running)


@contextlib.contextmanager
def _accounted(request: StreamRequest, account: RunAccount) -> Iterator[None]:
    """Runs the block, in which the stream runs.

    Raises UserError if the run does not fit into what is left, and for a run id that was used before, unless the run is
    resumed from what its runner stored: then its restarts draw the same noise for the same records.
    """
    if account.ledger is None:
        yield
        return
    job = request.job
    reserved = PartRequest.whole(
        job.plan,
        # What decides which events the records are. The records themselves are still to come.
        hashlib.sha256(job.source.fingerprint().encode()).hexdigest(),
        draws_once=not request.resumes,
        stream=job.stream,
        population=account.population,
        run_id=job.run_id,
        key_fingerprint=_fingerprint_of_key(job.noise_key),
    )
    with account.whole(reserved, is_private=None):
        yield


def _fingerprint_of_key(key: beam.Secret | str | None) -> str:
    """Of the key itself where this process can read it, else of the place where it is."""
    if not isinstance(key, KeyFile):
        return secrets.token_hex(32)  # it is drawn for this process and forgotten
    with contextlib.suppress(ValueError):
        return key_fingerprint(key.get_secret_bytes())
    return hashlib.sha256(f"noise key at {key.path}".encode()).hexdigest()
