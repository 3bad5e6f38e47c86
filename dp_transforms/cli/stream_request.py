"""From the options of ``shh stream`` to all that a run needs. Errors that can be known beforehand are found here."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Mapping, Sequence

from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms.beam.jobs import StreamJob
from dp_transforms.beam.runner_options import (
    is_local,
    is_on_dataflow,
    job_name,
    recovers,
    runner_options,
    workers_are_here,
)
from dp_transforms.beam.runner_options import resumes as words_resume
from dp_transforms.beam.workers import KeyFile
from dp_transforms.checks import check_names
from dp_transforms.cli.options import MAKE_A_KEY, user_errors
from dp_transforms.cli.plan_options import plan_of_command
from dp_transforms.cli.shared_options import NAMED_WITH_KEY, check_page
from dp_transforms.cli.stream_options import ClockOptions, StreamOptions
from dp_transforms.core.planned_run import fresh_run_id
from dp_transforms.errors import UserError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.logs.streams.stream_source import StreamSource
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import STREAM
from dp_transforms.reports import ReportSink, sink_of
from dp_transforms.reports.report_writer import check_same_run
from dp_transforms.stores.kafka_client import have_same_servers, topic_of
from dp_transforms.stores.local_files import check_folder, open_regular

_LONGEST_NAME = 80


@dataclasses.dataclass(frozen=True)
class StreamRequest:
    """What was asked for, and what that comes to. runner: options of Beam. resumes: whether the run was begun before,
    and goes on from what its runner stored. titles: of the items on the page, as people call them."""

    options: StreamOptions
    job: StreamJob
    noise_key: KeyFile | None
    runner: PipelineOptions
    resumes: bool
    titles: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def reads_once(self) -> bool:
        """Whether a partition is read in one go, until it is idle: this process cannot loop."""
        return is_local(self.runner)

    @property
    def recovers(self) -> bool:
        """Whether a run that was ended at once can be resumed."""
        return recovers(self.runner)


def stream_request(options: StreamOptions, words: Sequence[str]) -> StreamRequest:
    """Asks the broker, starts nothing. words: options of Beam; empty for a stream in this process.

    Raises UserError: one line that names the option and the remedy.
    """
    options, is_resumed = options.with_absolute_paths(), words_resume(words)
    check_page(options.sink.html, force=True)
    if is_resumed and options.run_id is None:
        raise UserError("a run that is resumed needs its name: --run-id (the run printed it).")
    run_id = options.run_id or fresh_run_id()
    try:
        check_names(**{"--stream": options.stream, "--run-id": options.run_id})
        runner = runner_options(words, job_name=job_name(options.stream, run_id), streaming=True)
        if is_on_dataflow(runner):
            raise UserError("a job on Dataflow is built by pipelines/live_stream.py (runners/dataflow).")
        is_here = workers_are_here(runner)
        sink = _sink(options, is_here=is_here)
        _check_places(options, sink, is_here=is_here)
        source, noise_key = _source(options, options.fields.fields()), _noise_key(options, runner)
        job = StreamJob(
            source=source,
            clock=_clock(options.clock, source),
            plan=plan_of_command(options.plan, options.plan_file, STREAM),
            noise_key=noise_key,
            run_id=run_id,
            stream=options.stream,
            public_items=options.plan.public_items,
            sink=sink,
            dead_letter=options.sink.dead_letter,
            shards=options.job.shards,
            stop_file=stop_file_of_run(options.job.stop_file, sink.folder, run_id, is_here=is_here),
        )
        _check_release(job.plan)
        if options.job.once and job.stop_file is None:
            raise UserError("--once needs a stop file, which all workers see: name it with --stop-file FILE.")
        request = StreamRequest(options, job, noise_key, runner, is_resumed, options.sink.view.read_titles())
        _check_stop_file(request)
        _check_new_or_resumed(request)
        _check_name(request)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from None
    return request


def _clock(options: ClockOptions, source: StreamSource) -> StreamClock:
    """A folder is read in its order only if it shows each file within its settle time, so a drain need not wait
    longer. Of another log nothing is known: None is the idle timeout."""
    shown_within: float | None = options.shown_within
    if shown_within is None and isinstance(source, LogFolder):
        shown_within = min(source.settle_seconds, float(options.idle_timeout))
    return StreamClock(
        kind=options.clock,
        allowed_lateness_seconds=options.allowed_lateness,
        out_of_order_seconds=options.out_of_order,
        idle_timeout_seconds=options.idle_timeout,
        shown_within_seconds=shown_within,
    )


def _source(options: StreamOptions, fields: EventFields) -> StreamSource:
    of_source = options.source
    if of_source.folder is not None:
        return LogFolder(of_source.folder, fields)
    with user_errors(ValueError, prefix="--input "):
        servers, topic = topic_of(of_source.input)
    return KafkaTopic(
        servers,
        topic,
        fields,
        client_config_file=of_source.kafka_config,
        append_times_only=options.clock.clock == "arrival" and not options.clock.producer_times,
        first_partitions=of_source.partitions,
    )


def _sink(options: StreamOptions, *, is_here: bool) -> ReportSink:
    of_sink, of_source = options.sink, options.source
    # Settings such as passwords go only to the servers that they were given for.
    is_same_kafka = have_same_servers(of_source.input, of_sink.output)
    with user_errors(ValueError, prefix="--output "):
        sink = sink_of(
            of_sink.output,
            client_config_file=of_sink.output_kafka_config or (of_source.kafka_config if is_same_kafka else None),
        )
        sink.check_can_be_written(is_local=is_here)
    return sink


def _noise_key(options: StreamOptions, runner: PipelineOptions) -> KeyFile | None:
    path = options.noise_key_file
    if path is None:
        if is_local(runner):
            return None
        raise UserError(f"--runner needs --noise-key-file: workers need one noise key. {MAKE_A_KEY}.")
    key = KeyFile(path)
    if workers_are_here(runner) or os.path.exists(path):  # else a mount of the workers, who check it
        key.get_secret_bytes()
    return key


def _check_stop_file(request: StreamRequest) -> None:
    path = request.job.stop_file
    if path is not None and os.path.lexists(path) and not request.resumes:
        # A run that is resumed goes on to drain where that was asked for.
        raise UserError(f"the stop file {path} exists, so the run would end at once. Remove it, or name --stop-file.")


def _check_places(options: StreamOptions, sink: ReportSink, *, is_here: bool) -> None:
    """What must be there before. Raises UserError."""
    output, dead_letter = sink.folder, options.sink.dead_letter
    if dead_letter is not None and is_here:
        with user_errors(ValueError, prefix="--dead-letter "):
            check_folder(dead_letter)
    if dead_letter and output:
        one, other = os.path.realpath(dead_letter), os.path.realpath(output)
        if one == other or one.startswith(other + os.sep):
            raise UserError(
                "--dead-letter must lie outside --output: the guarantee does not cover it. Name another folder."
            )
    folder = options.source.folder
    if folder is not None and is_here and not os.path.isdir(folder):
        raise UserError(f"--input {folder} is not a folder. Make it, or name another one.")
    _check_files(options, is_here=is_here)


def _check_files(options: StreamOptions, *, is_here: bool) -> None:
    """Files that this process reads are regular ones: a pipe would be waited for, perhaps forever."""
    of_workers = options.sink.output_kafka_config
    for option, path in {"--kafka-config": options.source.kafka_config, "--output-kafka-config": of_workers}.items():
        if path is None:
            continue
        if path is of_workers and not is_here and not os.path.lexists(path):
            continue  # a mount of the workers, who check it
        try:
            open_regular(path).close()
        except OSError as error:
            raise UserError(f"{option} {path} cannot be read: {error.strerror}. Name a regular file.") from None


def _check_release(plan: Plan) -> None:
    if plan.rounds is not None:
        raise UserError(
            "--plan is for a replay: it tests contributions in rounds, which go over all windows of a day again and"
            " again. Make one with `shh plan --use stream`."
        )


def _check_new_or_resumed(request: StreamRequest) -> None:
    """A run id is used again only to resume its run: the same noise on other data would tell what changed."""
    job = request.job
    header, _, ended = job.sink.before(job.run_id, is_fresh=request.options.run_id is None)
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


def _check_name(request: StreamRequest) -> None:
    """A run begins under a name of the operator's only where a ledger knows which names were used with its key."""
    options = request.options
    is_named = options.run_id is not None and options.noise_key_file is not None
    if is_named and not request.resumes and options.account.ledger is None:
        raise UserError(
            f"{NAMED_WITH_KEY.words('--run-id', but=NAMED_WITH_KEY.excludes)} A ledger knows which names were used:"
            " with --ledger a run may be named."
        )


