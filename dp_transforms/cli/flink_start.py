"""A job that is left on a Flink cluster: waits until Flink itself runs it."""

from __future__ import annotations

import time

from apache_beam.runners.runner import PipelineResult, PipelineState

from dp_transforms.engines.engine_process import EngineError
from dp_transforms.engines.flink_rest import FlinkRest
from dp_transforms.errors import UserError

_SECONDS_TO_START = 300.0
_SECONDS_BETWEEN_LOOKS = 0.5
_TAKEN = ("RUNNING", "FINISHED")  # a small replay may be done before anybody looks


class FlinkStart:
    """Made before a job is submitted: an earlier job of its name, which Flink still remembers, is not taken for it.

    Raises UserError where Flink does not answer, as `wait_until_running` does.
    """

    def __init__(self, flink: FlinkRest, job_name: str) -> None:
        self._flink = flink
        self._name = job_name
        try:
            self._earlier = {job.job_id for job in flink.jobs()}
        except EngineError as error:
            raise UserError(f"{_one_line(error)} Nothing was started.") from None

    def wait_until_running(self, result: PipelineResult) -> str:
        """The id of the job. Beam says RUNNING before Flink has it, and the job server must stay until Flink has it.

        Raises UserError if the job ends or takes minutes before that.
        """
        deadline = time.monotonic() + _SECONDS_TO_START
        while (job_id := self._taken()) is None:
            if PipelineState.is_terminal(state := result.state) or time.monotonic() > deadline:
                raise UserError(f"the job is {state}, and Flink does not run it. See the log of the Flink cluster.")
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return job_id

    def _taken(self) -> str | None:
        try:
            job = self._flink.newest(self._name)
        except EngineError as error:
            raise UserError(_one_line(error)) from None
        is_taken = job is not None and job.job_id not in self._earlier and job.state in _TAKEN
        return job.job_id if job is not None and is_taken else None


def _one_line(error: EngineError) -> str:
    return " ".join(str(error).split())
