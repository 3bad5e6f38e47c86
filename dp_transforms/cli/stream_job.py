"""The job of a run: a pipeline in a thread, its name on the engine, and how it is cancelled there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from typing import Protocol

import apache_beam as beam
from apache_beam.runners.runner import PipelineResult

from dp_transforms.beam.set_up_workers import operator_counts, operator_gauges
from dp_transforms.cli.stream_options import FLINK
from dp_transforms.cli.stream_request import StreamRequest
from dp_transforms.cli.stream_status import StreamStatus
from dp_transforms.engines.engine_process import EngineError
from dp_transforms.engines.flink_rest import ENDED, FlinkRest

_SECONDS_TO_CANCEL = 30.0


class NamedRun(Protocol):
    """A run by the names that tell it from all others."""

    @property
    def stream(self) -> str: ...

    @property
    def run_id(self) -> str: ...


def job_name(request: NamedRun) -> str:
    """What the engine shows, within the rules of Dataflow. Each run has its own: a run cancels the job of its name."""
    name = re.sub(r"[^a-z0-9]+", "-", f"shh-{request.stream}-{request.run_id}".lower())
    digest = hashlib.sha256(json.dumps([request.stream, request.run_id]).encode()).hexdigest()
    return f"{name[:50].rstrip('-')}-{digest[:12]}"


class StreamJob:
    """A pipeline that runs in a thread of its own: some engines return a result only when the job is done."""

    def __init__(self, pipeline: beam.Pipeline) -> None:
        self._pipeline = pipeline
        self._result: PipelineResult | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def result(self) -> PipelineResult | None:
        """What the engine returned; None before."""
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._pipeline.run()
            self._result.wait_until_finish()
        except BaseException as error:
            self._error = error

    def raise_error(self) -> None:
        """Raises what the pipeline failed with, if it did."""
        if self._error is not None:
            raise self._error

    def metrics(self) -> tuple[dict[str, int], dict[str, int]] | None:
        """Counters and gauges; None while the engine has none."""
        if self._result is None:
            return None
        if hasattr(self._result, "_metrics"):
            self._result._metrics = None  # else Beam would return its first answer again
        try:
            counts, gauges = operator_counts(self._result), operator_gauges(self._result)
        except Exception:  # of any engine's client; numbers for the operator must not end a run
            return None
        return (counts, gauges) if counts or gauges else None

    def cancel(self) -> None:
        """Returns when it is over, or after half a minute."""
        if self._result is not None and not self.is_over:
            with contextlib.suppress(Exception):  # it may end at this moment
                self._result.cancel()
        self._thread.join(_SECONDS_TO_CANCEL)


def cancel_on_cluster(request: StreamRequest, status: StreamStatus) -> None:
    """Ends the job on a Flink cluster: a job server that is cancelled leaves it there."""
    if request.engine.name != FLINK or request.engine.is_local:
        return
    cluster = FlinkRest(request.engine.flink_master)
    try:
        for job in cluster.jobs():
            if job.name == job_name(request) and job.state not in ENDED:
                cluster.cancel(job.job_id)
                cluster.wait_for_state(job.job_id, ENDED, _SECONDS_TO_CANCEL)
    except EngineError:
        status.tell(f"The job {job_name(request)} may still be there: cancel it at http://{cluster.address}.")
