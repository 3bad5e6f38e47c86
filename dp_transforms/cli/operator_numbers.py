"""Numbers of the engine beside a live page, for the operator: exact, and not covered by the guarantee.

They come from Flink's REST interface. Other engines tell nothing to other processes.
"""

from __future__ import annotations

from typing import Any

from dp_transforms.cli.flink_watch import FlinkWatch
from dp_transforms.cli.stream_job import NamedRun, job_name
from dp_transforms.engines.engine_process import EngineError
from dp_transforms.engines.flink_rest import FlinkRest

_SECONDS_TO_ANSWER = 5.0
_CHECKPOINT_SECONDS = 10.0  # the default of --checkpoint-interval


class OperatorNumbers:
    """Asks one cluster about the job of a run."""

    def __init__(self, address: str) -> None:
        self._flink = FlinkRest(address, _SECONDS_TO_ANSWER)
        self._watch: tuple[str, FlinkWatch] | None = None

    def ask(self, run: NamedRun, now: float) -> dict[str, Any]:
        """rows: names and values, as text. warning: empty while all is well. Never raises for a cluster that is away.

        now: seconds of a clock that never goes back.
        """
        name = job_name(run)
        if self._watch is None or self._watch[0] != name:
            self._watch = name, FlinkWatch(self._flink, name, _CHECKPOINT_SECONDS)
        rows = [("Flink", self._flink.address)]
        try:
            managers = self._flink.task_managers()
            job = self._flink.newest(name)
            rows.append(("task managers", f"{managers:,}"))
            if job is None:
                return {"rows": rows, "warning": f"Flink has no job of this run: none is named {name}."}
            rows.append(("job", f"{job.job_id}: {job.state}"))
            rows.append(("completed checkpoints", f"{self._flink.completed_checkpoints(job.job_id):,}"))
        except (EngineError, LookupError, TypeError, ValueError):
            return {"rows": rows, "warning": f"Flink at {self._flink.address} does not answer."}
        counts, gauges = self._watch[1].metrics() or ({}, {})
        rows += [(each.replace("_", " "), f"{value:,}") for each, value in sorted({**counts, **gauges}.items())]
        return {"rows": rows, "warning": self._watch[1].stuck(now) or ""}
