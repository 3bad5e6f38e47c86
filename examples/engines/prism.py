"""Prism, Beam's portable engine for one machine: the binary of `make engines`."""

from __future__ import annotations

import os
import pathlib

from dp_transforms.beam.on_loopback import listen_on_loopback
from dp_transforms.beam.runner_options import prism_binary, prism_options
from examples.engines.engine_process import Engine, free_port, is_port_open

_START_SECONDS = 120.0


def options(endpoint: str, *, streaming: bool = True) -> list[str]:
    """Beam flags for the Prism at `endpoint`; the Python code runs in the process that submits."""
    listen_on_loopback()
    flags = ["--runner=PortableRunner", f"--job_endpoint={endpoint}", "--environment_type=LOOPBACK"]
    return [*flags, *prism_options(streaming=streaming)]


class Prism(Engine):
    """Takes Beam jobs at `endpoint` and runs them. Raises UserError if it is missing or does not start."""

    def __init__(self, *, log_path: str | os.PathLike[str] | None = None) -> None:
        binary, port = prism_binary(), free_port()
        self.endpoint = f"localhost:{port}"
        self.log_path = pathlib.Path(os.devnull if log_path is None else log_path)
        command = [binary, f"--job_port={port}", "--serve_http=false", "--log_level=warn", "--log_kind=text"]
        self._start(command, self.log_path, lambda: is_port_open(port), _START_SECONDS)
