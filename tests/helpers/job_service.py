"""Beam's own job service: the local runner in a process of its own, with the interface of the real engines.

It cannot run loops of timers (docs/engines.md): use driver "loop" of `MonitorStream`.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile

from examples.engines.engine_process import Engine

_START_SECONDS = 120.0


class JobService(Engine):
    """Takes Beam jobs at `endpoint` and runs them; all its ports are of the loopback address.

    Raises EngineError if it does not start.
    """

    def __init__(self, *, log_path: str | os.PathLike[str] | None = None) -> None:
        self.log_path = pathlib.Path(os.devnull if log_path is None else log_path)
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="shh-job-service-"))
        port_file = self._folder / "port"
        command = [sys.executable, "-m", "dp_transforms.beam.on_loopback"]
        command += ["apache_beam.runners.portability.local_job_service_main", "--port=0"]
        command += [f"--port_file={port_file}", f"--staging_dir={self._folder / 'staging'}"]
        self._start(command, self.log_path, port_file.exists, _START_SECONDS)
        self.endpoint = f"localhost:{int(port_file.read_text())}"

    def stop(self) -> None:
        """Ends the service and its jobs."""
        super().stop()
        shutil.rmtree(self._folder, ignore_errors=True)
