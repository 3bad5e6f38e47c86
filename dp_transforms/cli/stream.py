"""``shh stream``: from a live stream to private reports, window by window, in this process or on a runner of Beam.

Builds the pipeline that pipelines/live_stream.py builds, by the same options, runs it, and watches its reports. With a
ledger it pays for its whole run when it starts, once for all its restarts. Errors that can be known beforehand are
found before that.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import secrets
import tempfile

import apache_beam as beam
import click

from dp_transforms.beam.jobs import RunningPipeline, StreamJob, build_stream
from dp_transforms.beam.runner_options import (
    is_local,
    is_on_dataflow,
    job_name,
    recovers,
    resumes,
    runner_options,
    workers_are_here,
)
from dp_transforms.beam.workers import KeyFile
from dp_transforms.checks import check_names, time_zone
from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import (
    ACCOUNT,
    DURATION,
    FIELDS,
    NAMED_WITH_KEY,
    NOISE_KEY,
    OF_PROGRAMS,
    PLAN_FILE,
    STREAM_NAME,
    TITLES,
    VERBOSE,
    Command,
    Options,
    beam_words,
    check_account,
    check_page,
    check_together,
    fields_of,
    option,
    rare,
    read_titles,
    user_errors,
)
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.plan_options import PLAN, plan_of_command
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.stream_watch import StreamPage, StreamWatch
from dp_transforms.core.planned_run import fresh_run_id
from dp_transforms.errors import InputError, UserError
from dp_transforms.logs.streams.kafka_topic import KafkaTopic, check_topic
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.partition_progress import ARRIVAL, EVENT, StreamClock
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import STREAM
from dp_transforms.reports import ReportFolder
from dp_transforms.reports.report_folder import check_same_run
from dp_transforms.runs.fingerprints import key_fingerprint
from dp_transforms.runs.records import PartRequest
from dp_transforms.stores.kafka_client import TOPIC, is_topic, topic_of
from dp_transforms.stores.remote_files import UrlError, is_remote

_NOTHING_STARTED = "nothing was started"
_IN_PROCESS = (
    "Without --runner this process alone reads the stream, and shows its reports when all windows are closed; with"
    " --once it reads what is there now. If it ends before, the run cannot be resumed, and a new one pays its budget"
    " again. --runner=PrismRunner shows each window as it closes; --runner=FlinkRunner also goes on after a crash"
    " (docs/engines.md)."
)
_PRODUCER = "producer"
PATHS = ("input", "output", "kafka_config", "dead_letter", "noise_key_file", "stop_file")
_CLOCK = (
    "arrival, or event for history. What closes windows: the log's own clock; that of producers, none of them a user;"
    " times of events."
)
_KAFKA = "Settings of the Kafka client, NAME=VALUE a line; a file that every worker has."
_LATENESS = "How long after its end a window accepts events."
_OUT_OF_ORDER = "By how much the clock of a partition may run back."
_IDLE = "Then a partition with nothing new keeps no window open."
_PARTITIONS = "Of a topic, to resume a run after others were added: the first N."
_READS = (
    option(["--input"], required=True, metavar="FOLDER|URL", help=f"A folder that grows, or {TOPIC}."),
    rare(["--kafka-config"], metavar="FILE", help=_KAFKA),
    option(["--clock"], type=click.Choice((ARRIVAL, _PRODUCER, EVENT)), default=ARRIVAL, metavar="CLOCK", help=_CLOCK),
    rare(["--allowed-lateness"], type=DURATION, default="1m", help=_LATENESS),
    rare(["--out-of-order"], type=DURATION, default="10s", help=_OUT_OF_ORDER),
    rare(["--idle-timeout"], type=DURATION, default="1m", help=_IDLE),
)
_OUTPUT = option(["--output"], required=True, metavar="FOLDER|URL", help="Where reports go: a folder, or its URL.")
_DEAD_LETTER = option(["--dead-letter"], metavar="FOLDER", help="Lists of records that cannot be read.")
PROGRAM = [
    *_READS,
    _OUTPUT,
    _DEAD_LETTER,
    option(["--run-id"], metavar="NAME", help="The run to resume from its state, with --savepoint_path or --update."),
    option(["--stop-file"], metavar="FILE", help="When it is there, what has come counts, and all windows close."),
    option(["--partitions"], type=click.IntRange(min=1), metavar="N", help=_PARTITIONS),
    *OF_PROGRAMS,
]
"""The options of pipelines/live_stream.py."""


@click.command(
    "stream",
    cls=Command,
    takes_runner=True,
    params=[
        *_READS,
        *FIELDS,
        PLAN_FILE,
        *PLAN,
        *ACCOUNT,
        NOISE_KEY,
        rare(["--run-id"], metavar="NAME", help="To resume a run, or with --ledger."),
        _OUTPUT,
        option(["--html"], metavar="FILE.html", help="A page, anew at each window."),
        TITLES,
        _DEAD_LETTER,
        STREAM_NAME,
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
    words = beam_words()
    is_resumed = resumes(words)
    _check_rules(options, is_resumed=is_resumed)
    make_absolute(options)
    check_page(options.html, replaces=True)
    check_names(stream=options.stream, run_id=options.run_id)
    run_id = options.run_id or fresh_run_id()
    with user_errors(ValueError):
        runner = runner_options(words, job_name=job_name(options.stream, run_id), streaming=True)
        is_here, can_resume = workers_are_here(runner), recovers(runner)
        if is_on_dataflow(runner):
            raise UserError("a job on Dataflow is built by pipelines/live_stream.py (runners/dataflow).")
        _check_places(options, is_here=is_here)
        plan = plan_of_command(options, STREAM)
        key = options.noise_key_file and KeyFile(options.noise_key_file)
        if key and (is_here or os.path.exists(key.path)):  # else a mount of the workers, who check it
            key.get_secret_bytes()
        stop_file = stop_file_of(options.output, is_here=is_here)
        job = stream_job(options, plan, key, run_id, stop_file)
        _check_new_or_resumed(job, is_resumed=is_resumed, can_resume=can_resume)
    has_stop = stop_file is not None and os.path.lexists(stop_file)
    if has_stop and not is_resumed:  # a run that is resumed goes on to drain
        raise UserError(f"the stop file {stop_file} exists, so the run would end at once. Remove it.")
    if stop_file is None and options.once:
        raise InputError("once", "needs a path as --output, beside which all workers see a stop file.")
    page = None
    if options.html is not None:
        page = StreamPage(options.html, job, time_zone(options.time_zone or "UTC"), read_titles(options.titles))
    account = RunAccount.of_options(options)
    with Unwinding():  # engines are stopped in order
        with errors_in_one_line(_NOTHING_STARTED):
            quiet_workers()
            pipeline = beam.Pipeline(options=runner)
            build_stream(pipeline, job)
            check_source(job)
        with account.whole(_account_of(job, account.population, is_resumed=is_resumed), is_private=False):
            if is_local(runner):
                tell(_IN_PROCESS)
            tell(f"Run {run_id}.{' Keep this name and the noise key: both are needed to resume it.' * can_resume}")
            with errors_in_one_line(_NOTHING_STARTED):
                running = RunningPipeline(pipeline)
            watch = StreamWatch(job, recovers=can_resume, page=page)
            watch.to_the_end(running, drains=options.once or has_stop)


def make_absolute(options: Options) -> None:
    """Of the command and the program: places by names that do not depend on the current folder, which is another one
    for workers. Raises InputError for a URL in the place of a path, and for options that are not for these places."""
    if options.clock == _PRODUCER and not is_topic(options.input):
        raise InputError("clock", f"{_PRODUCER} needs a topic as --input.", f"Use {ARRIVAL}.")
    if not is_topic(options.input) and options.kafka_config is not None:
        raise InputError("kafka_config", "needs a topic as --input.", "Leave it out.")
    if is_topic(options.input) and options.csv_separator is not None:
        raise InputError("csv_separator", "needs a folder as --input: it is for files.", "Leave it out.")
    for name in PATHS:
        path = vars(options).get(name)
        if path is None or (name == "input" and is_topic(path)):
            continue
        if name == "output":
            with user_errors(UrlError, prefix="--output: "):
                if is_remote(path):
                    continue
        if "://" in path:
            raise InputError(name, "must be a path, got a URL.", "Mount what it names, and give the path of that.")
        setattr(options, name, os.path.abspath(path))


def stream_job(
    options: Options,
    plan: Plan,
    noise_key: beam.Secret | str | None,
    run_id: str,
    stop_file: str | None = None,
    partitions: int | None = None,
) -> StreamJob:
    """Of the command and the program. partitions: as `KafkaTopic.first_partitions`. Nothing is asked. Raises ValueError
    and UserError."""
    sink = ReportFolder(options.output)
    if options.dead_letter and not is_remote(sink.path):
        one, other = os.path.realpath(options.dead_letter), os.path.realpath(sink.path)
        if one == other or one.startswith(other + os.sep):
            raise UserError(
                "--dead-letter must lie outside --output: the guarantee does not cover it. Name another folder."
            )
    source: LogFolder | KafkaTopic
    if is_topic(options.input):
        with user_errors(ValueError, prefix="--input "):
            servers, topic = topic_of(options.input)
        source = KafkaTopic(
            servers,
            topic,
            fields_of(options),
            client_config_file=options.kafka_config,
            append_times_only=options.clock == ARRIVAL,
            first_partitions=partitions,
        )
        shown_within = None  # of another log nothing is known: the idle timeout
    else:
        # A folder is read in its order only if it shows each file within this time: a drain need not wait longer.
        source = LogFolder(options.input, fields_of(options))
        shown_within = min(source.settle_seconds, float(options.idle_timeout))
    clock = StreamClock(
        clock=EVENT if options.clock == EVENT else ARRIVAL,
        allowed_lateness_seconds=options.allowed_lateness,
        out_of_order_seconds=options.out_of_order,
        idle_timeout_seconds=options.idle_timeout,
        shown_within_seconds=shown_within,
    )
    return StreamJob(
        source=source,
        clock=clock,
        plan=plan,
        noise_key=noise_key,
        run_id=run_id,
        stream=options.stream,
        public_items=options.public_items,
        sink=sink,
        dead_letter=options.dead_letter,
        stop_file=stop_file,
    )


def check_source(job: StreamJob) -> None:
    """Asks the broker who sets the times of records. Raises StreamError."""
    if isinstance(job.source, KafkaTopic):
        check_topic(job.source, job.clock)


def _account_of(job: StreamJob, population: str, *, is_resumed: bool) -> PartRequest:
    """What the run asks of its ledger. One that is resumed from what its runner stored draws the same noise for the
    same records; any other one whose run id was used before is refused."""
    key = job.noise_key
    fingerprint = secrets.token_hex(32)  # of a key that is drawn for this process and forgotten
    if isinstance(key, KeyFile):
        try:
            fingerprint = key_fingerprint(key.get_secret_bytes())
        except ValueError:  # a mount of the workers
            fingerprint = hashlib.sha256(f"noise key at {key.path}".encode()).hexdigest()
    return PartRequest.whole(
        job.plan,
        # What decides which events the records are. The records themselves are still to come.
        hashlib.sha256(job.source.fingerprint().encode()).hexdigest(),
        draws_once=not is_resumed,
        stream=job.stream,
        population=population,
        run_id=job.run_id,
        key_fingerprint=fingerprint,
    )


def _check_rules(options: Options, *, is_resumed: bool) -> None:
    """Raises InputError for options that do not go together."""
    check_account(options)
    check_together(options, "titles", needs="html", why="they are for the page")
    if is_resumed and options.run_id is None:
        raise InputError("run_id", "must be given for a run that is resumed: the run printed it.")
    if not is_resumed and options.ledger is None:
        # A run begins under a name of the operator's only where a ledger knows which names were used with its key.
        remedy = "Leave --run-id out: a fresh one is drawn. With --ledger, which knows the names, a run may be named."
        check_together(options, "run_id", excludes="noise_key_file", why=NAMED_WITH_KEY, remedy=remedy)


def _check_places(options: Options, *, is_here: bool) -> None:
    """What must be there before. Raises UserError."""
    output = None if is_remote(options.output) else options.output
    for name, folder in (("--output ", output), ("--dead-letter ", options.dead_letter)):
        if folder is not None and is_here:
            place = pathlib.Path(folder).absolute()
            there = next(each for each in (place, *place.parents) if each.exists())
            if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
                raise UserError(f"{name}{folder} cannot be written. Name a folder that can, or a new one.")
    if not is_topic(options.input) and is_here and not os.path.isdir(options.input):
        raise UserError(f"--input {options.input} is not a folder. Make it, or name another one.")


def stop_file_of(output: str, *, is_here: bool) -> str | None:
    """Beside the folder of reports; of one in a store, where all workers are in this process, in a new folder that only
    this user can enter. None: nobody can request a stop."""
    if not is_remote(output):
        return f"{output}.stop"
    return os.path.join(tempfile.mkdtemp(prefix="shh-"), "stop") if is_here else None


def _check_new_or_resumed(job: StreamJob, *, is_resumed: bool, can_resume: bool) -> None:
    """A run id is used again only to resume its run: the same noise on other data would tell what changed."""
    header, _, ended = job.sink.read()
    if header is None:
        return
    if ended is not None:
        raise UserError(f"--output holds run {header.run_id!r}, which has ended. Start a new run with another one.")
    if not is_resumed:
        resume = f" or, with --savepoint_path=PATH --run-id {header.run_id}, resume that one" if can_resume else ""
        raise UserError(f"--output holds run {header.run_id!r}. Name another --output for a new run{resume}.")
    check_same_run("--output", header, job.header)
