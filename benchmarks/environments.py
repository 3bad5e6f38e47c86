"""Python environments for peers whose libraries are not among those of this repository."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks import logs

PIPELINE_DP = "0.3.1"


def pipeline_dp(*packages: str) -> Path:
    """Of an environment with PipelineDP and these packages, in the versions that are installed here."""
    name = "_".join((f"pipeline_dp_{PIPELINE_DP}", *packages))
    return _python_with(name, [f"pipeline-dp=={PIPELINE_DP}", *(f"{each}=={version(each)}" for each in packages)])


def _python_with(name: str, requirements: list[str]) -> Path:
    """Made when it is first needed, and kept beside the logs."""
    folder = logs.data_folder() / name
    python, complete = folder / "bin" / "python", folder / "complete"
    wanted = "\n".join(requirements)
    if not complete.exists() or complete.read_text() != wanted:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, env=environment)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *requirements], check=True, env=environment)
        complete.write_text(wanted)
    return python
