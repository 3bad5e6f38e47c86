"""A job that is submitted by Beam's own runners, ``--runner=...``: what each of them needs besides.

`shh` starts engines by itself and sends its jobs to their job services. Whoever submits pipelines/*.py names a runner
and gives the runner's own options. What the options of a runner must be is put before them, so that theirs win.
"""

from __future__ import annotations

from collections.abc import Sequence

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
)

from dp_transforms.engines import dataflow, flink, prism
from dp_transforms.engines.addresses import LOCAL
from dp_transforms.engines.local import is_local, pipeline_options
from dp_transforms.engines.portable import WATCH_FOREVER

FLINK, PRISM = "FlinkRunner", "PrismRunner"
_MAGIC_MASTERS = (LOCAL, "[auto]")  # Beam's default is the second; its job server takes both for a Flink inside


def submitted_options(words: Sequence[str], *, job_name: str, streaming: bool) -> PipelineOptions:
    """Beam's options of a job. words: those of the command line that are Beam's.

    Servers that Beam starts in this process listen on the loopback address alone from now on, and so do a Flink or a
    Prism that it starts on this machine. Raises ValueError and EngineError for what is missing.
    """
    given = PipelineOptions(list(words))
    if given.view_as(GoogleCloudOptions).template_location:
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
    elif runner == dataflow.RUNNER:
        needed = dataflow.options(job_name=job_name, is_batch=not streaming)
    if runner in (FLINK, PRISM):
        needed.append(WATCH_FOREVER)
    options = pipeline_options([*needed, *words])
    if runner == dataflow.RUNNER:
        dataflow.check_options(options, is_batch=not streaming)
    options.view_as(SetupOptions).save_main_session = False  # all code of workers is in the package
    return options


def can_loop(options: PipelineOptions) -> bool:
    """Whether the runner runs loops of timers, on and on; else a partition must be read in one call."""
    return not is_local(options)


def recovers(options: PipelineOptions) -> bool:
    """Whether a worker that died is replaced by one that continues its work from what the runner has stored."""
    return not is_local(options) and options.view_as(StandardOptions).runner != PRISM
