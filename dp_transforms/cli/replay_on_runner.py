"""A replay by a runner of Beam: the job that pipelines/replay_log.py builds, submitted and waited for."""

from __future__ import annotations

import time
from collections.abc import Sequence

import apache_beam as beam

from dp_transforms.beam.jobs import ReplayJob, build_replay, run_to_end
from dp_transforms.beam.runner_options import is_on_dataflow, is_sent, job_name, runner_options
from dp_transforms.beam.workers import operator_counts
from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.operator_log import note_done
from dp_transforms.cli.options import LogError
from dp_transforms.cli.output_file import is_taken
from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.cli.replay_request import ReplayRequest, ReplaySummary
from dp_transforms.core.operator_counts import REPORTS_WITHHELD
from dp_transforms.errors import UserError
from dp_transforms.logs import check_unchanged


def job_of(request: ReplayRequest) -> ReplayJob:
    """As pipelines/replay_log.py has it."""
    return ReplayJob(
        chunks=request.chunks,
        fields=request.fields,
        plan=request.plan,
        noise_key=request.options.noise_key_file,
        run_id=request.run_id,
        stream=request.stream,
        public_items=request.public_items,
        output=request.output,
        block_output=request.options.block_output,
        dead_letter=request.options.dead_letter,
        max_bad_fraction=request.options.max_bad_fraction,
    )


def run_on_runner(request: ReplayRequest, words: Sequence[str]) -> ReplaySummary:
    """Submits the job, which publishes by itself, in its last step; returns when it is over. words: options of Beam.
    Raises UserError like `run_replay`."""
    started = time.monotonic()
    options = runner_options(words, job_name=job_name(request.stream, request.run_id), streaming=False)
    if is_on_dataflow(options) or not is_sent(options):
        raise UserError("a job on Dataflow, or one that is not run, is built by pipelines/replay_log.py.")
    with quiet_workers(), errors_in_one_line("see whether there is a report: a job may publish before it fails"):
        check_unchanged(request.chunks)
        pipeline = beam.Pipeline(options=options)
        build_replay(pipeline, job_of(request))
        with Unwinding():  # Ctrl-C cancels the job
            result = run_to_end(pipeline)
    counts = operator_counts(result)
    # Numbers of rows say nothing here: Beam counts a bundle that ran twice two times, and the last step does not.
    if counts.get(REPORTS_WITHHELD):
        listed = request.options.dead_letter
        where = f"{listed} says where and why" if listed else "shh doctor LOG shows how it is read"
        raise LogError(
            "more rows than --max-bad-fraction could not be read, so the job has withheld its report. For the rows,"
            f" {where}."
        )
    if not is_taken(request.output):
        raise UserError(not_seen(request.output))
    note_done()
    return ReplaySummary.of_counts(counts, time.monotonic() - started)


def not_seen(output: str) -> str:
    """Of a job that has ended well. It may have published: others may have read what is not there any more."""
    return (
        f"no report is seen at {output}, though the job has ended; the run stays charged. It may have been moved away"
        " meanwhile, or lie on the disk of a worker: look for it there. To run it again is a new run, which pays again."
    )
