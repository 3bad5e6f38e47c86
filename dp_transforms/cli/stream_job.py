"""The job of a stream, of the command and of pipelines/live_stream.py: the options that both have, and what is made of
them."""

from __future__ import annotations

import os

import apache_beam as beam
import click

from dp_transforms.beam.jobs import StreamJob
from dp_transforms.cli.options import (
    DURATION,
    OF_PROGRAMS,
    Options,
    fields_of,
    option,
    rare,
    user_errors,
)
from dp_transforms.errors import InputError, UserError
from dp_transforms.logs.streams.kafka_topic import KafkaTopic, check_topic
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.partition_progress import ARRIVAL, EVENT, StreamClock
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportFolder
from dp_transforms.stores.kafka_client import TOPIC, is_topic, topic_of
from dp_transforms.stores.remote_files import UrlError, is_remote

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
READS = (
    option(["--input"], required=True, metavar="FOLDER|URL", help=f"A folder that grows, or {TOPIC}."),
    rare(["--kafka-config"], metavar="FILE", help=_KAFKA),
    option(["--clock"], type=click.Choice((ARRIVAL, _PRODUCER, EVENT)), default=ARRIVAL, metavar="CLOCK", help=_CLOCK),
    rare(["--allowed-lateness"], type=DURATION, default="1m", help=_LATENESS),
    rare(["--out-of-order"], type=DURATION, default="10s", help=_OUT_OF_ORDER),
    rare(["--idle-timeout"], type=DURATION, default="1m", help=_IDLE),
)
OUTPUT = option(["--output"], required=True, metavar="FOLDER|URL", help="Where reports go: a folder, or its URL.")
DEAD_LETTER = option(["--dead-letter"], metavar="FOLDER", help="Lists of records that cannot be read.")
PROGRAM = [
    *READS,
    OUTPUT,
    DEAD_LETTER,
    option(["--run-id"], metavar="NAME", help="The run to resume from its state, with --savepoint_path or --update."),
    option(["--stop-file"], metavar="FILE", help="When it is there, what has come counts, and all windows close."),
    option(["--partitions"], type=click.IntRange(min=1), metavar="N", help=_PARTITIONS),
    *OF_PROGRAMS,
]
"""The options of pipelines/live_stream.py."""


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
        kind=EVENT if options.clock == EVENT else ARRIVAL,
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
