"""Starts the engine of a run, and writes its address into Beam's options."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms.cli.engine_choice import EngineChoice
from dp_transforms.cli.stream_options import DATAFLOW, FLINK, IN_PROCESS, PRISM
from dp_transforms.cli.stream_ports import check_ports
from dp_transforms.engines import dataflow, flink, job_service, prism
from dp_transforms.engines.addresses import LOCAL
from dp_transforms.engines.engine_process import EngineError
from dp_transforms.engines.flink_rest import FlinkRest
from dp_transforms.engines.local import LOCAL_RUNNER
from dp_transforms.engines.on_loopback import listen_on_loopback
from dp_transforms.engines.portable import WATCH_FOREVER
from dp_transforms.errors import UserError

# Beam would stage a list of the packages of this machine, and a worker that starts later would need the job server.
_STAGE_NOTHING = "--experiments=disable_logging_submission_environment"


class StartedEngine(NamedTuple):
    """options: Beam's, with the engine's address. flink: the Flink that the job runs on; None for other engines."""

    options: PipelineOptions
    flink: FlinkRest | None


@contextlib.contextmanager
def started_engine(choice: EngineChoice, beam_words: Sequence[str], job_name: str) -> Iterator[StartedEngine]:
    """While the block runs, the engine is there: one of this machine is started, and stopped at the end.

    beam_words: further options of Beam. Raises UserError, also if other machines can reach the engine.
    """
    listen_on_loopback()
    with contextlib.ExitStack() as stack:
        try:
            words, flink_rest = _start(choice, stack, job_name)
        except EngineError as error:
            what = f"--engine {choice.name}: {' '.join(str(error).split())}"
            if choice.name == PRISM:
                what += f" To read what is there now, once, give --engine {IN_PROCESS}."
            raise UserError(what) from None
        check_ports(choice.name, allow=choice.allow_open_ports)
        if choice.name not in (DATAFLOW, IN_PROCESS):
            words.append(WATCH_FOREVER)
        options = PipelineOptions([*words, *beam_words])
        if choice.name == DATAFLOW:
            try:
                dataflow.check_options(options, is_batch=choice.is_batch)
            except ValueError as error:
                raise UserError(f"{error} Give them after --.") from None
        yield StartedEngine(options, flink_rest)


def _start(choice: EngineChoice, stack: contextlib.ExitStack, job_name: str) -> tuple[list[str], FlinkRest | None]:
    if choice.name == FLINK:
        server = stack.enter_context(flink.JobServer(choice.flink_master))
        workers = choice.worker_pool
        if workers is None and choice.flink_master == LOCAL:
            workers = stack.enter_context(flink.WorkerPool()).address
        words = flink.options(
            server.endpoint,
            checkpointing_interval_seconds=choice.checkpoint_seconds,
            checkpoint_dir=choice.checkpoint_dir,
            parallelism=choice.parallelism,
            environment="EXTERNAL",
            worker_address=workers,
            savepoint=choice.resume_from,
            streaming=not choice.is_batch,
            job_name=job_name,
        )
        return [*words, _STAGE_NOTHING], server.rest
    if choice.name == DATAFLOW:
        return dataflow.options(job_name=job_name, is_batch=choice.is_batch), None
    if choice.name == IN_PROCESS:
        return [f"--runner={LOCAL_RUNNER}"], None
    if choice.name == PRISM:
        engine = stack.enter_context(prism.Prism(allow_open_ports=choice.allow_open_ports))
        return prism.options(engine.endpoint, job_name=job_name), None
    return job_service.options(stack.enter_context(job_service.JobService()).endpoint, job_name=job_name), None
