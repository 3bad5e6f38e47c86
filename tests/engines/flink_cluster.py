"""The cluster of two processes that tests kill."""

from __future__ import annotations

import time

from dp_transforms.engines import flink_cluster
from dp_transforms.engines.engine_process import EngineError


class FlinkCluster(flink_cluster.FlinkCluster):
    """Its task manager can be killed; `start_task_manager` starts another one."""

    def kill_task_manager(self) -> None:
        """SIGKILL: its tasks and their state are gone at once."""
        if self._task_manager is None:
            raise EngineError("no task manager runs. Start it first.")
        self._task_manager.kill()
        self._task_manager = None

    def wait_until_missed(self, timeout_seconds: float = 60.0) -> None:
        """Returns when the job manager has noticed that no task manager is left."""
        deadline = time.monotonic() + timeout_seconds
        while self.rest.task_managers() > 0:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the job manager did not notice in {timeout_seconds:g} s that its task manager is gone."
                )
            time.sleep(0.2)
