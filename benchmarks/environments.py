"""Python environments: shh as its users install it, and peers whose libraries this repository does not have."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import requires, version
from pathlib import Path

from benchmarks import logs

PIPELINE_DP = "0.3.1"
_DISTRIBUTION = "shifting-heavy-hitters"
_ROOT = Path(__file__).parents[1]


def pipeline_dp(*packages: str) -> Path:
    """Of an environment with PipelineDP and these packages, in the versions that are installed here."""
    name = "_".join((f"pipeline_dp_{PIPELINE_DP}", *packages))
    return _python_with(name, [f"pipeline-dp=={PIPELINE_DP}", *(f"{each}=={version(each)}" for each in packages)])


@functools.cache
def installed_shh() -> Path:
    """Of an environment with shh, as it is in this checkout, and what it needs, in the versions of this environment.

    Without extras: Beam imports the libraries of every store that it finds, which takes half a second.
    """
    needed = [re.split(r"[^\w-]", line)[0] for line in requires(_DISTRIBUTION) or () if "extra ==" not in line]
    python = _python_with("shh", [f"{each}=={version(each)}" for each in needed])
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as folder:  # a build leaves files beside the sources
        sources = shutil.copytree(
            _ROOT, Path(folder) / "sources", ignore=shutil.ignore_patterns(".*", "build", "mutants")
        )
        _install(python, "--no-deps", "--force-reinstall", str(sources))
    return python


def _python_with(name: str, requirements: list[str]) -> Path:
    """Made when it is first needed, and kept beside the logs."""
    folder = logs.data_folder() / name
    python, complete = folder / "bin" / "python", folder / "complete"
    wanted = "\n".join(requirements)
    if not complete.exists() or complete.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, env=_environment())
        _install(python, *requirements)
        complete.write_text(wanted)
    return python


def _install(python: Path, *words: str) -> None:
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--compile"]
    subprocess.run([*install, *words], check=True, env=_environment())


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
