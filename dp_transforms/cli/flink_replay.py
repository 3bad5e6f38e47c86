"""A replay on Flink: its job is watched to its end, or left running.

A job may be repeated in part or as a whole. That changes nothing: each answer is a function of the key, the run id and
the log, and files appear under their names once.
"""

from __future__ import annotations

import time

import apache_beam as beam
from apache_beam.runners.runner import PipelineResult

from dp_transforms.cli.flink_progress import FlinkProgress, ReplayWatch
from dp_transforms.cli.flink_start import FlinkStart
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.replay_engine import ClusterReplay
from dp_transforms.cli.stream_job import StreamJob
from dp_transforms.cli.stream_ports import check_ports
from dp_transforms.engines.flink_rest import FlinkRest

_SECONDS_TO_CANCEL = 10.0
_SECONDS_BETWEEN_LOOKS = 2.0


def run_on_flink(pipeline: beam.Pipeline, watch: ReplayWatch, engine: ClusterReplay) -> PipelineResult:
    """Returns when the job has succeeded. Raises what it fails with, also what every restart of it would fail with."""
    job = StreamJob(pipeline)
    try:
        with FlinkProgress() as progress:
            while not job.is_over:
                if not engine.choice.allow_open_ports:
                    check_ports(engine.choice.name, allow=False)
                progress.show(watch.look())
                _wait(job, _SECONDS_BETWEEN_LOOKS)
        job.raise_error()
    except BaseException:
        watch.cancel(_SECONDS_TO_CANCEL)
        raise
    assert job.result is not None
    return job.result


def _wait(job: StreamJob, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not job.is_over and time.monotonic() < deadline:
        time.sleep(0.05)


def leave_on_flink(pipeline: beam.Pipeline, flink: FlinkRest, name: str, output: str) -> None:
    """Returns when Flink runs the job. Raises UserError."""
    start = FlinkStart(flink, name)
    job_id = start.wait_until_running(pipeline.run())
    tell(
        f"The job runs on without this command: see it at http://{flink.address}/#/job/{job_id}. When it is FINISHED,"
        f" the report is there: {output}. If it is not, too many rows could not be read (--max-bad-fraction)."
    )
    print(job_id)
