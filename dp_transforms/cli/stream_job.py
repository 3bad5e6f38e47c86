"""The job of a run: starts its engine, and runs its pipeline in a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult

from dp_transforms.beam.on_loopback import listen_on_loopback
from dp_transforms.beam.set_up_workers import operator_values
from dp_transforms.cli.engine_choice import FLINK, IN_PROCESS, PRISM, EngineChoice, check_ports
from dp_transforms.cli.flink_jobs import JobNumbers
from dp_transforms.engines import flink, prism
from dp_transforms.engines.engine_process import LOCAL, EngineError
from dp_transforms.engines.flink_rest import FlinkRest
from dp_transforms.engines.portable import LOCAL_RUNNER, WATCH_FOREVER, KnownOptions
from dp_transforms.errors import UserError
from dp_transforms.monitor.operator_counts import counts_and_gauges

_SECONDS_TO_CANCEL = 30.0
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
        if choice.name != IN_PROCESS:
            words.append(WATCH_FOREVER)
        yield StartedEngine(KnownOptions([*words, *beam_words]), flink_rest)


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
        if not choice.is_batch:
            words.append(f"--sdk_worker_parallelism={_worker_processes(choice, server.rest)}")
        return [*words, _STAGE_NOTHING], server.rest
    if choice.name == IN_PROCESS:
        return [f"--runner={LOCAL_RUNNER}"], None
    engine = stack.enter_context(prism.Prism(allow_open_ports=choice.allow_open_ports))
    return prism.options(engine.endpoint, job_name=job_name), None


def _worker_processes(choice: EngineChoice, cluster: FlinkRest) -> int:
    """Beside each task manager: one for each of its slots that the job can have. Beam's default is one."""
    if choice.is_local:
        return choice.parallelism
    try:
        return max(1, min(choice.parallelism, cluster.slots_of_task_manager()))
    except EngineError:
        return 1  # who starts the job says that the cluster does not answer


class StreamJob:
    """A pipeline that runs in a thread of its own: some engines return a result only when the job is done.

    result: what the engine returned; None before.
    """

    def __init__(self, pipeline: beam.Pipeline) -> None:
        self._pipeline = pipeline
        self.result: PipelineResult | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.result = self._pipeline.run()
            self.result.wait_until_finish()
        except BaseException as error:
            self._error = error

    def raise_error(self) -> None:
        """Raises what the pipeline failed with, if it did."""
        if self._error is not None:
            raise self._error

    def numbers(self, now: float) -> JobNumbers:
        """As Beam has them. now: as in `FlinkWatch.numbers`."""
        if self.result is None:
            return JobNumbers({}, {})
        if hasattr(self.result, "_metrics"):
            self.result._metrics = None  # else Beam would return its first answer again
        try:
            return JobNumbers(*counts_and_gauges(operator_values(self.result)))
        except Exception:  # of any engine's client; numbers for the operator must not end a run
            return JobNumbers({}, {})

    def cancel(self) -> None:
        """Returns when it is over, or after half a minute."""
        if self.result is not None and not self.is_over:
            with contextlib.suppress(Exception):  # it may end at this moment
                self.result.cancel()
        self._thread.join(_SECONDS_TO_CANCEL)
