"""A small client of Flink's REST interface: jobs, their states, checkpoints, savepoints and metrics."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import Any, NamedTuple

from examples.engines.engine_process import EngineError

ENDED = ("FINISHED", "CANCELED", "FAILED", "SUSPENDED")
_POLL_SECONDS = 0.2
_ERROR_CHARACTERS = 300
_METRICS_AT_ONCE = 20  # their names are part of a URL


class FlinkJob(NamedTuple):
    """`state` as Flink names it: CREATED, RUNNING, RESTARTING, FINISHED, CANCELED, FAILED and others."""

    job_id: str
    name: str
    state: str


class FlinkStage(NamedTuple):
    """A stage of a job, which Flink calls a vertex. `state`: CREATED, RUNNING, FINISHED and others."""

    stage_id: str
    name: str
    state: str


class FlinkRest:
    """Asks the Flink cluster at `address` ("host:port"). Methods raise EngineError if it refuses or does not answer."""

    def __init__(self, address: str, timeout_seconds: float = 10.0) -> None:
        self.address = address
        self._timeout_seconds = timeout_seconds

    def is_up(self) -> bool:
        """Whether the cluster answers."""
        try:
            self.get("/overview")
        except EngineError:
            return False
        return True

    def task_managers(self) -> int:
        """How many task managers are alive, as far as the job manager knows."""
        return int(self.get("/overview")["taskmanagers"])

    def jobs(self) -> list[FlinkJob]:
        """All jobs that the cluster remembers, the newest first."""
        found = sorted(self.get("/jobs/overview")["jobs"], key=lambda job: -int(job["start-time"]))
        return [FlinkJob(job["jid"], job["name"], job["state"]) for job in found]

    def newest(self, name: str) -> FlinkJob | None:
        """The newest job of exactly this name; None if there is none."""
        return next((job for job in self.jobs() if job.name == name), None)

    def job_state(self, job_id: str) -> str:
        """RUNNING and so on."""
        return str(self.get(f"/jobs/{job_id}")["state"])

    def wait_for_state(self, job_id: str, states: Iterable[str], timeout_seconds: float = 120.0) -> str:
        """Waits for one of `states`, and returns it. Raises EngineError if the job ends otherwise or takes longer."""
        wanted = tuple(states)
        deadline = time.monotonic() + timeout_seconds
        while (state := self.job_state(job_id)) not in wanted:
            if state in ENDED or time.monotonic() > deadline:
                raise EngineError(f"the Flink job {job_id} is {state}, wanted {' or '.join(wanted)}.")
            time.sleep(_POLL_SECONDS)
        return state

    def failures(self, job_id: str) -> list[str]:
        """All that Flink remembers of each failure of the job, the newest first. May contain cells of the data."""
        entries = self.get(f"/jobs/{job_id}/exceptions")["exceptionHistory"]["entries"]
        return [str(entry["stacktrace"]) for entry in entries]

    def cancel(self, job_id: str) -> None:
        """Cancels the job without a savepoint and returns at once; `wait_for_state` waits for its end."""
        self._ask("PATCH", f"/jobs/{job_id}?mode=cancel")

    def checkpoints(self, job_id: str) -> Any:
        """Flink's own answer: "counts", "summary", "latest", "history"."""
        return self.get(f"/jobs/{job_id}/checkpoints")

    def completed_checkpoints(self, job_id: str) -> int:
        """How many checkpoints the job completed since it was submitted."""
        return int(self.checkpoints(job_id)["counts"]["completed"])

    def restarts(self, job_id: str) -> int:
        """How often Flink has restarted the job, by restored checkpoints: its metric numRestarts can stand still."""
        return int(self.checkpoints(job_id)["counts"]["restored"])

    def vertex_metrics(self, job_id: str, vertex_id: str, names: Iterable[str] = ()) -> dict[str, str]:
        """Metric -> value for "<subtask>.<name>"; without `names`, the names that exist, each with value ""."""
        wanted = ",".join(names)
        path = f"/jobs/{job_id}/vertices/{vertex_id}/metrics"
        found = self.get(f"{path}?get={urllib.parse.quote(wanted)}" if wanted else path)
        return {metric["id"]: str(metric.get("value", "")) for metric in found}

    def stages(self, job_id: str) -> list[FlinkStage]:
        """All stages of the job, in the order of the job's graph."""
        found = self.get(f"/jobs/{job_id}")["vertices"]
        return [FlinkStage(str(each["id"]), str(each["name"]), str(each["status"])) for each in found]

    def beam_metrics(self, job_id: str, namespace: str) -> dict[str, list[int]]:
        """Beam's counters and gauges of a namespace, as they are now, without those that were never set: by name the
        values of all parts of the job. They begin anew when Flink restarts the job."""
        values: dict[str, list[int]] = {}
        for vertex in [stage.stage_id for stage in self.stages(job_id)]:
            short = {
                name: found
                for name in self.vertex_metrics(job_id, vertex)
                if (found := beam_metric_name(name, namespace)) is not None
            }
            wanted = list(short)
            for start in range(0, len(wanted), _METRICS_AT_ONCE):
                found_now = self.vertex_metrics(job_id, vertex, wanted[start : start + _METRICS_AT_ONCE])
                for name, value in found_now.items():
                    values.setdefault(short[name], []).append(int(float(value)))
        return values

    def get(self, path: str) -> Any:
        """The JSON answer to GET `path`."""
        return self._ask("GET", path)

    def _ask(self, method: str, path: str) -> Any:
        request = urllib.request.Request(f"http://{self.address}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_seconds) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:_ERROR_CHARACTERS]
            raise EngineError(f"Flink at {self.address} refused {method} {path}: {error.code} {said}") from None
        except OSError as error:
            raise EngineError(f"Flink at {self.address} does not answer: {error}. Is the cluster up?") from None
        return json.loads(text) if text else {}


def beam_metric_name(name: str, namespace: str) -> str | None:
    """Beam's name of a metric that Flink names "<subtask>.<operator>.<namespace>_<name>"; None for any other metric."""
    spelled = re.sub(r"\W", "_", namespace)  # as Flink does, since a dot ends a part of its names
    _, found, short = name.rpartition(f".{spelled}_")
    return short if found and short else None
