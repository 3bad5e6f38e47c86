"""What `shh stream` asks Flink while its job runs: numbers for the operator, and whether checkpoints complete."""

from __future__ import annotations

from dp_transforms.beam.set_up_workers import NAMESPACE
from dp_transforms.engines.engine_process import EngineError
from dp_transforms.engines.flink_rest import ENDED, FlinkJob, FlinkRest
from dp_transforms.monitor.operator_counts import STREAM_GAUGES

_LEAST_PATIENCE_SECONDS = 60.0
_PATIENCE_CHECKPOINTS = 10


class FlinkWatch:
    """Watches the job of one name. A question to Flink must not end a run, so a missing answer is None.

    flink: the cluster. checkpoint_seconds: between two checkpoints of the job.
    """

    def __init__(self, flink: FlinkRest, job_name: str, checkpoint_seconds: float) -> None:
        self._flink = flink
        self._job_name = job_name
        self._patience_seconds = _LEAST_PATIENCE_SECONDS + _PATIENCE_CHECKPOINTS * checkpoint_seconds
        self._completed: tuple[str, int] | None = None  # by the job of this id
        self._completed_at = 0.0  # or when the warning came last
        self._changed_at: float | None = None

    def metrics(self) -> tuple[dict[str, int], dict[str, int]] | None:
        """Counters and gauges from Flink itself, as Beam's job server has them only at the end; None if it has none."""
        try:
            job = self._job()
            if job is None:
                return None
            counts, gauges = self._flink.beam_metrics(job.job_id, NAMESPACE, STREAM_GAUGES)
        except (EngineError, LookupError, TypeError, ValueError):
            return None
        return (counts, gauges) if counts or gauges else None

    def stuck(self, now: float) -> str | None:
        """A warning if no checkpoint has completed for a long time; None while all is well, or Flink does not answer.

        Flink waits forever for a worker that died before it was connected, and such a job seems to run.
        now: seconds of a clock that never goes back. The warning comes once per interval.
        """
        try:
            job = self._job()
            completed = None if job is None else (job.job_id, self._flink.completed_checkpoints(job.job_id))
        except (EngineError, LookupError, TypeError, ValueError):
            return None
        if job is None or completed != self._completed:
            self._completed, self._completed_at, self._changed_at = completed, now, None if job is None else now
            return None
        if now - self._completed_at < self._patience_seconds:
            return None
        self._completed_at = now
        return (
            f"Warning: Flink has completed no checkpoint for {self._patience_seconds:,.0f} s; its job is {job.state}."
            f" See http://{self._flink.address}/#/job/{job.job_id}. If this goes on, cancel the job and resume the"
            " run from its newest checkpoint (docs/deploy.md, what happens when something dies)."
        )

    def seconds_without_checkpoint(self, now: float) -> float | None:
        """How long ago `stuck` has seen another checkpoint completed, or the job begin; None while there is no job."""
        return None if self._changed_at is None else now - self._changed_at

    def _job(self) -> FlinkJob | None:
        job = self._flink.newest(self._job_name)
        return None if job is None or job.state in ENDED else job
