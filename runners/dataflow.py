"""Google Cloud Dataflow: checks what a job needs before it is sent, where an error costs nothing.

Without the service only the construction can be tried: `build_job` makes the job that would be sent, and sends nothing.
"""

from __future__ import annotations

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
)
from apache_beam.portability.api import beam_runner_api_pb2

RUNNER = "DataflowRunner"
MAX_JOB_BYTES = 20_000_000
"""The service refuses larger jobs."""


def options(*, job_name: str) -> list[str]:
    """Beam flags for a streaming job. Python jobs run on the Streaming Engine, which keeps state and timers.

    `check_options` names the flags that only the operator can give. ``--sdk_location=container``: the image has Beam's
    worker and this package with its dependencies, so that a worker installs nothing when it starts (docs/deploy.md).
    """
    return [f"--runner={RUNNER}", "--streaming", "--sdk_location=container", f"--job_name={job_name}"]


def check_options(options: PipelineOptions) -> None:
    """Raises ValueError for options that a streaming job cannot run with; it names all that are missing or wrong."""
    cloud = options.view_as(GoogleCloudOptions)
    worker, setup = options.view_as(WorkerOptions), options.view_as(SetupOptions)
    standard = options.view_as(StandardOptions)
    wrong = []
    if standard.runner != RUNNER:
        wrong.append(f"--runner={RUNNER} (got {standard.runner})")
    if not cloud.project:
        wrong.append("--project=PROJECT")
    if not cloud.region:
        wrong.append("--region=REGION")
    if not (cloud.temp_location or "").startswith("gs://"):
        wrong.append(f"--temp_location=gs://BUCKET/FOLDER (got {cloud.temp_location})")
    if not standard.streaming:
        wrong.append("--streaming")
    if not (worker.sdk_container_image or setup.setup_file or setup.extra_packages):
        wrong.append("--sdk_container_image=IMAGE (workers need this package; docs/deploy.md)")
    if (setup.pickle_library or "").startswith("dill"):
        # Beam's default, cloudpickle, sends no variables; "dill" with --save_main_session sends all of them.
        wrong.append(f"no --pickle_library={setup.pickle_library} (it can send this session's variables)")
    if wrong:
        raise ValueError(f"a streaming job on Dataflow needs {', '.join(wrong)}.")


def build_job(pipeline: beam.Pipeline) -> beam_runner_api_pb2.Pipeline:
    """The job that Dataflow would get for a pipeline made with ``--dry_run=true``; nothing is sent.

    Raises ValueError for other options, and for a job that is too large for the service.
    """
    check_options(pipeline.options)
    if not pipeline.options.view_as(TestOptions).dry_run:
        raise ValueError("build_job needs --dry_run=true, or it would start the job.")
    pipeline.run()
    job = pipeline.runner.proto_pipeline
    assert isinstance(job, beam_runner_api_pb2.Pipeline)
    if job.ByteSize() > MAX_JOB_BYTES:
        raise ValueError(f"the job has {job.ByteSize()} bytes, and Dataflow takes {MAX_JOB_BYTES}. Use fewer shards.")
    return job
