"""A replay on Dataflow: its job is watched to its end, or left running. Only its construction was ever tried."""

from __future__ import annotations

import contextlib

import apache_beam as beam
from apache_beam.options.pipeline_options import TestOptions
from apache_beam.runners.runner import PipelineResult

from dp_transforms.cli.operator_log import tell
from dp_transforms.engines import dataflow


def is_dry_run(pipeline: beam.Pipeline) -> bool:
    """Whether ``--dry_run=true`` was given: the job is made and not sent."""
    return bool(pipeline.options.view_as(TestOptions).dry_run)


def make_job(pipeline: beam.Pipeline) -> None:
    """Makes the job, and says how large it is. Raises ValueError if the service would not take it."""
    size = dataflow.build_job(pipeline, is_batch=True).ByteSize()
    tell(f"The job can be made; it has {size:,} bytes. Nothing was sent: --dry_run=true.")


def run_on_dataflow(pipeline: beam.Pipeline) -> PipelineResult:
    """Returns when the job has succeeded. Raises what it fails with; a job that nobody awaits any more is cancelled."""
    result = pipeline.run()
    tell(f"Dataflow runs the job {result.job_id()}: see its console.")
    try:
        result.wait_until_finish()
    except BaseException:
        with contextlib.suppress(Exception):
            result.cancel()
        raise
    return result


def leave_on_dataflow(pipeline: beam.Pipeline, output: str) -> None:
    """Prints the id of the job, which goes on. Of a template no job runs yet."""
    result = pipeline.run()
    tell(
        f"The job runs on without this command. When it is done, the report is there: {output}. If it is not, too many"
        " rows could not be read (--max-bad-fraction)."
    )
    print(result.job_id())
