"""From the options of ``shh stream`` to what a run is made of. What can be known to be wrong is found here."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import tempfile
import uuid
from collections.abc import Collection
from typing import Any

import apache_beam as beam
from apache_beam.utils.secret import GcpSecret

from dp_transforms.accounting.release_plan import ReleasePlan
from dp_transforms.beam.load_noise_key import KeyFile
from dp_transforms.event_files import EventFields
from dp_transforms.event_streams.kafka_topic import KafkaTopic
from dp_transforms.event_streams.log_folder import LogFolder
from dp_transforms.event_streams.partition_progress import StreamClock
from dp_transforms.event_streams.stream_source import StreamError, StreamSource
from dp_transforms.pipelines.event_options import event_fields
from dp_transforms.pipelines.options import UserError
from dp_transforms.pipelines.plan_options import flag, plan_of_command
from dp_transforms.pipelines.stream_options import DATAFLOW, FLINK, IN_PROCESS, JOB_SERVICE, PRISM
from dp_transforms.pipelines.stream_ports import check_worker_pool
from dp_transforms.pipelines.stream_pubsub import PubSubSubscription
from dp_transforms.report_files import ReportHeader
from dp_transforms.report_streams import ReportFolder, ReportSink, ReportTopic
from dp_transforms.report_streams.report_writer import check_same_run
from dp_transforms.runners.flink import LOCAL as LOCAL_FLINK

_SECRET_VERSION = re.compile(r"projects/[^/\s]+/secrets/[^/\s]+/versions/[1-9]\d*")
_MAKE_A_KEY = "Make one with: (umask 077; head -c 32 /dev/urandom > noise.key)"
_FLINK_OPTIONS = (
    "flink_master",
    "checkpoint_dir",
    "checkpoint_interval",
    "parallelism",
    "worker_pool",
    "resume_from",
)
_CLOCK_OPTIONS = ("allowed_lateness", "out_of_order", "max_ahead", "idle_timeout", "shown_within")
_LOCAL_PATHS = (
    *("folder", "avro_schema", "kafka_config", "output_kafka_config"),
    *("output", "dead_letter", "noise_key_file", "stop_file"),
)


@dataclasses.dataclass(frozen=True)
class EngineChoice:
    """What runs the pipeline, and the options of ``--engine flink``. checkpoint_seconds: between two checkpoints.

    allow_open_ports: run although others than this machine may reach a port that takes code.
    """

    name: str
    flink_master: str = LOCAL_FLINK
    checkpoint_dir: str | None = None
    checkpoint_seconds: int = 10
    parallelism: int = 1
    worker_pool: str | None = None
    resume_from: str | None = None
    allow_open_ports: bool = False

    @property
    def is_local(self) -> bool:
        """Whether all workers are processes of this machine, and end with this command."""
        return self.name != DATAFLOW and not (self.name == FLINK and self.flink_master != LOCAL_FLINK)

    @property
    def reads_once(self) -> bool:
        """Whether a partition is read in one go, until it is idle: the engine cannot loop."""
        return self.name in (JOB_SERVICE, IN_PROCESS)

    @property
    def recovers(self) -> bool:
        """Whether a worker that died is replaced by one that goes on."""
        return self.name in (FLINK, DATAFLOW)

    @property
    def can_go_on(self) -> bool:
        """Whether a run that was stopped at once can be taken up again."""
        return self.name == FLINK and (self.checkpoint_dir is not None or not self.is_local)


@dataclasses.dataclass(frozen=True)
class StreamRequest:
    """Everything that a run is made of. is_named: whether the operator chose the run id, or it was drawn. stop_file:
    None where nothing can drain the run."""

    source: StreamSource | PubSubSubscription
    plan: ReleasePlan
    domain_file: str | None
    clock: StreamClock
    sink: ReportSink
    dead_letter: str | None
    noise_key: beam.Secret | None
    run_id: str
    is_named: bool
    stream: str
    stop_file: str | None
    engine: EngineChoice
    detach: bool

    @property
    def header(self) -> ReportHeader:
        return ReportHeader.of_plan(self.plan, self.run_id, self.stream)


def stream_request(options: dict[str, Any], given: Collection[str]) -> StreamRequest:
    """given: which options are no defaults. Asks the broker, starts nothing.

    Raises UserError, one line that names the option and the remedy.
    """
    for name in _LOCAL_PATHS:
        if "://" in (options[name] or ""):
            raise UserError(f"{flag(name)} must be a path, got a URL. Mount what it names, and give the path of that.")
    # Workers have another current folder.
    options = {
        name: os.path.abspath(value) if name in _LOCAL_PATHS and value is not None else value
        for name, value in options.items()
    }
    engine = _engine(options)
    _check_names(options)
    _check_places(options, engine)
    _check_pubsub(options, given)
    run_id = options["run_id"] or uuid.uuid4().hex
    try:
        fields = event_fields(options)
        request = StreamRequest(
            source=_source(options, fields, engine),
            plan=plan_of_command(options),
            domain_file=options["domain_file"],
            clock=StreamClock(
                kind=options["clock"],
                allowed_lateness_seconds=options["allowed_lateness"],
                out_of_order_seconds=options["out_of_order"],
                max_ahead_seconds=options["max_ahead"],
                idle_timeout_seconds=options["idle_timeout"],
                shown_within_seconds=options["shown_within"],
            ),
            sink=_sink(options),
            dead_letter=options["dead_letter"],
            noise_key=_noise_key(options, engine),
            run_id=run_id,
            is_named=options["run_id"] is not None,
            stream=options["stream"],
            stop_file=_stop_file(options, engine, run_id),
            engine=engine,
            detach=options["detach"],
        )
        _check_new_or_resumed(request)
    except (ValueError, StreamError) as error:
        raise UserError(_in_flags(str(error))) from None
    return request


def _engine(options: dict[str, Any]) -> EngineChoice:
    name = options["engine"]
    if name is None:
        name = FLINK if options["flink_master"] else DATAFLOW if options["pubsub_subscription"] else PRISM
    given = [flag(option) for option in _FLINK_OPTIONS if options[option] is not None]
    if given and name != FLINK:
        raise UserError(f"{', '.join(given)} belongs to --engine flink, got --engine {name}. Leave it out.")
    engine = EngineChoice(
        name,
        flink_master=options["flink_master"] or LOCAL_FLINK,
        checkpoint_dir=options["checkpoint_dir"],
        checkpoint_seconds=options["checkpoint_interval"] or 10,
        parallelism=options["parallelism"] or 1,
        worker_pool=options["worker_pool"],
        resume_from=options["resume_from"],
        allow_open_ports=options["allow_open_ports"],
    )
    if engine.flink_master != LOCAL_FLINK and not re.fullmatch(r"[^\s:/]+:\d{1,5}", engine.flink_master):
        raise UserError(f"--flink-master must be HOST:PORT or [local], got {engine.flink_master!r}.")
    if engine.worker_pool is not None and not re.fullmatch(r"[^\s:/]+:\d{1,5}", engine.worker_pool):
        raise UserError(f"--worker-pool must be HOST:PORT, got {engine.worker_pool!r}.")
    if engine.worker_pool is not None and not engine.allow_open_ports:
        check_worker_pool(engine.worker_pool, engine.flink_master)
    if not engine.is_local and name == FLINK and engine.worker_pool is None:
        raise UserError(
            f"a Flink at {engine.flink_master} needs Python workers that it can reach. Start Beam's worker pool beside"
            " its task managers and name it with --worker-pool HOST:PORT (docs/deploy.md)."
        )
    if options["detach"] and engine.is_local:
        raise UserError(
            f"--detach needs an engine that stays when this command ends, got --engine {name} on this machine."
            " Give --flink-master HOST:PORT or --engine dataflow, or leave --detach out."
        )
    if engine.resume_from is not None and options["run_id"] is None:
        raise UserError("--resume-from goes on with a run: give its name with --run-id (the run printed it).")
    return engine


def _check_names(options: dict[str, Any]) -> None:
    for name in ("stream", "run_id"):
        if options[name] is not None and not (options[name] and options[name].isprintable()):
            raise UserError(f"{flag(name)} must be a printable text that is not empty.")


def _check_places(options: dict[str, Any], engine: EngineChoice) -> None:
    """Which options exclude or need each other."""
    inputs = [name for name in ("kafka", "folder", "pubsub_subscription") if options[name] is not None]
    if len(inputs) != 1:
        raise UserError("give one input: --kafka HOST:PORT --topic TOPIC, --folder PATH or --pubsub-subscription NAME.")
    for name in ("topic", "kafka_config", "avro_schema", "avro_framing", "avro_schema_id", "producer_times"):
        if options[name] is not None and options["kafka"] is None:
            raise UserError(f"{flag(name)} belongs to --kafka. Leave it out, or name the servers.")
    if options["record_format"] == "avro" and options["kafka"] is None:
        raise UserError("--format avro belongs to --kafka: files say by their endings what they are. Leave it out.")
    if options["kafka"] is not None and options["topic"] is None:
        raise UserError("--kafka needs --topic: which topic to read.")
    if (options["output"] is None) == (options["output_topic"] is None):
        raise UserError("give one output: --output FOLDER or --output-topic TOPIC.")
    for name in ("output_kafka", "output_kafka_config"):
        if options[name] is not None and options["output_topic"] is None:
            raise UserError(f"{flag(name)} belongs to --output-topic. Leave it out, or name the topic.")
    if options["output_topic"] is not None and (options["output_kafka"] or options["kafka"]) is None:
        raise UserError("--output-topic needs --output-kafka HOST:PORT: on which servers the topic is.")
    for name in ("output", "dead_letter"):
        if options[name] is not None and engine.is_local:
            _check_folder(options[name], flag(name))
    if options["dead_letter"] and options["output"]:
        one, other = (os.path.realpath(options[name]) for name in ("dead_letter", "output"))
        if one == other or one.startswith(other + os.sep):
            raise UserError(
                "--dead-letter must lie outside --output: it is not covered by the guarantee. Name another."
            )
    if engine.name == DATAFLOW:
        for name, remedy in (
            ("folder", "Give --kafka or --pubsub-subscription"),
            ("output", "Give --output-topic"),
            ("dead_letter", "Leave it out; the count of such records is among the job's metrics"),
            ("stop_file", "Leave it out, and cancel the job to stop it"),
            ("noise_key_file", "Give --noise-key-secret"),
        ):
            if options[name] is not None:
                raise UserError(f"{flag(name)} is a path, and workers of Dataflow share no disk. {remedy}.")
    elif options["pubsub_subscription"] is not None:
        raise UserError("--pubsub-subscription runs on Dataflow alone. Give --engine dataflow, or another input.")


def _check_pubsub(options: dict[str, Any], given: Collection[str]) -> None:
    """Pub/Sub and Dataflow decide when a window closes; no option may be passed over in silence."""
    if options["pubsub_subscription"] is None:
        return
    if options["clock"] != "arrival":
        raise UserError("--pubsub-subscription has one clock: when a message was published. Leave --clock out.")
    if options["time_field"] != "timestamp" or options["time_unit"] is not None:
        raise UserError(
            "the time of a Pub/Sub message is when it was published. Leave --time-field and --time-unit out."
        )
    if unused := [flag(name) for name in _CLOCK_OPTIONS if name in given]:
        raise UserError(
            f"with --pubsub-subscription Dataflow's watermark closes windows. Leave {', '.join(unused)} out."
        )


def _check_folder(path: str, option: str) -> None:
    """The folder, or the one that it will be made in, can be written."""
    place = pathlib.Path(path).absolute()
    if place.exists() and not place.is_dir():
        raise UserError(f"{option} {path} is a file. Name a folder.")
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{option} {path} cannot be written: Permission denied. Name another folder.")


def _source(options: dict[str, Any], fields: EventFields, engine: EngineChoice) -> StreamSource | PubSubSubscription:
    if options["pubsub_subscription"] is not None:
        return PubSubSubscription(options["pubsub_subscription"], fields.user, fields.item)
    if options["folder"] is not None:
        if engine.is_local and not os.path.isdir(options["folder"]):
            raise UserError(f"--folder {options['folder']} is no folder. Make it, or name another one.")
        return LogFolder(options["folder"], fields)
    if options["producer_times"] and options["clock"] != "arrival":
        raise UserError("--producer-times belongs to --clock arrival. Leave it out.")
    if (options["record_format"] == "avro") != (options["avro_schema"] is not None):
        raise UserError("--format avro and --avro-schema FILE belong together. Give both or none.")
    if options["record_format"] != "avro" and options["avro_framing"] is not None:
        raise UserError("--avro-framing belongs to --format avro. Leave it out.")
    if options["avro_schema_id"] is not None and options["avro_framing"] != "confluent":
        raise UserError("--avro-schema-id belongs to --avro-framing confluent. Leave it out.")
    return KafkaTopic(
        options["kafka"],
        options["topic"],
        fields,
        record_format=options["record_format"],
        avro_schema=options["avro_schema"],
        avro_framing=options["avro_framing"] or "none",
        avro_schema_id=options["avro_schema_id"],
        client_config_file=options["kafka_config"],
        append_times_only=options["clock"] == "arrival" and not options["producer_times"],
    )


def _sink(options: dict[str, Any]) -> ReportSink:
    if options["output"] is not None:
        return ReportFolder(options["output"], "avro" if options["output_format"] == "avro" else "jsonl")
    # Settings such as passwords go to the servers that they were given for, and to no others.
    is_same_kafka = options["output_kafka"] in (None, options["kafka"])
    config = options["output_kafka_config"] or (options["kafka_config"] if is_same_kafka else None)
    return ReportTopic(
        options["output_kafka"] or options["kafka"],
        options["output_topic"],
        record_format=options["output_format"],
        client_config_file=config,
    )


def _noise_key(options: dict[str, Any], engine: EngineChoice) -> beam.Secret | None:
    path, secret = options["noise_key_file"], options["noise_key_secret"]
    if path is not None and secret is not None:
        raise UserError("--noise-key-file and --noise-key-secret contradict each other. Give one of them.")
    if secret is not None:
        if not _SECRET_VERSION.fullmatch(secret):
            raise UserError(
                "--noise-key-secret must be projects/P/secrets/S/versions/N with a number N: a key must not change"
                " while a run goes on."
            )
        return GcpSecret(secret)
    if path is None:
        if engine.name == IN_PROCESS:
            return None
        remedy = "--noise-key-secret VERSION" if engine.name == DATAFLOW else f"--noise-key-file FILE. {_MAKE_A_KEY}"
        raise UserError(f"--engine {engine.name} has workers outside this process, which need one noise key: {remedy}.")
    if not engine.is_local and not os.path.exists(path):
        return KeyFile(path)  # a mount of the workers; they check it
    key = KeyFile(path)
    key.get_bytes()
    return key


def _stop_file(options: dict[str, Any], engine: EngineChoice, run_id: str) -> str | None:
    path = options["stop_file"]
    if path is None:
        if options["output"] is not None:
            path = f"{options['output']}.stop"
        elif engine.is_local:
            path = os.path.join(tempfile.gettempdir(), f"shh-{re.sub(r'[^A-Za-z0-9-]', '_', run_id)}.stop")
        else:
            return None
    if os.path.lexists(path) and engine.resume_from is None:  # a drain goes on where it was asked for
        raise UserError(f"the stop file {path} exists, so the run would end at once. Remove it, or name --stop-file.")
    return str(path)


def _check_new_or_resumed(request: StreamRequest) -> None:
    """A run id is used again only to go on; draws of one run over other data would tell what changed."""
    sink = request.sink
    if isinstance(sink, ReportFolder):
        if not os.path.isdir(sink.path):
            return  # still to be made, or a mount of the workers; they check it
        place = "--output"
        header, _, ended = sink.read()
        if header is None and os.listdir(sink.path):
            raise UserError(f"--output {sink.path} holds other files. Name a new or an empty folder.")
    elif request.is_named:
        place = "--output-topic"
        header, _, ended = sink.read(request.run_id)
    else:
        return  # a topic can hold many runs, and none of this fresh name
    if header is None:
        return
    if ended is not None:
        raise UserError(f"{place} holds run {header.run_id!r}, which has ended. Start a new run with another {place}.")
    if header.run_id != request.run_id:
        raise UserError(f"{place} holds another run, {header.run_id!r}. Name another {place}.")
    if request.engine.resume_from is None:
        go_on = "Go on with it by --resume-from SAVEPOINT, or start" if request.engine.name == FLINK else "Start"
        raise UserError(
            f"{place} holds run {header.run_id!r} already. {go_on} a new run: without --run-id, and with another"
            f" {place}."
        )
    check_same_run(place, header, request.header)


def _in_flags(message: str) -> str:
    """The same message in the words of the command line."""
    names = "|".join(_CLOCK_OPTIONS)
    return re.sub(rf"\b({names})_seconds\b", lambda match: flag(match[1]), message)
