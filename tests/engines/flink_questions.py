"""What tests ask a Flink, or do to it, beside what commands do (`dp_transforms.engines.flink_rest`)."""

from __future__ import annotations

import time

from dp_transforms.engines.engine_process import EngineError
from dp_transforms.engines.flink_rest import FlinkJob, FlinkRest

_POLL_SECONDS = 0.2
_ERROR_CHARACTERS = 300


def wait_for_job(rest: FlinkRest, name: str, timeout_seconds: float = 120.0) -> FlinkJob:
    """The newest job whose name holds `name` (of ``--job_name``), as soon as Flink knows it.

    Beam's `Pipeline.run` returns earlier than that. Raises EngineError after the timeout.
    """
    deadline = time.monotonic() + timeout_seconds
    while (job := next((job for job in rest.jobs() if name in job.name), None)) is None:
        if time.monotonic() > deadline:
            raise EngineError(f"Flink has no job named {name} after {timeout_seconds:g} s.")
        time.sleep(_POLL_SECONDS)
    return job


def stop_with_savepoint(rest: FlinkRest, job_id: str, folder: str, timeout_seconds: float = 120.0) -> str:
    """Ends the job with a savepoint in `folder` and returns its path, for `savepoint=` of a later run.

    Flink does not advance watermarks here: a drain by Flink would look like the end of the stream.
    """
    body = {"targetDirectory": folder, "drain": False}
    trigger = rest._ask("POST", f"/jobs/{job_id}/stop", body)["request-id"]
    deadline = time.monotonic() + timeout_seconds
    while True:
        answer = rest.get(f"/jobs/{job_id}/savepoints/{trigger}")
        if answer["status"]["id"] == "COMPLETED":
            operation = answer["operation"]
            if "location" in operation:
                return str(operation["location"])
            cause = str(operation.get("failure-cause", {}).get("stack-trace", "no cause given"))
            raise EngineError(f"Flink took no savepoint: {cause[:_ERROR_CHARACTERS]}")
        if time.monotonic() > deadline:
            raise EngineError(f"Flink took no savepoint in {timeout_seconds:g} s.")
        time.sleep(_POLL_SECONDS)


def latest_checkpoint(rest: FlinkRest, job_id: str) -> str | None:
    """The path of the newest complete checkpoint, for `savepoint=` of a later run; None before the first."""
    latest = rest.checkpoints(job_id)["latest"]["completed"]
    return None if latest is None else str(latest["external_path"])


def wait_for_checkpoints(rest: FlinkRest, job_id: str, more: int = 1, timeout_seconds: float = 120.0) -> int:
    """Waits until `more` further checkpoints are complete; returns the number of all."""
    wanted = rest.completed_checkpoints(job_id) + more
    deadline = time.monotonic() + timeout_seconds
    while (count := rest.completed_checkpoints(job_id)) < wanted:
        if time.monotonic() > deadline:
            raise EngineError(f"the Flink job {job_id} completed no {more} checkpoints in {timeout_seconds:g} s.")
        time.sleep(_POLL_SECONDS)
    return count