def stop_file_of_run(named: str | None, output: str | None, run_id: str, *, is_here: bool) -> str | None:
    """The path of --stop-file; else one beside the folder of reports; else one that only this user can make.

    named, output: --stop-file and --output, None if not given. is_here: whether all workers run on this machine. None:
    nobody can request a stop. Raises UserError if somebody else owns the folder of stop files.
    """
    if named is not None:
        return named
    if output is not None:
        return f"{output}.stop"
    return os.path.join(_private_folder(), f"{_file_name(run_id)}.stop") if is_here else None


def _file_name(run_id: str) -> str:
    """Readable, and different for each run id: a run must find its own file when it is resumed, and no other."""
    readable = re.sub(r"[^A-Za-z0-9-]", "_", run_id)[:_LONGEST_NAME]
    return f"{readable}-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"


def _private_folder() -> str:
    """A folder of mode 0700 in the temporary folder, where others could make a file of a name that they guess."""
    path = os.path.join(tempfile.gettempdir(), f"shh-{os.geteuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise UserError(
            f"the folder {path} for the stop file cannot be made: {error.strerror}. Name --stop-file."
        ) from None
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UserError(
            f"{path} must be a folder of this user with mode 0700, for the stop file. Somebody else may have made it."
            " Remove it, or name --stop-file."
        )
    return path
