"""From the options of ``shh stream`` to all that a run needs. Errors that can be known beforehand are found here."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection
from typing import Any

import apache_beam as beam

from dp_transforms.beam.set_up_workers import KeyFile
from dp_transforms.checks import check_names
from dp_transforms.cli.engine_choice import FLINK, IN_PROCESS, EngineChoice, choose_engine
from dp_transforms.cli.options import MAKE_A_KEY, event_fields, flag, noise_key_secret
from dp_transforms.cli.plan_options import plan_of_command
from dp_transforms.cli.state_options import StateOptions
from dp_transforms.cli.stream_rules import CLOCK_OPTIONS, check_rules, stop_file_of_run, with_absolute_paths
from dp_transforms.cli.table_output import output_table, shown_output
from dp_transforms.errors import StreamError, UserError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.partition_progress import ARRIVAL, StreamClock
from dp_transforms.logs.streams.stream_source import StreamSource
from dp_transforms.monitor.planned_run import fresh_run_id
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_table import ReportTable
from dp_transforms.reports.report_topic import ReportTopic
from dp_transforms.reports.report_writer import ReportSink, check_same_run
from dp_transforms.runs.state_file import StateFile


@dataclasses.dataclass(frozen=True)
class StreamRequest:
    """All that a run needs. is_named: the operator chose the run id; else it was drawn. stop_file: None where nobody
    can request a stop. once: request it at once. allow_empty: also if nothing counts that is there then. state: for a
    run that is taken in parts; else None."""

    source: StreamSource
    plan: Plan
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
    state: StateOptions | None = None
    metrics_port: int | None = None
    once: bool = False
    allow_empty: bool = False

    @property
    def header(self) -> ReportHeader:
        return ReportHeader.of_plan(self.plan, self.run_id, self.stream)

    @property
    def place(self) -> str:
        """The option that names the output."""
        places: dict[type, str] = {ReportFolder: "--output", ReportTable: "--output-table"}
        return places.get(type(self.sink), "--output-topic")

    @property
    def log_decides(self) -> bool:
        """Whether what a window holds is decided by the log alone, so that another attempt gives the same answers: its
        clock is that of arrivals, and the log itself sets it (docs/guarantee.md, section 6)."""
        is_set_by_log = not isinstance(self.source, KafkaTopic) or self.source.append_times_only
        return self.clock.kind == ARRIVAL and is_set_by_log


def stream_request(options: dict[str, Any], given: Collection[str]) -> StreamRequest:
    """given: the options that the operator gave. Asks the broker, starts nothing.

    Raises UserError: one line that names the option and the remedy.
    """
    options = with_absolute_paths(options)
    engine = choose_engine(options)
    try:
        check_names(**{flag(name): options[name] for name in ("stream", "run_id")})
        check_rules(options, given, engine)
        run_id = options["run_id"] or _run_id_of_state(options["state"]) or fresh_run_id()
        source = _source(options, event_fields(options))
        request = StreamRequest(
            source=source,
            plan=plan_of_command(options),
            domain_file=options["domain_file"],
            clock=StreamClock(
                kind=options["clock"],
                allowed_lateness_seconds=options["allowed_lateness"],
                out_of_order_seconds=options["out_of_order"],
                max_ahead_seconds=options["max_ahead"],
                idle_timeout_seconds=options["idle_timeout"],
                shown_within_seconds=_shown_within_seconds(options, source),
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
            state=_state(options, run_id),
            metrics_port=options["metrics_port"],
            once=options["once"],
            allow_empty=options["allow_empty"],
        )
        _check_release(request)
        if request.once and request.stop_file is None:
            raise UserError("--once needs a stop file, which all workers see: name it with --stop-file FILE.")
        if request.state is None:
            _check_new_or_resumed(request)
    except (ValueError, StreamError) as error:
        raise UserError(_in_flags(str(error))) from None
    return request


def _shown_within_seconds(options: dict[str, Any], source: StreamSource) -> float | None:
    """A folder is read in its order only if it shows each file within its settle time, so a drain need not wait
    longer. Of another log nothing is known: None is the idle timeout."""
    given: float | None = options["shown_within"]
    if given is None and isinstance(source, LogFolder):
        return min(source.settle_seconds, float(options["idle_timeout"]))
    return given


def _source(options: dict[str, Any], fields: EventFields) -> StreamSource:
    if options["folder"] is not None:
        return LogFolder(options["folder"], fields)
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
    if (table := output_table(options)) is not None:
        return table
    if options["output"] is not None:
        return ReportFolder(options["output"], "avro" if options["output_format"] == "avro" else "jsonl")
    # Settings such as passwords go only to the servers that they were given for.
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
        raise UserError("--noise-key-file and --noise-key-secret exclude each other. Give one of them.")
    if secret is not None:
        return noise_key_secret(secret)
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


def _state(options: dict[str, Any], run_id: str) -> StateOptions | None:
    if options["state"] is None:
        return None
    return StateOptions(
        options["state"],
        options["noise_key_file"],
        options["user_field"],
        options["item_field"],
        _output_name(options),
        until_seconds=options["until"],
        run_id=run_id,
        is_named=options["run_id"] is not None,
        population=options["population"],
    )


def _output_name(options: dict[str, Any]) -> str:
    """How the state of a run names what a part has published."""
    if (table := output_table(options)) is not None:
        return shown_output(table)
    return options["output"] or f"topic {options['output_topic']}"


def _stop_file(options: dict[str, Any], engine: EngineChoice, run_id: str) -> str | None:
    folder = None if output_table(options) is not None else options["output"]
    path = stop_file_of_run(options["stop_file"], folder, run_id, is_local=engine.is_local)
    if path is not None and os.path.lexists(path) and engine.resume_from is None:
        # A run that is resumed goes on to drain where that was asked for.
        raise UserError(f"the stop file {path} exists, so the run would end at once. Remove it, or name --stop-file.")
    return path


def _check_release(request: StreamRequest) -> None:
    if request.plan.counts is not None:
        raise UserError(
            "--counts-for cannot be used with a stream: counts are paid for when all names of the run are known. Leave"
            " it out, or use `shh replay`."
        )


def _check_new_or_resumed(request: StreamRequest) -> None:
    """A run id is used again only to resume its run: the same noise on other data would tell what changed."""
    sink, place = request.sink, request.place
    if isinstance(sink, ReportFolder):
        if not os.path.isdir(sink.path):
            return  # still to be made, or a mount of the workers, who check it
        header, _, ended = sink.read()
        if header is None and os.listdir(sink.path):
            raise UserError(f"--output {sink.path} holds other files. Name a new or an empty folder.")
    elif isinstance(sink, ReportTable) or request.is_named:
        header, _, ended = sink.read(request.run_id)
    else:
        return  # a topic can hold many runs, but none of this fresh name
    if header is None:
        return
    if ended is not None:
        raise UserError(f"{place} holds run {header.run_id!r}, which has ended. Start a new run with another {place}.")
    if header.run_id != request.run_id:
        raise UserError(f"{place} holds another run, {header.run_id!r}. Name another {place}.")
    if request.engine.resume_from is None:
        go_on = "Resume it with --resume-from SAVEPOINT, or start" if request.engine.name == FLINK else "Start"
        raise UserError(
            f"{place} holds run {header.run_id!r} already. {go_on} a new run: without --run-id, and with another"
            f" {place}."
        )
    check_same_run(place, header, request.header)


def _in_flags(message: str) -> str:
    """The message with the flags of the command line in the place of parameter names."""
    names = "|".join(CLOCK_OPTIONS)
    return re.sub(rf"\b({names})_seconds\b", lambda match: flag(match[1]), message)
