"""From the options of ``shh stream`` to all that a run needs. Errors that can be known beforehand are found here."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence

from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms.beam.jobs import StreamJob
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
from dp_transforms.checks import check_names
from dp_transforms.cli.options import (
    MAKE_A_KEY,
    NAMED_WITH_KEY,
    Options,
    check_account,
    check_page,
    check_together,
    fields_of,
    user_errors,
)
from dp_transforms.cli.plan_options import plan_of_command
from dp_transforms.core.planned_run import fresh_run_id
from dp_transforms.errors import InputError, UserError
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.partition_progress import ARRIVAL, EVENT, StreamClock
from dp_transforms.logs.streams.stream_source import StreamSource
from dp_transforms.plan.rounds import STREAM
from dp_transforms.reports import ReportSink, sink_of
from dp_transforms.reports.report_writer import check_same_run
from dp_transforms.stores.kafka_client import have_same_servers, is_topic, topic_of
from dp_transforms.stores.local_files import check_folder, open_regular

PRODUCER = "producer"
CLOCKS = (ARRIVAL, PRODUCER, EVENT)


@dataclasses.dataclass(frozen=True)
class StreamRequest:
    """What was asked for, and what that comes to. runner: options of Beam. resumes: whether the run was begun before,
    and goes on from what its runner stored. once: reads what is there now, and ends."""

    job: StreamJob
    runner: PipelineOptions
    resumes: bool
    once: bool

    @property
    def reads_once(self) -> bool:
        """Whether a partition is read in one go, until it is idle: this process cannot loop."""
        return is_local(self.runner)

    @property
    def recovers(self) -> bool:
        """Whether a run that was ended at once can be resumed."""
        return recovers(self.runner)


def stream_request(options: Options, words: Sequence[str]) -> StreamRequest:
    """Asks the broker, starts nothing. words: options of Beam; empty for a stream in this process.

    Raises UserError: one line that names the option and the remedy.
    """
    _check_rules(options)
    _make_absolute(options)
    check_page(options.html, replaces=True)
    is_resumed = resumes(words)
    if is_resumed and options.run_id is None:
        raise InputError("run_id", "must be given for a run that is resumed: the run printed it.")
    check_names(stream=options.stream, run_id=options.run_id)
    run_id = options.run_id or fresh_run_id()
    with user_errors(ValueError):
        runner = runner_options(words, job_name=job_name(options.stream, run_id), streaming=True)
        if is_on_dataflow(runner):
            raise UserError("a job on Dataflow is built by pipelines/live_stream.py (runners/dataflow).")
        is_here = workers_are_here(runner)
        sink = _sink(options, is_here=is_here)
        _check_places(options, sink, is_here=is_here)
        source, noise_key = _source(options), _noise_key(options, runner)
        plan = plan_of_command(options, STREAM)
        if plan.rounds is not None:
            raise UserError(
                "--plan is for a replay: it tests contributions in rounds, which go over all windows of a day again and"
                " again. Make one with `shh plan --use stream`."
            )
        job = StreamJob(
            source=source,
            clock=_clock(options, source),
            plan=plan,
            noise_key=noise_key,
            run_id=run_id,
            stream=options.stream,
            public_items=options.public_items,
            sink=sink,
            dead_letter=options.dead_letter,
            stop_file=stop_file_of(options.stop_file, sink.folder, is_here=is_here),
        )
        request = StreamRequest(job, runner, is_resumed, options.once)
        _check_stop_file(request)
        _check_new_or_resumed(request, is_fresh=options.run_id is None)
    if None not in (options.run_id, options.noise_key_file) and not is_resumed and options.ledger is None:
        # A run begins under a name of the operator's only where a ledger knows which names were used with its key.
        raise UserError(
            f"--run-id cannot be used with --noise-key-file: {NAMED_WITH_KEY}. Leave --run-id out: a fresh one is"
            " drawn. A ledger knows which names were used: with --ledger a run may be named."
        )
    return request


def _check_rules(options: Options) -> None:
    """Raises InputError for options that do not go together."""
    check_account(options)
    if options.clock == PRODUCER and not is_topic(options.input):
        raise InputError("clock", f"{PRODUCER} needs a topic as --input.", f"Use {ARRIVAL}.")
    if not is_topic(options.input) and options.partitions is not None:
        raise InputError("partitions", "needs a topic as --input.", "Leave it out.")
    if not is_topic(options.input) and not is_topic(options.output) and options.kafka_config is not None:
        raise InputError("kafka_config", "needs a topic as --input or --output.", "Leave it out.")
    if is_topic(options.input) and options.csv_separator is not None:
        raise InputError("csv_separator", "needs a folder as --input: it is for files.", "Leave it out.")
    check_together(options, "titles", needs="html", why="they are for the page")


def _make_absolute(options: Options) -> None:
    """Workers have another current folder. Raises InputError for a URL in the place of a path."""
    for name in ("input", "output", "kafka_config", "dead_letter", "stop_file", "noise_key_file"):
        path = getattr(options, name)
        if path is None or (name in ("input", "output") and is_topic(path)):
            continue
        if "://" in path:
            raise InputError(name, "must be a path, got a URL.", "Mount what it names, and give the path of that.")
        setattr(options, name, os.path.abspath(path))


def _clock(options: Options, source: StreamSource) -> StreamClock:
    """A folder is read in its order only if it shows each file within its settle time, so a drain need not wait
    longer. Of another log nothing is known: None is the idle timeout."""
    shown = min(source.settle_seconds, float(options.idle_timeout)) if isinstance(source, LogFolder) else None
    return StreamClock(
        kind=EVENT if options.clock == EVENT else ARRIVAL,
        allowed_lateness_seconds=options.allowed_lateness,
        out_of_order_seconds=options.out_of_order,
        idle_timeout_seconds=options.idle_timeout,
        shown_within_seconds=shown,
    )


def _source(options: Options) -> StreamSource:
    fields = fields_of(options)
    if not is_topic(options.input):
        return LogFolder(options.input, fields)
    with user_errors(ValueError, prefix="--input "):
        servers, topic = topic_of(options.input)
    by_broker = options.clock == ARRIVAL
    return KafkaTopic(
        servers,
        topic,
        fields,
        client_config_file=options.kafka_config,
        append_times_only=by_broker,
        first_partitions=options.partitions,
    )


def _sink(options: Options, *, is_here: bool) -> ReportSink:
    # Settings such as passwords go only to the servers that they were given for.
    is_for_others = is_topic(options.input) and not have_same_servers(options.input, options.output)
    with user_errors(ValueError, prefix="--output "):
        sink = sink_of(options.output, client_config_file=None if is_for_others else options.kafka_config)
        sink.check_can_be_written(is_local=is_here)
    return sink


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


def _check_places(options: Options, sink: ReportSink, *, is_here: bool) -> None:
    """What must be there before. Raises UserError."""
    dead_letter, output = options.dead_letter, sink.folder
    if dead_letter is not None and is_here:
        with user_errors(ValueError, prefix="--dead-letter "):
            check_folder(dead_letter)
    if dead_letter and output:
        one, other = os.path.realpath(dead_letter), os.path.realpath(output)
        if one == other or one.startswith(other + os.sep):
            raise UserError(
                "--dead-letter must lie outside --output: the guarantee does not cover it. Name another folder."
            )
    if not is_topic(options.input) and is_here and not os.path.isdir(options.input):
        raise UserError(f"--input {options.input} is not a folder. Make it, or name another one.")
    if options.kafka_config is not None:  # a pipe would be waited for, perhaps forever
        try:
            open_regular(options.kafka_config).close()
        except OSError as error:
            raise UserError(
                f"--kafka-config {options.kafka_config} cannot be read: {error.strerror}. Name a regular file."
            ) from None


def _check_stop_file(request: StreamRequest) -> None:
    path = request.job.stop_file
    if path is None:
        if request.once:
            raise InputError("once", "needs a stop file, which all workers see.", "Name it with --stop-file FILE.")
    elif os.path.lexists(path) and not request.resumes:
        # A run that is resumed goes on to drain where that was asked for.
        raise UserError(f"the stop file {path} exists, so the run would end at once. Remove it, or name --stop-file.")


def stop_file_of(named: str | None, output: str | None, *, is_here: bool) -> str | None:
    """What is named; else one beside the folder of reports; else one in a new folder that only this user can enter.
    None: nobody can request a stop."""
    if named is not None or output is not None:
        return named or f"{output}.stop"
    if not is_here:
        return None
    try:
        return os.path.join(tempfile.mkdtemp(prefix="shh-"), "stop")
    except OSError as error:
        raise UserError(f"no folder for a stop file can be made: {error.strerror}. Name --stop-file.") from None


def _check_new_or_resumed(request: StreamRequest, *, is_fresh: bool) -> None:
    """A run id is used again only to resume its run: the same noise on other data would tell what changed."""
    job = request.job
    header, _, ended = job.sink.before(job.run_id, is_fresh=is_fresh)
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
