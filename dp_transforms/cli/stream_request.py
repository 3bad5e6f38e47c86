"""From the options of ``shh stream`` to all that a run needs. Errors that can be known beforehand are found here."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Mapping

from dp_transforms.beam.set_up_workers import KeyFile
from dp_transforms.checks import check_names
from dp_transforms.cli.engine_choice import FLINK, IN_PROCESS, PRISM, EngineChoice, choose_engine
from dp_transforms.cli.options import MAKE_A_KEY, flag, names_of, user_errors
from dp_transforms.cli.plan_options import plan_of_command
from dp_transforms.cli.shared_options import StateOptions, check_page, check_state_file, in_flags_of_table
from dp_transforms.cli.stream_options import ClockOptions, StreamOptions
from dp_transforms.engines.engine_process import EngineError
from dp_transforms.engines.flink_rest import ENDED, FlinkRest
from dp_transforms.engines.portable import job_name
from dp_transforms.errors import StreamError, UserError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.partition_progress import ARRIVAL, StreamClock
from dp_transforms.logs.streams.stream_source import StreamSource
from dp_transforms.monitor.planned_run import fresh_run_id
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportHeader, ReportSink, sink_of
from dp_transforms.reports.report_writer import check_same_run
from dp_transforms.runs.state_file import StateFile
from dp_transforms.stores.kafka_client import have_same_servers, topic_of
from dp_transforms.stores.local_files import check_folder, open_regular

_LONGEST_NAME = 80


@dataclasses.dataclass(frozen=True)
class StreamRequest:
    """All that a run needs: what was asked for, and what that comes to. stop_file: None where nobody can request a
    stop. state: for a run that is taken in parts; else None. titles: of the items on the page, as people call them."""

    options: StreamOptions
    source: StreamSource
    plan: Plan
    clock: StreamClock
    sink: ReportSink
    noise_key: KeyFile | None
    run_id: str
    stop_file: str | None
    engine: EngineChoice
    state: StateOptions | None = None
    titles: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def stream(self) -> str:
        return self.options.stream

    @property
    def header(self) -> ReportHeader:
        return ReportHeader.of_plan(self.plan, self.run_id, self.stream)

    @property
    def log_decides(self) -> bool:
        """Whether what a window holds is decided by the log alone, so that another attempt gives the same answers: its
        clock is that of arrivals, and the log itself sets it (docs/guarantee.md, "Streams and parts")."""
        is_set_by_log = not isinstance(self.source, KafkaTopic) or self.source.append_times_only
        return self.clock.kind == ARRIVAL and is_set_by_log


def stream_request(options: StreamOptions) -> StreamRequest:
    """Asks the broker, starts nothing. Raises UserError: one line that names the option and the remedy."""
    options = options.with_absolute_paths()
    check_page(options.sink.html, force=True)
    engine = choose_engine(
        options.job.engine,
        options.job.cluster,
        usually=PRISM,
        checkpoint_dir=options.job.checkpoint_dir,
        checkpoint_seconds=options.job.checkpoint_interval,
        resume_from=options.job.resume_from,
    )
    try:
        check_names(**{"--stream": options.stream, "--run-id": options.run_id})
        sink = _sink(options, engine)
        _check_places(options, sink, engine)
        run_id = options.run_id or _run_id_of_state(options.part.state) or fresh_run_id()
        source = _source(options, options.fields.fields())
        request = StreamRequest(
            options,
            source=source,
            plan=plan_of_command(options.plan, options.plan_file),
            clock=_clock(options.clock, source),
            sink=sink,
            noise_key=_noise_key(options, engine),
            run_id=run_id,
            stop_file=stop_file_of_run(options.job.stop_file, sink.folder, run_id, is_local=engine.is_local),
            engine=engine,
            state=_state(options, sink, run_id),
            titles=options.sink.view.read_titles(),
        )
        _check_release(request)
        if options.job.once and request.stop_file is None:
            raise UserError("--once needs a stop file, which all workers see: name it with --stop-file FILE.")
        request = _with_running_job(request)
        _check_stop_file(request)
        if request.state is None:
            _check_new_or_resumed(request)
    except (ValueError, StreamError) as error:
        raise UserError(_in_flags(str(error))) from None
    return request


def _with_running_job(request: StreamRequest) -> StreamRequest:
    """Notes a job of this run that the cluster runs already. Raises UserError where it cannot be watched, and where the
    cluster does not say whether there is one: two would answer the same windows."""
    engine = request.engine
    if engine.is_local:
        return request
    try:
        job = FlinkRest(engine.flink_master).newest(job_name(request))
    except EngineError as error:
        raise UserError(f"{' '.join(str(error).split())} Nothing was started.") from None
    if job is None or job.state in ENDED:
        return request
    if request.state is not None:
        remedy = "Cancel it first."
    elif engine.resume_from is not None:
        remedy = "Cancel it first, or leave --resume-from out to watch it."
    elif request.options.job.cluster.detach:
        remedy = "Leave --detach out to watch it."
    else:
        return dataclasses.replace(request, engine=dataclasses.replace(engine, runs_already=True))
    raise UserError(
        f"the job {job.job_id} of run {request.run_id} runs already at http://{engine.flink_master}. {remedy}"
    )


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
        max_ahead_seconds=options.max_ahead,
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


def _sink(options: StreamOptions, engine: EngineChoice) -> ReportSink:
    of_sink, of_source = options.sink, options.source
    # Settings such as passwords go only to the servers that they were given for.
    is_same_kafka = have_same_servers(of_source.input, of_sink.output)
    try:
        sink = sink_of(
            of_sink.output,
            table=of_sink.output_table,
            file_format=of_sink.output_format,
            client_config_file=of_sink.output_kafka_config or (of_source.kafka_config if is_same_kafka else None),
        )
    except ValueError as error:
        in_flags = in_flags_of_table(str(error))
        raise UserError(in_flags if in_flags.startswith("--") else f"--output {in_flags}") from None
    with user_errors(ValueError, prefix="--output "):
        sink.check_can_be_written(is_local=engine.is_local)
    return sink


def _noise_key(options: StreamOptions, engine: EngineChoice) -> KeyFile | None:
    path = options.noise_key_file
    if path is None:
        if engine.name == IN_PROCESS:
            return None
        raise UserError(
            f"--engine {engine.name} has workers outside this process, which need one noise key: --noise-key-file FILE."
            f" {MAKE_A_KEY}."
        )
    if not engine.is_local and not os.path.exists(path):
        return KeyFile(path)  # a mount of the workers, who check it
    key = KeyFile(path)
    key.get_secret_bytes()
    return key


def _run_id_of_state(path: str | None) -> str | None:
    """Of a state that is there. Raises StateError for one that cannot be used."""
    return StateFile(path).header.run_id if path is not None and os.path.lexists(path) else None


def _state(options: StreamOptions, sink: ReportSink, run_id: str) -> StateOptions | None:
    if options.part.state is None:
        return None
    return StateOptions(
        options.part.state,
        str(options.noise_key_file),
        options.fields.user_field,
        options.fields.item_field,
        sink.address,
        until_seconds=options.part.until,
        run_id=run_id,
        is_named=options.run_id is not None,
        population=options.account.population,
        stream_field=options.fields.stream_field,
    )


def _check_stop_file(request: StreamRequest) -> None:
    path = request.stop_file
    if path is not None and os.path.lexists(path) and not request.engine.goes_on:
        # A run that is resumed goes on to drain where that was asked for.
        raise UserError(f"the stop file {path} exists, so the run would end at once. Remove it, or name --stop-file.")


def _check_places(options: StreamOptions, sink: ReportSink, engine: EngineChoice) -> None:
    """What must be there before. Raises UserError."""
    output, dead_letter = sink.folder, options.sink.dead_letter
    if dead_letter is not None and engine.is_local:
        with user_errors(ValueError, prefix="--dead-letter "):
            check_folder(dead_letter)
    if dead_letter and output:
        one, other = os.path.realpath(dead_letter), os.path.realpath(output)
        if one == other or one.startswith(other + os.sep):
            raise UserError(
                "--dead-letter must lie outside --output: the guarantee does not cover it. Name another folder."
            )
    folder = options.source.folder
    if folder is not None and engine.is_local and not os.path.isdir(folder):
        raise UserError(f"--input {folder} is not a folder. Make it, or name another one.")
    _check_files(options, engine)
    if (state := options.part.state) is not None:
        others = {"--output": output, "--dead-letter": dead_letter, "--plan": options.plan_file}
        check_state_file(state, {**others, "--noise-key-file": options.noise_key_file})


def _check_files(options: StreamOptions, engine: EngineChoice) -> None:
    """Files that this process reads are regular ones: a pipe would be waited for, perhaps forever."""
    of_workers = options.sink.output_kafka_config
    for option, path in {"--kafka-config": options.source.kafka_config, "--output-kafka-config": of_workers}.items():
        if path is None:
            continue
        if path is of_workers and not engine.is_local and not os.path.lexists(path):
            continue  # a mount of the workers, who check it
        try:
            open_regular(path).close()
        except OSError as error:
            raise UserError(f"{option} {path} cannot be read: {error.strerror}. Name a regular file.") from None


def _check_release(request: StreamRequest) -> None:
    if request.plan.rounds is not None:
        raise UserError(
            "--plan cannot be one with --rounds: they go over all windows of a day again and again. Make one without,"
            " or use `shh replay`."
        )


def _check_new_or_resumed(request: StreamRequest) -> None:
    """A run id is used again only to resume its run: the same noise on other data would tell what changed."""
    header, _, ended = request.sink.before(request.run_id, is_fresh=request.options.run_id is None)
    if header is None:
        return
    if ended is not None:
        raise UserError(f"--output holds run {header.run_id!r}, which has ended. Start a new run with another one.")
    if header.run_id != request.run_id:
        raise UserError(f"--output holds another run, {header.run_id!r}. Name another --output.")
    if not request.engine.goes_on:
        go_on = "Resume it with --resume-from SAVEPOINT, or start" if request.engine.name == FLINK else "Start"
        raise UserError(
            f"--output holds run {header.run_id!r} already. {go_on} a new run: without --run-id, and with another"
            " --output."
        )
    check_same_run("--output", header, request.header)


def stop_file_of_run(named: str | None, output: str | None, run_id: str, *, is_local: bool) -> str | None:
    """The path of --stop-file; else one beside the folder of reports; else one that only this user can make.

    named, output: --stop-file and --output, None if not given. is_local: whether all workers run on this machine. None:
    nobody can request a stop. Raises UserError if somebody else owns the folder of stop files.
    """
    if named is not None:
        return named
    if output is not None:
        return f"{output}.stop"
    return os.path.join(_private_folder(), f"{_file_name(run_id)}.stop") if is_local else None


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


def _in_flags(message: str) -> str:
    """The message with the flags of the command line in the place of parameter names."""
    names = "|".join(names_of(ClockOptions))
    return re.sub(rf"\b({names})_seconds\b", lambda match: flag(match[1]), message)
