"""One event log, one Beam job, one private report: what to submit where a job of your own is wanted.

    python pipelines/replay_log.py --log 'clicks/*.parquet' --plan plan.json --noise_key_file noise.key \
        --output report.avro --runner=FnApiRunner

All other options are Beam's own: ``--runner=DirectRunner``, ``FlinkRunner``, ``DataflowRunner``, ``PrismRunner`` and
theirs (the folder runners has a page for each). Each worker must be able to read the log and, at its path, the key.
``shh replay`` does the same on one machine many times faster, and looks after the rest: ledger, states, dead letters.

Guarantee: the report is (epsilon, delta)-DP for one user with all of its events, as the plan says (docs/guarantee.md).
Each job draws a run id of its own, and with it noise of its own: so build a new job for each run, never a template.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions

from dp_transforms import EventFields, ReadEvents, ReleasePlan, ReportHeader, ShiftingHeavyHitters, find_log_chunks
from dp_transforms.beam.write_rejected import WriteRejected
from dp_transforms.beam.write_reports import WriteReports
from dp_transforms.run_settings import fresh_run_id


class ReplayOptions(PipelineOptions):
    """What is ours on the command line; `shh plan` makes the plan."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--log", action="append", help="a file, a folder, a glob or a URL; may be given again")
        parser.add_argument("--plan", help="the plan, a file that shh plan --output wrote")
        parser.add_argument("--noise_key_file", help="a private file of at least 32 random bytes, for all workers")
        parser.add_argument("--output", help="the report: a path or URL that ends in .avro, .jsonl or .parquet")
        parser.add_argument("--dead_letter", help="rows that cannot be read: a path or URL, for the operator alone")
        parser.add_argument("--user_field", default="user")
        parser.add_argument("--item_field", default="item")
        parser.add_argument("--time_field", default="timestamp")
        parser.add_argument("--time_unit", choices=("s", "ms", "us"), help="of times that are numbers")
        parser.add_argument("--domain_file", help="of a plan with a known domain: its items, for all workers")


def build(pipeline: beam.Pipeline, options: ReplayOptions) -> None:
    """Reading, the transform, and one file. Raises ValueError and EventFileError for what cannot be used."""
    fields = EventFields(options.user_field, options.item_field, options.time_field, options.time_unit)
    plan = ReleasePlan.from_json(pathlib.Path(options.plan).read_text())
    run_id = fresh_run_id()
    batches, unread = pipeline | "ReadEvents" >> ReadEvents(find_log_chunks(options.log, fields), fields)
    heavy = batches | "ShiftingHeavyHitters" >> ShiftingHeavyHitters(
        plan, noise_key=options.noise_key_file, run_id=run_id, domain=options.domain_file
    )
    _ = heavy.reports | "WriteReports" >> WriteReports(options.output, ReportHeader.of_plan(plan, run_id, "events"))
    if options.dead_letter is not None:
        rejected = (unread, heavy.rejected) | "AllRejected" >> beam.Flatten()
        _ = rejected | "WriteRejected" >> WriteRejected(options.dead_letter)


def run(arguments: Sequence[str]) -> None:
    """Waits for the end of the job, as Beam does. Ends the process if an option is missing."""
    options = PipelineOptions(arguments)
    ours = options.view_as(ReplayOptions)
    for name in ("log", "plan", "noise_key_file", "output"):
        if getattr(ours, name) is None:
            sys.exit(f"--{name} is missing. See --help.")
    options.view_as(SetupOptions).save_main_session = False
    with beam.Pipeline(options=options) as pipeline:
        build(pipeline, ours)


if __name__ == "__main__":
    run(sys.argv[1:])
