"""One event log, one Beam job, one private report: to be submitted to any runner.

    python pipelines/replay_log.py --log 'clicks/*.parquet' --plan plan.json --noise-key-file noise.key \
        --output report.avro --runner=FlinkRunner --flink_master=jobs.internal:8081

Options are those of ``shh replay``; all others are Beam's, such as ``--runner``: the folder runners has a page for
each. ``shh replay --runner=...`` builds the same job, and looks after a ledger.

Guarantee: the report is (epsilon, delta)-DP for one user with all of its events, as the plan says (docs/guarantee.md).
Each job draws a run id, and with it noise of its own, when it is built: so there is no option for it, as two jobs with
one key, one run id and different logs would show what differs. Submit each job once: never keep it as a template.

Nothing is published but by the last step, when all rows were read: the report appears whole or not at all, over no
other file, however often a worker dies. What is told on stderr, and Beam's own log, is for the operator alone.
"""

from __future__ import annotations

import sys

import apache_beam as beam
import click

from dp_transforms.beam.jobs import build_replay, run_to_end
from dp_transforms.beam.runner_options import is_dry, is_on_dataflow, is_sent, job_name, runner_options
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import Options, Program, beam_words, check_shared, noise_key_of, user_errors
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.cli.replay import PROGRAM, WORKERS_FILES, check_files, job_of, make_absolute
from dp_transforms.core.planned_run import fresh_run_id
from dp_transforms.errors import UserError
from dp_transforms.stores.files import is_taken
from dp_transforms.stores.remote_files import is_remote


@click.command("replay_log", cls=Program, params=PROGRAM)
def command(options: Options) -> None:
    """One event log, one Beam job, one private report. All other options are Beam's."""
    run_id = fresh_run_id()
    with user_errors(ValueError):
        runner = runner_options(beam_words(), job_name=job_name(options.stream, run_id), streaming=False)
        if is_on_dataflow(runner) and not is_dry(runner):
            check_shared(options, WORKERS_FILES, is_remote, "URLs such as gs://BUCKET/NAME")
        make_absolute(options)
        check_files(options, are_written=not is_dry(runner))
        job = job_of(options, read_plan(options.plan_file), noise_key_of(options), run_id)
        pipeline = beam.Pipeline(options=runner)
        build_replay(pipeline, job)
    run_to_end(pipeline)
    if is_dry(runner):
        tell("Dry run: the job was made. It is not sent.")
    if is_sent(runner) and not is_taken(options.output):
        raise UserError(
            f"no report is seen at {options.output}. If more than half of the rows could not be read, the job has"
            " withheld it, and its counter reports_withheld says so. Else it was moved away, or lies on the disk of a"
            " worker: look for it before another run, which is a new one and pays again."
        )


if __name__ == "__main__":
    command.run(sys.argv[1:])
