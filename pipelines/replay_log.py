"""One event log, one Beam job, one private report: to be submitted to any runner.

    python pipelines/replay_log.py --log 'clicks/*.parquet' --plan plan.json --noise-key-file noise.key \
        --output report.avro --runner=FlinkRunner --flink_master=jobs.internal:8081

Options with a hyphen are those of ``shh replay``; all others are Beam's, such as ``--runner``: the folder runners has a
page for each. ``shh replay --runner=...`` builds the same job, and looks after a ledger.

Guarantee: the report is (epsilon, delta)-DP for one user with all of its events, as the plan says (docs/guarantee.md).
Each job draws a run id, and with it noise of its own, when it is built: so there is no option for it, as two jobs with
one key, one run id and different logs would show what differs. Submit each job once: never keep it as a template.

Nothing is published but by the last step, when all rows were read: the report appears whole or not at all, over no
other file, however often a worker dies. What is told on stderr, and Beam's own log, is for the operator alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms import find_log_chunks
from dp_transforms.beam.jobs import build_replay, run_to_end
from dp_transforms.beam.replay_job import ReplayJob
from dp_transforms.beam.runner_options import is_dry, is_on_dataflow, is_sent, job_name, runner_options
from dp_transforms.cli.job_words import fields_of, job_parser, noise_key_of, parse_words
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.output_file import check_output, is_taken
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.core.planned_run import fresh_run_id
from dp_transforms.errors import UserError
from dp_transforms.stores.remote_files import full_name, is_remote

_OTHERS = ("block_output", "dead_letter")  # of the files that are written, beside the report


def parser() -> argparse.ArgumentParser:
    """Ours; `shh plan` makes the plan."""
    made = job_parser("One event log, one Beam job, one private report.")
    made.add_argument("--log", action="append", required=True, help="a file, a folder, a glob or a URL; or several")
    made.add_argument("--output", required=True, help="a new path or URL that ends in .avro, .jsonl or .parquet")
    made.add_argument("--block-output", help="with a plan with rounds: the same for what is held by many in each block")
    made.add_argument("--dead-letter", help="a new path or URL for a list of the rows that cannot be read")
    return made


def job_of(ours: argparse.Namespace) -> ReplayJob:
    """Lists the log. Raises ValueError for what cannot be used."""
    plan = read_plan(ours.plan)
    fields = fields_of(ours)
    return ReplayJob(
        chunks=find_log_chunks(ours.log, fields),
        fields=fields,
        plan=plan,
        noise_key=noise_key_of(ours),
        run_id=ours.run_id,
        stream=ours.stream,
        public_items=ours.public_items,
        output=ours.output,
        block_output=ours.block_output,
        dead_letter=ours.dead_letter,
    )


def check(ours: argparse.Namespace, options: PipelineOptions) -> None:
    """Before anything is read. Raises UserError."""
    files = {name: getattr(ours, name) for name in ("output", *_OTHERS, "public_items", "noise_key_file")}
    if is_on_dataflow(options):
        if ours.noise_key_secret is None:
            raise UserError("workers of Dataflow share no disk: give --noise-key-secret, and no --noise-key-file.")
        for path in filter(None, [*ours.log, *files.values()]):
            if not is_remote(path) and not is_dry(options):
                raise UserError(f"workers of Dataflow share no disk, got {path}. Use gs://BUCKET/NAME.")
    for name, path in files.items():  # workers may have another current folder
        setattr(ours, name, None if path is None else full_name(path))
    ours.log = [full_name(path) for path in ours.log]
    named: dict[str, str] = {}
    for name in ("output", *_OTHERS):
        path, option = getattr(ours, name), f"--{name.replace('_', '-')}"
        if path is not None:
            if not (is_dry(options) and is_remote(path)):  # nothing is written, so no credentials are needed
                check_output(path, option)
            if (other := named.setdefault(path, option)) != option:
                raise UserError(f"{other} and {option} name the same file. Name two different ones.")


def run(arguments: Sequence[str]) -> None:
    """Waits for the end of the job. Ends the process for what cannot be used; raises what Beam raises for the job."""
    ours, beam_words = parse_words(parser(), arguments)
    ours.run_id = fresh_run_id()
    try:
        options = runner_options(beam_words, job_name=job_name(ours.stream, ours.run_id), streaming=False)
        check(ours, options)
        pipeline = beam.Pipeline(options=options)
        build_replay(pipeline, job_of(ours))
    except (UserError, ValueError) as error:
        sys.exit(f"replay_log: {error}")
    run_to_end(pipeline)
    if is_dry(options):
        tell("Dry run: the job was made. It is not sent.")
    if is_sent(options) and not is_taken(ours.output):
        sys.exit(
            f"replay_log: no report is seen at {ours.output}. If more than half of the rows could not be read,"
            " the job has withheld it, and its counter reports_withheld says so. Else it was moved away, or lies on the"
            " disk of a worker: look for it before another run, which is a new one and pays again."
        )


if __name__ == "__main__":
    run(sys.argv[1:])
