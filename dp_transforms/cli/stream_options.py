"""The command line options of ``shh stream``, in the order in which ``--help`` shows them."""

from __future__ import annotations

import click

from dp_transforms.cli.engine_choice import (
    ALLOW_OPEN_PORTS,
    FLINK,
    FLINK_MASTER,
    IN_PROCESS,
    JOB_SERVICE,
    PARALLELISM,
    PRISM,
    WORKER_POOL,
    EngineName,
)
from dp_transforms.cli.options import (
    ADVANCED,
    BUDGET,
    DURATION,
    DURATION_OR_ZERO,
    ENGINE,
    INPUT,
    OUTPUT,
    AnyFunction,
    add_options,
    field_options,
    option,
)
from dp_transforms.cli.plan_options import plan_options
from dp_transforms.cli.state_options import ledger_options, state_options
from dp_transforms.cli.stream_metrics import METRICS_PORT
from dp_transforms.cli.table_output import OUTPUT_TABLE

_INPUT = (
    option(
        INPUT,
        "--kafka",
        brief="Read a topic of Kafka, with --topic.",
        needed="or another input",
        metavar="HOST:PORT",
        help="Read a Kafka topic from these bootstrap servers (commas between).",
    ),
    option(
        INPUT,
        "--topic",
        help="The topic to read, from the first record that can count; with --kafka.",
    ),
    option(
        INPUT,
        "--folder",
        brief="Read a folder that grows.",
        needed="or another input",
        metavar="PATH",
        help="Read a folder of log files, and those that are moved into it later.",
    ),
    option(
        INPUT,
        "--format",
        "record_format",
        type=click.Choice(["json", "avro"]),
        default="json",
        show_default=True,
        help="Format of a Kafka record. The format of a file is known from its ending.",
    ),
    option(INPUT, "--avro-schema", metavar="FILE", help="The Avro schema of the records (.avsc); with --format avro."),
    option(
        INPUT,
        "--avro-framing",
        type=click.Choice(["none", "confluent", "single-object"]),
        help="What is before each Avro record: nothing, the id of a schema registry, or a fingerprint. Default: none.",
    ),
    option(
        INPUT,
        "--avro-schema-id",
        type=click.IntRange(min=0),
        help="With confluent framing: the only schema id that is accepted.",
    ),
    option(
        INPUT,
        "--kafka-config",
        metavar="FILE",
        help="More settings of the Kafka client, one NAME=VALUE per line, such as security.protocol=SASL_SSL. Every "
        "worker reads the file at this path.",
    ),
)

_CLOCK = (
    option(
        INPUT,
        "--clock",
        brief="arrival (default), or event for history.",
        type=click.Choice(["arrival", "event"]),
        default="arrival",
        show_default=True,
        help="What closes windows. arrival: the log's own clock, which no user can change. event: the times in the "
        "events, only for history.",
    ),
    option(
        INPUT,
        "--producer-times",
        is_flag=True,
        default=None,
        help="With --clock arrival: let the producers of Kafka records set the times of arrival. No producer may be a "
        "user's device. Without this option the broker must set them (message.timestamp.type=LogAppendTime).",
    ),
    option(
        INPUT,
        "--allowed-lateness",
        type=DURATION_OR_ZERO,
        default="1m",
        show_default=True,
        help="How long after its end a window still accepts events.",
    ),
    option(
        INPUT,
        "--out-of-order",
        type=DURATION_OR_ZERO,
        default="10s",
        show_default=True,
        help="By how much the clock of a partition may run backwards.",
    ),
    option(
        INPUT,
        "--max-ahead",
        type=DURATION_OR_ZERO,
        default="5m",
        show_default=True,
        help="Events whose time is this much later than their arrival are rejected.",
    ),
    option(
        INPUT,
        "--idle-timeout",
        type=DURATION,
        default="1m",
        show_default=True,
        help="A partition with nothing new for this long no longer keeps windows open.",
    ),
    option(
        INPUT,
        "--shown-within",
        type=DURATION_OR_ZERO,
        help="The longest time between the arrival of a record and when readers can see it. A drain waits so long for "
        "what arrived before. Default: 1s with --folder, else --idle-timeout.",
    ),
)

