"""A job that is submitted by Beam's own runners, ``--runner=...``: what each of them needs besides.

`shh` starts engines by itself and sends its jobs to their job services. Whoever submits pipelines/*.py names a runner
and gives the runner's own options. What the options of a runner must be is put before them, so that theirs win.

Of Dataflow only the construction of jobs was tried (``--dry_run=true``). So what a job needs there is checked before it
is sent, where an error costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
)

from dp_transforms.engines import flink, prism
from dp_transforms.engines.engine_process import LOCAL
from dp_transforms.engines.portable import WATCH_FOREVER, is_local, pipeline_options

FLINK, PRISM, DATAFLOW = "FlinkRunner", "PrismRunner", "DataflowRunner"
_MAGIC_MASTERS = (LOCAL, "[auto]")  # Beam's default is the second; its job server takes both for a Flink inside
_RAM_OF_A_REPLAY = "8GB"  # for parts of a million events
_DISK_OF_A_REPLAY_GB = 50  # the service shuffles: a worker keeps nothing but its image and what it writes
_LAUNCHED = "FLEX_TEMPLATE_PYTHON_PY_FILE"  # names the program to the launcher of flex templates (runners/dataflow)


def submitted_options(words: Sequence[str], *, job_name: str, streaming: bool) -> PipelineOptions:
    """Beam's options of a job. words: those of the command line that are Beam's.

    Servers that Beam starts in this process listen on the loopback address alone from now on, and so do a Flink or a
    Prism that it starts on this machine. Raises ValueError and EngineError for what is missing.
    """
    given = PipelineOptions(list(words))
    if given.view_as(GoogleCloudOptions).template_location and _LAUNCHED not in os.environ:
        raise ValueError(
            "--template_location makes a job that may start twice, with one run id and so with the same noise. Use a"
            " flex template, which builds a job for each run (runners/dataflow)."
        )
    runner = given.view_as(StandardOptions).runner
    needed: list[str] = []
    if runner == FLINK:
        master = given.view_as(FlinkRunnerOptions).flink_master
        needed = flink.options(None, streaming=streaming, parallelism=1, job_name=job_name)
        needed += flink.job_server_options(LOCAL if master in _MAGIC_MASTERS else master)
    elif runner == PRISM:
        needed = prism.options(None, streaming=streaming, job_name=job_name)
    elif runner == DATAFLOW:
        needed = dataflow_options(job_name=job_name, streaming=streaming)
    if runner in (FLINK, PRISM):
        needed.append(WATCH_FOREVER)
    options = pipeline_options([*needed, *words])
    if runner == DATAFLOW:
        check_dataflow(options, streaming=streaming)
    options.view_as(SetupOptions).save_main_session = False  # all code of workers is in the package
    return options


def dataflow_options(*, job_name: str, streaming: bool) -> list[str]:
    """Beam flags for a job. Streaming jobs of Python run on the Streaming Engine, which keeps state and timers.

    `check_dataflow` names the flags that only the operator can give. ``--sdk_location=container``: the image has Beam's
    worker and this package with its dependencies, so that a worker installs nothing when it starts.
    """
    words = [f"--runner={DATAFLOW}", "--sdk_location=container", f"--job_name={job_name}"]
    if streaming:
        return [*words, "--streaming"]
    return [*words, f"--resource_hint=min_ram={_RAM_OF_A_REPLAY}", f"--disk_size_gb={_DISK_OF_A_REPLAY_GB}"]


def check_dataflow(options: PipelineOptions, *, streaming: bool) -> None:
    """Raises ValueError for options that a job cannot run with; it names all that are missing or wrong."""
    cloud, standard = options.view_as(GoogleCloudOptions), options.view_as(StandardOptions)
    worker, setup = options.view_as(WorkerOptions), options.view_as(SetupOptions)
    wrong = []
    if not cloud.project:
        wrong.append("--project=PROJECT")
    if not cloud.region:
        wrong.append("--region=REGION")
    if not (cloud.temp_location or "").startswith("gs://"):
        wrong.append(f"--temp_location=gs://BUCKET/FOLDER (got {cloud.temp_location})")
    if bool(standard.streaming) != streaming:
        wrong.append("--streaming" if streaming else "no --streaming")
    if not (worker.sdk_container_image or setup.setup_file or setup.extra_packages):
        wrong.append("--sdk_container_image=IMAGE (workers need this package; runners/dataflow)")
    if (setup.pickle_library or "").startswith("dill"):
        # Beam's default, cloudpickle, sends no variables; "dill" with --save_main_session sends all of them.
        wrong.append(f"no --pickle_library={setup.pickle_library} (it can send this session's variables)")
    if wrong:
        raise ValueError(f"a {'streaming' if streaming else 'batch'} job on Dataflow needs {', '.join(wrong)}.")


def is_sent(options: PipelineOptions) -> bool:
    """Whether a job runs once its pipeline was run: not of a dry run, and of a flex template its launcher sends it."""
    return not (options.view_as(TestOptions).dry_run or options.view_as(GoogleCloudOptions).template_location)


def can_loop(options: PipelineOptions) -> bool:
    """Whether the runner runs loops of timers, on and on; else a partition must be read in one call."""
    return not is_local(options)


def recovers(options: PipelineOptions) -> bool:
    """Whether a worker that died is replaced by one that continues its work from what the runner has stored."""
    return not is_local(options) and options.view_as(StandardOptions).runner != PRISM
