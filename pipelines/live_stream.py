"""One live stream, one Beam job, a private report of each window as it closes: what to submit where a job of your own
is wanted.

    python pipelines/live_stream.py --kafka localhost:9092 --topic clicks --plan plan.json --noise_key_file noise.key \
        --run_id summer --output reports --runner=FlinkRunner --streaming ...

All other options are Beam's own (the folder runners has a page for each runner). A runner that stores no state, such
as DirectRunner, reads each partition in one call until the run has ended (``--driver=loop``). Each worker must reach
the broker, the folder of reports and, at its path, the key. ``shh stream`` does the same and looks after the rest:
engines, stops, states, the ledger, dead letters.

Guarantee: all reports together are (epsilon, delta)-DP for one user with all of its events, as the plan says
(docs/guarantee.md). Condition: a run id is used once with a key, but to resume the same run from its stored state.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions

from dp_transforms import (
    EventFields,
    KafkaTopic,
    LogFolder,
    MonitorStream,
    ReleasePlan,
    ReportFolder,
    ReportHeader,
    StreamClock,
    WriteReportStream,
)

_DRIVERS = ("timers", "loop")


class StreamOptions(PipelineOptions):
    """What is ours on the command line; `shh plan` makes the plan."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--kafka", help="host:port of the brokers, with --topic")
        parser.add_argument("--topic", help="its records are JSON, and the broker sets their time (LogAppendTime)")
        parser.add_argument("--folder", help="in place of a topic: a folder that finished log files are moved into")
        parser.add_argument("--plan", help="the plan, a file that shh plan --output wrote")
        parser.add_argument("--noise_key_file", help="a private file of at least 32 random bytes, for all workers")
        parser.add_argument("--run_id", help="a name that was never used with this key")
        parser.add_argument("--output", help="a folder for the reports that all workers see")
        parser.add_argument("--user_field", default="user")
        parser.add_argument("--item_field", default="item")
        parser.add_argument("--time_field", default="timestamp")
        parser.add_argument("--time_unit", choices=("s", "ms", "us"), help="of times that are numbers")
        parser.add_argument("--clock", choices=("arrival", "event"), default="arrival", help="event: to replay history")
        parser.add_argument(
            "--driver", choices=_DRIVERS, default="timers", help="loop: for runners without stored state"
        )
        parser.add_argument("--stop_file", help="when this file appears, all windows close and the run ends")


def build(pipeline: beam.Pipeline, options: StreamOptions) -> None:
    """Reading, the monitor, and a sink that keeps the first answer. Raises ValueError and StreamError."""
    plan = ReleasePlan.from_json(pathlib.Path(options.plan).read_text())
    monitor = MonitorStream(
        _source(options),
        plan,
        clock=StreamClock(options.clock),
        noise_key=options.noise_key_file,
        run_id=options.run_id,
        driver=options.driver,
        confirm=options.driver == "timers",
        stop_file=options.stop_file,
    )
    monitored = pipeline | "MonitorStream" >> monitor
    header = ReportHeader.of_plan(plan, options.run_id, "events")
    _ = (monitored.reports, monitored.ended) | "WriteReportStream" >> WriteReportStream(
        ReportFolder(options.output), header
    )


def _source(options: StreamOptions) -> KafkaTopic | LogFolder:
    fields = EventFields(options.user_field, options.item_field, options.time_field, options.time_unit)
    if options.folder is not None:
        return LogFolder(options.folder, fields)
    return KafkaTopic(options.kafka, options.topic, fields, append_times_only=options.clock == "arrival")


def run(arguments: Sequence[str]) -> None:
    """Waits for the end of the job, as Beam does. Ends the process if an option is missing."""
    options = PipelineOptions(arguments)
    ours = options.view_as(StreamOptions)
    for name in ("plan", "noise_key_file", "run_id", "output"):
        if getattr(ours, name) is None:
            sys.exit(f"--{name} is missing. See --help.")
    if (ours.folder is None) == (ours.kafka is None or ours.topic is None):
        sys.exit("Give --kafka and --topic, or --folder.")
    options.view_as(SetupOptions).save_main_session = False
    with beam.Pipeline(options=options) as pipeline:
        build(pipeline, ours)


if __name__ == "__main__":
    run(sys.argv[1:])
