"""One live stream, one Beam job, a private report of each window as it closes: to be submitted to any runner.

    python pipelines/live_stream.py --input kafka://b:9092/clicks --plan plan.json --noise-key-file noise.key \
        --output reports --runner=FlinkRunner --flink_master=jobs.internal:8081

Options with a hyphen are those of ``shh stream``, all others are Beam's, such as ``--runner`` (runners has a page for
each). ``shh stream --runner=...`` builds the same job, and looks after stops and the ledger.

Guarantee: all reports together are (epsilon, delta)-DP for one user with all of its events, as the plan says
(docs/guarantee.md). A job draws a run id, and with it noise of its own, when it is built. ``--run-id`` is taken only
with the stored state of that run: two jobs with one key, one run id and other events would show what differs.

The output keeps the first answer for each window. stderr, rejected rows and Beam's own log are for the operator alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms import KafkaTopic, LogFolder, StreamClock
from dp_transforms.beam.jobs import StreamJob, build_stream, watch_to_end
from dp_transforms.beam.runner_options import RESUMES, is_dry, is_on_dataflow, job_name, resumes, runner_options
from dp_transforms.cli.job_words import fields_of, job_parser, noise_key_of, parse_words
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.core.planned_run import fresh_run_id
from dp_transforms.errors import StreamError, UserError
from dp_transforms.logs.streams.kafka_topic import check_clock, check_topic
from dp_transforms.reports import ReportSink, sink_of
from dp_transforms.stores.kafka_client import TOPIC, have_same_servers, is_topic, topic_of

_PATHS = ("input", "output", "dead_letter", "stop_file", "noise_key_file", "kafka_config")
_STATES = " or ".join(f"--{name}" for name in RESUMES)


def parser() -> argparse.ArgumentParser:
    """Ours; `shh plan` makes the plan."""
    made = job_parser("One live stream, one Beam job, a private report of each window.")
    made.add_argument(
        "--input", required=True, help=f"{TOPIC} of JSON with times by the broker; or a folder of finished files"
    )
    made.add_argument("--output", required=True, help=f"{TOPIC}, or a new folder that all workers see")
    made.add_argument("--kafka-config", help="settings of librdkafka: a file that every worker has at this path")
    made.add_argument("--run-id", help=f"the run to resume from its state, with {_STATES}")
    made.add_argument("--dead-letter", help="a folder for lists of the rows that cannot be read")
    made.add_argument("--clock", choices=("arrival", "event"), default="arrival", help="event: to replay history")
    made.add_argument("--partitions", type=int, help="of a topic, to resume a run after others were added: the first N")
    made.add_argument("--stop-file", help="when it is there, what has come counts, all windows close, and the run ends")
    return made


def job_of(ours: argparse.Namespace) -> StreamJob:
    """Asks the broker who sets the times of records. Raises ValueError and StreamError."""
    source, clock = source_of(ours)
    return StreamJob(
        source=source,
        clock=clock,
        plan=read_plan(ours.plan),
        noise_key=noise_key_of(ours),
        run_id=ours.run_id,
        stream=ours.stream,
        public_items=ours.public_items,
        sink=output_of(ours),
        dead_letter=ours.dead_letter,
        stop_file=ours.stop_file,
    )


def source_of(ours: argparse.Namespace) -> tuple[KafkaTopic | LogFolder, StreamClock]:
    """Asks the broker who sets the times of records. Raises ValueError and StreamError."""
    clock, fields = StreamClock(ours.clock), fields_of(ours)
    check_clock(clock, tell)
    if not is_topic(ours.input):
        folder = LogFolder(ours.input, fields)
        return folder, StreamClock(ours.clock, shown_within_seconds=folder.settle_seconds)
    config, by_broker = ours.kafka_config, ours.clock == "arrival"
    topic = KafkaTopic(
        *topic_of(ours.input),
        fields,
        client_config_file=config,
        append_times_only=by_broker,
        first_partitions=ours.partitions,
    )
    check_topic(topic, clock, tell)
    return topic, clock


def output_of(ours: argparse.Namespace) -> ReportSink:
    """Settings such as passwords go only to the servers that they were given for. Raises ValueError."""
    is_for_others = is_topic(ours.input) and not have_same_servers(ours.input, ours.output)
    return sink_of(ours.output, client_config_file=None if is_for_others else ours.kafka_config)


def check_run_id(ours: argparse.Namespace, beam_words: Sequence[str]) -> None:
    """Draws the name of a new run. Raises UserError for a name without a state, or a state without a name."""
    is_resumed = resumes(beam_words)
    if is_resumed != (ours.run_id is not None):
        raise UserError(f"--run-id and {_STATES} belong together: a new run draws a name of its own.")
    if not is_resumed and os.path.isdir(ours.output) and os.listdir(ours.output):
        raise UserError(f"--output {ours.output} holds files. Name a new or an empty folder.")
    ours.run_id = ours.run_id or fresh_run_id()


def check_paths(ours: argparse.Namespace, options: PipelineOptions) -> None:
    """What workers must share, by names that do not depend on their current folder. Raises UserError and
    ValueError."""
    given = {name: path for name in _PATHS if (path := getattr(ours, name)) is not None}
    paths = [name for name, path in given.items() if not is_topic(path)]
    if paths and is_on_dataflow(options) and not is_dry(options):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in paths)
        raise UserError(f"workers of Dataflow share no disk: give topics and --noise-key-secret, not {flags}.")
    for name in paths:
        setattr(ours, name, os.path.abspath(getattr(ours, name)))
    output_of(ours)  # refuses a place that is none, before a job begins


def run(arguments: Sequence[str]) -> None:
    """Waits for the end of the job. Ends the process for what cannot be used; raises what Beam raises for the job."""
    ours, beam_words = parse_words(parser(), arguments)
    try:
        check_run_id(ours, beam_words)
        options = runner_options(beam_words, job_name=job_name(ours.stream, ours.run_id), streaming=True)
        check_paths(ours, options)
        pipeline, job = beam.Pipeline(options=options), job_of(ours)
        build_stream(pipeline, job)
    except (UserError, ValueError, StreamError) as error:
        sys.exit(f"live_stream: {error}")
    if is_dry(options):
        tell("Dry run: the job was made. It is not sent.")
    else:
        tell(f"Run {ours.run_id}. To resume it, keep this name, the noise key and what the runner has stored.")
    try:
        watch_to_end(pipeline, job)
    except StreamError as error:
        sys.exit(
            f"live_stream: the job was cancelled: {error} Resume run {ours.run_id} from what the runner has stored."
        )


if __name__ == "__main__":
    run(sys.argv[1:])
