"""What tests ask a Flink, or do to it, beside what commands do (`examples.engines.flink_rest`)."""

from __future__ import annotations

import json
import time
import urllib.request

from examples.engines.engine_process import EngineError
from examples.engines.flink_rest import FlinkRest

_POLL_SECONDS = 0.2
_ERROR_CHARACTERS = 300


def stop_with_savepoint(rest: FlinkRest, job_id: str, folder: str) -> str:
    """Ends the job with a savepoint in `folder` and returns its path, for `savepoint=` of a later run.

    Flink does not advance watermarks here: a drain by Flink would look like the end of the stream.
    """
    body = json.dumps({"targetDirectory": folder, "drain": False}).encode()
    request = urllib.request.Request(
        f"http://{rest.address}/jobs/{job_id}/stop", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        trigger = json.load(answer)["request-id"]
    deadline = time.monotonic() + 120
    while True:
        answer = rest.get(f"/jobs/{job_id}/savepoints/{trigger}")
        if answer["status"]["id"] == "COMPLETED":
            operation = answer["operation"]
            if "location" in operation:
                return str(operation["location"])
            cause = str(operation.get("failure-cause", {}).get("stack-trace", "no cause given"))
            raise EngineError(f"Flink took no savepoint: {cause[:_ERROR_CHARACTERS]}")
        if time.monotonic() > deadline:
            raise EngineError("Flink took no savepoint in 120 s.")
        time.sleep(_POLL_SECONDS)


def wait_for_checkpoints(rest: FlinkRest, job_id: str) -> int:
    """Waits until another checkpoint is complete; returns the number of all."""
    wanted = rest.completed_checkpoints(job_id) + 1
    deadline = time.monotonic() + 120
    while (count := rest.completed_checkpoints(job_id)) < wanted:
        if time.monotonic() > deadline:
            raise EngineError(f"the Flink job {job_id} completed no checkpoint in 120 s.")
        time.sleep(_POLL_SECONDS)
    return count
