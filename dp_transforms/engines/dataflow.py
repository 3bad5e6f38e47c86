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


_RAM_OF_A_REPLAY = "8GB"
_DISK_OF_A_REPLAY_GB = 50  # the service shuffles: a worker keeps nothing but its image and what it writes


def options(*, job_name: str, is_batch: bool = False) -> list[str]:
    """Beam flags for a job. Streaming jobs of Python run on the Streaming Engine, which keeps state and timers.

    is_batch: the input ends, as that of a replay. Its workers get memory for parts of a million events, and a
    small disk; the operator's own flags win.

    `check_options` names the flags that only the operator can give. ``--sdk_location=container``: the image has Beam's
    worker and this package with its dependencies, so that a worker installs nothing when it starts (docs/deploy.md).
    """
    words = [f"--runner={RUNNER}", "--sdk_location=container", f"--job_name={job_name}"]
    if is_batch:
        return [*words, f"--resource_hint=min_ram={_RAM_OF_A_REPLAY}", f"--disk_size_gb={_DISK_OF_A_REPLAY_GB}"]
    return [*words, "--streaming"]


def check_options(options: PipelineOptions, *, is_batch: bool = False) -> None:
    """Raises ValueError for options that a job cannot run with; it names all that are missing or wrong."""
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
    if bool(standard.streaming) == is_batch:
        wrong.append("no --streaming" if is_batch else "--streaming")
    if not (worker.sdk_container_image or setup.setup_file or setup.extra_packages):
        wrong.append("--sdk_container_image=IMAGE (workers need this package; docs/deploy.md)")
    if (setup.pickle_library or "").startswith("dill"):
        # Beam's default, cloudpickle, sends no variables; "dill" with --save_main_session sends all of them.
        wrong.append(f"no --pickle_library={setup.pickle_library} (it can send this session's variables)")
    if wrong:
        raise ValueError(f"a {'batch' if is_batch else 'streaming'} job on Dataflow needs {', '.join(wrong)}.")


def build_job(pipeline: beam.Pipeline, *, is_batch: bool = False) -> beam_runner_api_pb2.Pipeline:
    """The job that Dataflow would get for a pipeline made with ``--dry_run=true``; nothing is sent.

    Raises ValueError for other options, and for a job that is too large for the service.
    """
    check_options(pipeline.options, is_batch=is_batch)
    if not pipeline.options.view_as(TestOptions).dry_run:
        raise ValueError("build_job needs --dry_run=true, or it would start the job.")
    pipeline.run()
    job = pipeline.runner.proto_pipeline
    assert isinstance(job, beam_runner_api_pb2.Pipeline)
    if job.ByteSize() > MAX_JOB_BYTES:
        raise ValueError(f"the job has {job.ByteSize()} bytes, and Dataflow takes {MAX_JOB_BYTES}. Use fewer shards.")
    return job
