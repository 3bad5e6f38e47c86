"""One live stream, one Beam job, a private report of each window as it closes: to be submitted to any runner.

    python pipelines/live_stream.py --input kafka://b:9092/clicks --plan plan.json --noise-key-file noise.key \
        --output reports --runner=FlinkRunner --flink_master=jobs.internal:8081

Options are those of ``shh stream``, all others are Beam's, such as ``--runner`` (runners has a page for each).
``shh stream --runner=...`` builds the same job, and looks after stops and the ledger.

Guarantee: all reports together are (epsilon, delta)-DP for one user with all of its events, as the plan says
(docs/guarantee.md). A job draws a run id, and with it noise of its own, when it is built. ``--run-id`` is taken only
with the stored state of that run: two jobs with one key, one run id and other events would show what differs.

The output keeps the first answer for each window. stderr, rejected rows and Beam's own log are for the operator alone.
"""

from __future__ import annotations

import sys

import apache_beam as beam
import click

from dp_transforms.beam.jobs import build_stream, watch_to_end
from dp_transforms.beam.runner_options import RESUMES, is_dry, is_on_dataflow, job_name, resumes, runner_options
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import Options, Program, beam_words, check_shared, noise_key_of, user_errors
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.cli.stream import PATHS, PROGRAM, check_source, make_absolute, stream_job
from dp_transforms.core.planned_run import fresh_run_id
from dp_transforms.errors import StreamError, UserError
from dp_transforms.stores.kafka_client import is_topic
from dp_transforms.stores.remote_files import is_remote


@click.command("live_stream", cls=Program, params=PROGRAM)
def command(options: Options) -> None:
    """One live stream, one Beam job, a private report of each window. All other options are Beam's."""
    words = beam_words()
    check_run_id(options, is_resumed=resumes(words))
    run_id = options.run_id or fresh_run_id()
    with user_errors(ValueError):
        runner = runner_options(words, job_name=job_name(options.stream, run_id), streaming=True)
        if is_on_dataflow(runner) and not is_dry(runner):
            check_shared(options, PATHS, _is_shared, "a topic, a URL of a store")
        make_absolute(options)
        plan, noise_key = read_plan(options.plan_file), noise_key_of(options)
        job = stream_job(options, plan, noise_key, run_id, options.stop_file, options.partitions)
        if options.run_id is None and not is_dry(runner) and (held := job.sink.read()[0]) is not None:
            raise UserError(f"--output holds run {held.run_id!r}. Name a new or an empty folder.")
        check_source(job)
        pipeline = beam.Pipeline(options=runner)
        build_stream(pipeline, job)
    if is_dry(runner):
        tell("Dry run: the job was made. It is not sent.")
    else:
        tell(f"Run {run_id}. To resume it, keep this name, the noise key and what the runner has stored.")
    try:
        watch_to_end(pipeline, job)
    except StreamError as error:
        raise UserError(
            f"the job was cancelled: {error} Resume run {run_id} from what the runner has stored."
        ) from None


def _is_shared(place: str) -> bool:
    return is_topic(place) or is_remote(place)


def check_run_id(options: Options, *, is_resumed: bool) -> None:
    """Raises UserError for a name without a state, or a state without a name."""
    if is_resumed != (options.run_id is not None):
        states = " or ".join(f"--{name}" for name in RESUMES)
        raise UserError(f"--run-id and {states} belong together: a new run draws a name of its own.")


if __name__ == "__main__":
    command.run(sys.argv[1:])
