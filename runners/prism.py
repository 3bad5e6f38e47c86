"""Prism, Beam's portable local engine: the binary of `make prism`, never one that Beam downloads.

It keeps no checkpoints and never calls a bundle finalizer (docs/engines.md).
"""

from __future__ import annotations

import os
import pathlib
import shutil

from dp_transforms.runners.engine_process import Engine, EngineError, engine_file, free_port, is_port_open
from dp_transforms.runners.portable import portable_options

PRISM = "prism"
_START_SECONDS = 120.0
# Prism cuts a bundle that makes no progress for a tenth of a second, and then lets two bundles have one key at once:
# what the first of them writes to the state is lost (docs/engines.md).
_CUT_NO_BUNDLE = "--experiments=prism_disable_sdf_split"


def options(endpoint: str, *, streaming: bool = True, job_name: str | None = None) -> list[str]:
    """Beam flags for the Prism at `endpoint`; the Python code runs in the process that submits."""
    return [*portable_options(endpoint, streaming=streaming, job_name=job_name), _CUT_NO_BUNDLE]


def prism_binary() -> str:
    """Of the engines' folder, else of the PATH. Raises EngineError."""
    try:
        return str(engine_file(PRISM, "prism"))
    except EngineError:
        found = shutil.which(PRISM)
        if found is None:
            raise
        return found


class Prism(Engine):
    """Takes Beam jobs at `endpoint` and runs them. Raises EngineError if it is missing or does not start."""

    def __init__(self, *, port: int | None = None, log_path: str | os.PathLike[str] | None = None) -> None:
        port = free_port() if port is None else port
        self.endpoint = f"localhost:{port}"
        self.log_path = pathlib.Path(os.devnull if log_path is None else log_path)
        command = [prism_binary(), f"--job_port={port}", "--serve_http=false", "--log_level=warn", "--log_kind=text"]
        self._start(command, self.log_path, lambda: is_port_open(port), _START_SECONDS)