_OUTPUT = (
    option(
        OUTPUT,
        "--output",
        needed="or a topic",
        brief="Where reports go: folder, database.",
        metavar="FOLDER|URL",
        help="Where reports go: a folder that every worker has at this path, or a database, as "
        "postgresql://USER@HOST/DATABASE or sqlite:///FILE.",
    ),
    OUTPUT_TABLE,
    option(
        OUTPUT,
        "--output-topic",
        brief="Where they go instead: a topic of Kafka.",
        metavar="TOPIC",
        help="Where reports go instead: a Kafka topic.",
    ),
    option(
        OUTPUT,
        "--output-kafka",
        metavar="HOST:PORT",
        help="Bootstrap servers of --output-topic. Default: those of --kafka.",
    ),
    option(
        OUTPUT,
        "--output-kafka-config",
        metavar="FILE",
        help="Like --kafka-config, for --output-kafka. Default: --kafka-config, if the servers are the same.",
    ),
    option(
        OUTPUT,
        "--output-format",
        type=click.Choice(["json", "avro"]),
        default="json",
        show_default=True,
        help="Format of the reports.",
    ),
    option(
        OUTPUT,
        "--dead-letter",
        brief="For lists of records that cannot be read.",
        metavar="FOLDER",
        help="Folder for lists of the records that cannot be read (files of mode 0600).",
    ),
    option(
        OUTPUT, "--stream", metavar="NAME", default="events", show_default=True, help="Name of the stream in reports."
    ),
)

_RUN = (
    option(
        BUDGET,
        "--noise-key-file",
        needed="required",
        brief="A secret that all workers share.",
        metavar="FILE",
        help="The noise key: a secret of at least 32 random bytes, mode 0600, at this path on every worker. Required, "
        "except with --engine in-process: there the default is a key that is drawn for this run and forgotten.",
    ),
    option(
        BUDGET,
        "--noise-key-secret",
        metavar="VERSION",
        help="The noise key as a version of a secret in Google Secret Manager, projects/P/secrets/S/versions/1.",
    ),
    option(
        ADVANCED,
        "--run-id",
        help="Name of the run. Default: that of --state, or a fresh one. Every new run must have a new one; to resume "
        "a run, give its own.",
    ),
    option(
        ENGINE,
        "--stop-file",
        metavar="FILE",
        help="When this file appears, the run is drained: what arrived by then counts, all windows close and the run "
        "ends; with --state only windows that are over close, and the state is handed over. Workers look for it: leave "
        "it there until the run has ended. Default: beside the folder of --output; with "
        "--output-topic and databases a temporary file if all workers run on this machine, else none.",
    ),
    option(
        ENGINE,
        "--once",
        brief="Read what is there now, and end.",
        is_flag=True,
        help="Read what is there now, and end: the run is drained from its first moment on, as by Ctrl-C. What arrived "
        "by then counts and all windows close, also those that are not over; with --state only those that are. It "
        "waits --out-of-order, --shown-within and 2 seconds: by default 13 s with --folder, and 72 s with --kafka. If "
        "no event that is there counts, nothing is published or spent (exit code 4).",
    ),
    option(
        OUTPUT,
        "--allow-empty",
        is_flag=True,
        help="With --once: publish also if no event that is there counts. Give it where others see whether a run "
        "publishes.",
    ),
    option(
        ENGINE,
        "--engine",
        brief="prism (default), flink, in-process.",
        type=EngineName(PRISM, FLINK, JOB_SERVICE, IN_PROCESS, job="live_stream"),
        help="What runs the pipeline. prism: a stream on this machine. flink: a cluster. job-service, in-process: for "
        "trials; they show nothing until all windows are closed, which --once does now. Default: flink with "
        "--flink-master, else prism.",
    ),
    FLINK_MASTER,
    option(
        ENGINE,
        "--checkpoint-dir",
        metavar="PATH",
        help="Where Flink keeps checkpoints: a path or URI that its machines share.",
    ),
    option(ENGINE, "--checkpoint-interval", type=DURATION, help="Time between checkpoints on Flink. Default: 10s."),
    PARALLELISM,
    WORKER_POOL,
    ALLOW_OPEN_PORTS,
    option(
        ENGINE,
        "--resume-from",
        metavar="SAVEPOINT",
        help="A savepoint or checkpoint of Flink to resume from; with --run-id or --state.",
    ),
    option(
        ENGINE,
        "--detach",
        is_flag=True,
        help="Print the job's id and leave the job running; on a Flink cluster.",
    ),
    METRICS_PORT,
    option(ADVANCED, "--verbose", is_flag=True, help="Show Beam's log, which may contain cells of the data."),
)


def stream_options(function: AnyFunction) -> AnyFunction:
    """Adds all options of ``shh stream``."""
    function = add_options(function, *_CLOCK, *_OUTPUT, *_RUN)
    function = field_options(plan_options(state_options(ledger_options(function))))
    return add_options(function, *_INPUT)
