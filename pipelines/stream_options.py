"""The command line options of ``shh stream``, in the order in which ``--help`` shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dp_transforms.pipelines.engine_options import (
    ALLOW_OPEN_PORTS,
    FLINK_MASTER,
    NOISE_KEY_SECRET,
    PARALLELISM,
    WORKER_POOL,
)
from dp_transforms.pipelines.ledger_options import ledger_options
from dp_transforms.pipelines.options import DURATION, DURATION_OR_ZERO, field_options
from dp_transforms.pipelines.plan_options import plan_options
from dp_transforms.pipelines.state_options import state_options
from dp_transforms.pipelines.stream_metrics import METRICS_PORT
from dp_transforms.pipelines.table_output import OUTPUT_TABLE

_F = TypeVar("_F", bound=Callable[..., Any])

# Only in this process the noise key can be drawn and forgotten: no other process needs it.
IN_PROCESS = "in-process"
FLINK, PRISM, JOB_SERVICE, DATAFLOW = "flink", "prism", "job-service", "dataflow"
ENGINES = (PRISM, FLINK, DATAFLOW, JOB_SERVICE, IN_PROCESS)

_INPUT = (
    click.option(
        "--kafka", metavar="HOST:PORT", help="Read a Kafka topic from these bootstrap servers (commas between)."
    ),
    click.option("--topic", help="The topic to read, from the first record that can count; with --kafka."),
    click.option(
        "--folder", metavar="PATH", help="Read a folder of log files, and those that are moved into it later."
    ),
    click.option(
        "--pubsub-subscription",
        metavar="SUBSCRIPTION",
        help="Read JSON messages of a Pub/Sub subscription, projects/P/subscriptions/S. Only on Dataflow.",
    ),
    click.option(
        "--format",
        "record_format",
        type=click.Choice(["json", "avro"]),
        default="json",
        show_default=True,
        help="Format of a Kafka record. The format of a file is known from its ending.",
    ),
    click.option("--avro-schema", metavar="FILE", help="The Avro schema of the records (.avsc); with --format avro."),
    click.option(
        "--avro-framing",
        type=click.Choice(["none", "confluent", "single-object"]),
        help="What is before each Avro record: nothing, the id of a schema registry, or a fingerprint. Default: none.",
    ),
    click.option(
        "--avro-schema-id",
        type=click.IntRange(min=0),
        help="With confluent framing: the only schema id that is accepted.",
    ),
    click.option(
        "--kafka-config",
        metavar="FILE",
        help="More settings of the Kafka client, one NAME=VALUE per line, such as security.protocol=SASL_SSL. Every "
        "worker reads the file at this path.",
    ),
)

_CLOCK = (
    click.option(
        "--clock",
        type=click.Choice(["arrival", "event"]),
        default="arrival",
        show_default=True,
        help="What closes windows. arrival: the log's own clock, which no user can change. event: the times in the "
        "events, only for history.",
    ),
    click.option(
        "--producer-times",
        is_flag=True,
        default=None,
        help="With --clock arrival: let the producers of Kafka records set the times of arrival. No producer may be a "
        "user's device. Without this option the broker must set them (message.timestamp.type=LogAppendTime).",
    ),
    click.option(
        "--allowed-lateness",
        type=DURATION_OR_ZERO,
        default="1m",
        show_default=True,
        help="How long after its end a window still accepts events.",
    ),
    click.option(
        "--out-of-order",
        type=DURATION_OR_ZERO,
        default="10s",
        show_default=True,
        help="By how much the clock of a partition may run backwards.",
    ),
    click.option(
        "--max-ahead",
        type=DURATION_OR_ZERO,
        default="5m",
        show_default=True,
        help="Events whose time is this much later than their arrival are rejected.",
    ),
    click.option(
        "--idle-timeout",
        type=DURATION,
        default="1m",
        show_default=True,
        help="A partition with nothing new for this long no longer keeps windows open.",
    ),
    click.option(
        "--shown-within",
        type=DURATION_OR_ZERO,
        help="The longest time between the arrival of a record and when readers can see it. A drain waits so long for "
        "what arrived before. Default: 1s with --folder, else --idle-timeout.",
    ),
)

_OUTPUT = (
    click.option(
        "--output",
        metavar="FOLDER|URL",
        help="Where reports go: a folder that every worker has at this path, or a database, as "
        "postgresql://USER@HOST/DATABASE or sqlite:///FILE.",
    ),
    OUTPUT_TABLE,
    click.option("--output-topic", metavar="TOPIC", help="Where reports go instead: a Kafka topic."),
    click.option(
        "--output-kafka", metavar="HOST:PORT", help="Bootstrap servers of --output-topic. Default: those of --kafka."
    ),
    click.option(
        "--output-kafka-config",
        metavar="FILE",
        help="Like --kafka-config, for --output-kafka. Default: --kafka-config, if the servers are the same.",
    ),
    click.option(
        "--output-format",
        type=click.Choice(["json", "avro"]),
        default="json",
        show_default=True,
        help="Format of the reports.",
    ),
    click.option(
        "--dead-letter",
        metavar="FOLDER",
        help="Folder for lists of the records that cannot be read (files of mode 0600).",
    ),
    click.option(
        "--stream", metavar="NAME", default="events", show_default=True, help="Name of the stream in reports."
    ),
)

_RUN = (
    click.option(
        "--noise-key-file",
        metavar="FILE",
        help="The noise key: a secret of at least 32 random bytes, mode 0600, at this path on every worker. Required, "
        "except with --engine in-process: there the default is a key that is drawn for this run and forgotten.",
    ),
    NOISE_KEY_SECRET,
    click.option(
        "--run-id",
        help="Name of the run. Default: that of --state, or a fresh one. Every new run must have a new one; to resume "
        "a run, give its own.",
    ),
    click.option(
        "--stop-file",
        metavar="FILE",
        help="When this file appears, the run is drained: what arrived by then counts, all windows close and the run "
        "ends; with --state only windows that are over close, and the state is handed over. Workers look for it: leave "
        "it there until the run has ended. Default: beside the folder of --output; with "
        "--output-topic and databases a temporary file if all workers run on this machine, else none.",
    ),
    click.option(
        "--once",
        is_flag=True,
        help="Read what is there now, and end: the run is drained from its first moment on, as by Ctrl-C. What arrived "
        "by then counts and all windows close, also those that are not over; with --state only those that are. It "
        "waits --out-of-order, --shown-within and 2 seconds: by default 13 s with --folder, and 72 s with --kafka.",
    ),
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="What runs the pipeline. prism: a stream on this machine. flink, dataflow: a cluster. job-service, "
        "in-process: for trials; they show nothing until all windows are closed, which --once does now. Default: flink "
        "with --flink-master, dataflow with --pubsub-subscription, else prism.",
    ),
    FLINK_MASTER,
    click.option(
        "--checkpoint-dir", metavar="PATH", help="Where Flink keeps checkpoints: a path or URI that its machines share."
    ),
    click.option("--checkpoint-interval", type=DURATION, help="Time between checkpoints on Flink. Default: 10s."),
    PARALLELISM,
    WORKER_POOL,
    ALLOW_OPEN_PORTS,
    click.option(
        "--resume-from",
        metavar="SAVEPOINT",
        help="A savepoint or checkpoint of Flink to resume from; with --run-id or --state.",
    ),
    click.option(
        "--detach", is_flag=True, help="Print the job's id and leave the job running; on a Flink cluster and Dataflow."
    ),
    METRICS_PORT,
    click.option("--verbose", is_flag=True, help="Show Beam's log, which may contain cells of the data."),
)


def stream_options(function: _F) -> _F:
    """Adds all options of ``shh stream``."""
    for group in (_RUN, _OUTPUT, _CLOCK):
        for option in reversed(group):
            function = option(function)
    function = field_options(plan_options(state_options(ledger_options(function))))
    for option in reversed(_INPUT):
        function = option(function)
    return function
