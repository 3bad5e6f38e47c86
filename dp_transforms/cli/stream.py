"""``shh stream``: from a live stream to private reports, window by window, in this process or on a runner of Beam.

Builds the pipeline that pipelines/live_stream.py builds, runs it, and watches its reports. With a ledger it pays for
its whole run when it starts, once for all its restarts. Errors that can be known beforehand are found before that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence

import apache_beam as beam
import click
from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms.beam.jobs import RunningPipeline, build_stream
from dp_transforms.beam.runner_options import (
    is_local,
    is_on_dataflow,
    job_name,
    resumes,
    runner_options,
    workers_are_here,
)
from dp_transforms.beam.workers import KeyFile
from dp_transforms.checks import MAKE_A_KEY, check_names, time_zone
from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.operator_log import note_done, tell
from dp_transforms.cli.options import (
    ACCOUNT,
    FIELDS,
    NAMED_WITH_KEY,
    NOISE_KEY,
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
    option,
    rare,
    read_titles,
    user_errors,
)
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.plan_options import PLAN, plan_of_command
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.stream_job import DEAD_LETTER, OUTPUT, READS, check_source, make_absolute, stream_job
from dp_transforms.cli.stream_watch import StreamPage, StreamRequest, StreamWatch
from dp_transforms.core.planned_run import fresh_run_id
from dp_transforms.errors import InputError, UserError
from dp_transforms.plan.rounds import STREAM
from dp_transforms.reports.report_folder import check_same_run
from dp_transforms.runs.fingerprints import key_fingerprint
from dp_transforms.runs.records import PartRequest
from dp_transforms.stores.kafka_client import is_topic
from dp_transforms.stores.local_files import check_folder, open_regular
from dp_transforms.stores.remote_files import is_remote

_NOTHING_STARTED = "nothing was started"
_IN_PROCESS = (
    "Without --runner this process alone reads the stream, and shows its reports when all windows are closed; with"
    " --once it reads what is there now. If it ends before, the run cannot be resumed, and a new one pays its budget"
    " again. --runner=PrismRunner shows each window as it closes; --runner=FlinkRunner also goes on after a crash"
    " (docs/engines.md)."
)


@click.command(
    "stream",
    cls=Command,
    takes_runner=True,
    params=[
        *READS,
        *FIELDS,
        PLAN_FILE,
        *PLAN,
        *ACCOUNT,
        NOISE_KEY,
        rare(["--run-id"], metavar="NAME", help="To resume a run, or with --ledger."),
        OUTPUT,
        option(["--html"], metavar="FILE.html", help="A page, anew at each window."),
        TITLES,
        DEAD_LETTER,
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
        check_source(job)
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


def stream_request(options: Options, words: Sequence[str]) -> StreamRequest:
    """Asks the broker, starts nothing. words: options of Beam; empty for a stream in this process.

    Raises UserError: one line that names the option and the remedy.
    """
    is_resumed = resumes(words)
    check_account(options)
    check_together(options, "titles", needs="html", why="they are for the page")
    if is_resumed and options.run_id is None:
        raise InputError("run_id", "must be given for a run that is resumed: the run printed it.")
    make_absolute(options)
    check_page(options.html, replaces=True)
    check_names(stream=options.stream, run_id=options.run_id)
    run_id = options.run_id or fresh_run_id()
    with user_errors(ValueError):
        runner = runner_options(words, job_name=job_name(options.stream, run_id), streaming=True)
        if is_on_dataflow(runner):
            raise UserError("a job on Dataflow is built by pipelines/live_stream.py (runners/dataflow).")
        is_here = workers_are_here(runner)
        _check_places(options, is_here=is_here)
        plan, noise_key = plan_of_command(options, STREAM), _noise_key(options, runner)
        if plan.rounds is not None:
            raise UserError(
                "--plan is for a replay: it tests contributions in rounds, which go over all windows of a day again and"
                " again. Make one with `shh plan stream`."
            )
        job = stream_job(options, plan, noise_key, run_id)
        stop_file = stop_file_of(job.sink.path, is_here=is_here, once=options.once, is_resumed=is_resumed)
        job = dataclasses.replace(job, stop_file=stop_file)
        request = StreamRequest(job, runner, is_resumed, options.once)
        _check_new_or_resumed(request)
    if not is_resumed and options.ledger is None:
        # A run begins under a name of the operator's only where a ledger knows which names were used with its key.
        remedy = "Leave --run-id out: a fresh one is drawn. With --ledger, which knows the names, a run may be named."
        check_together(options, "run_id", excludes="noise_key_file", why=NAMED_WITH_KEY, remedy=remedy)
    return request


def _noise_key(options: Options, runner: PipelineOptions) -> KeyFile | None:
    path = options.noise_key_file
    if path is None:
        if is_local(runner):
            return None
        raise UserError(f"--runner needs --noise-key-file: workers need one noise key. {MAKE_A_KEY}.")
    key = KeyFile(path)
    if workers_are_here(runner) or os.path.exists(path):  # else a mount of the workers, who check it
        key.get_secret_bytes()
    return key


def _check_places(options: Options, *, is_here: bool) -> None:
    """What must be there before. Raises UserError."""
    output = None if is_remote(options.output) else options.output
    for name, folder in (("--output ", output), ("--dead-letter ", options.dead_letter)):
        if folder is not None and is_here:
            with user_errors(ValueError, prefix=name):
                check_folder(folder)
    if not is_topic(options.input) and is_here and not os.path.isdir(options.input):
        raise UserError(f"--input {options.input} is not a folder. Make it, or name another one.")
    if options.kafka_config is not None:  # a pipe would be waited for, perhaps forever
        try:
            open_regular(options.kafka_config).close()
        except OSError as error:
            raise UserError(
                f"--kafka-config {options.kafka_config} cannot be read: {error.strerror}. Name a regular file."
            ) from None


def stop_file_of(folder: str, *, is_here: bool, once: bool, is_resumed: bool) -> str | None:
    """Beside the folder of reports; of one in a store, where all workers are in this process, in a new folder that only
    this user can enter. None: nobody can request a stop. Raises UserError."""
    path = None if is_remote(folder) else f"{folder}.stop"
    if path is None and is_here:
        try:
            path = os.path.join(tempfile.mkdtemp(prefix="shh-"), "stop")
        except OSError as error:
            raise UserError(f"no folder for a stop file can be made: {error.strerror}. Set TMPDIR.") from None
    if path is None and once:
        raise InputError("once", "needs a path as --output, beside which all workers see a stop file.")
    if path is not None and os.path.lexists(path) and not is_resumed:
        # A run that is resumed goes on to drain where that was asked for.
        raise UserError(f"the stop file {path} exists, so the run would end at once. Remove it.")
    return path


def _check_new_or_resumed(request: StreamRequest) -> None:
    """A run id is used again only to resume its run: the same noise on other data would tell what changed."""
    job = request.job
    header, _, ended = job.sink.read()
    if header is None:
        return
    if ended is not None:
        raise UserError(f"--output holds run {header.run_id!r}, which has ended. Start a new run with another one.")
    if header.run_id != job.run_id:
        raise UserError(f"--output holds another run, {header.run_id!r}. Name another --output.")
    if not request.resumes:
        go_on = "Resume it with --savepoint_path=PATH, or start" if request.recovers else "Start"
        raise UserError(
            f"--output holds run {header.run_id!r} already. {go_on} a new run: without --run-id, and with another"
            " --output."
        )
    check_same_run("--output", header, job.header)
