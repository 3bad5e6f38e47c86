"""Prism, Beam's portable engine for one machine: the binary of `make prism`, never one that Beam downloads.

Beam's own builds listen on all addresses and run the code that they are sent. `make prism` changes that, and leaves a
mark beside the binary; a binary without the mark is not started. Prism keeps no checkpoints and never calls a bundle
finalizer (docs/engines.md).
"""

from __future__ import annotations

import os
import pathlib
import shutil

from dp_transforms.engines.engine_process import Engine, EngineError, engine_file, free_port, is_port_open
from dp_transforms.engines.portable import portable_options

PRISM = "prism"
PRISM_VERSION = "v2.77.0"
ON_LOOPBACK_MARK = f".prism-{PRISM_VERSION}-on-loopback"
"""`make prism` makes it last, beside the binary. The Makefile has the same name."""
_START_SECONDS = 120.0
# Prism splits a bundle that makes no progress for a tenth of a second, and then lets two bundles have one key at once:
# what the first of them writes to the state is lost (docs/engines.md).
_SPLIT_NO_BUNDLE = "--experiments=prism_disable_sdf_split"


def options(endpoint: str | None, *, streaming: bool = True, job_name: str | None = None) -> list[str]:
    """Beam flags for the Prism at `endpoint`; the Python code runs in the process that submits.

    endpoint: None for Beam's PrismRunner, which starts a Prism itself: the flags name that of `make prism`.
    """
    if endpoint is None:
        binary = [f"--prism_location={prism_binary()}"]
        return [*portable_options(None, streaming=streaming, job_name=job_name), *binary, _SPLIT_NO_BUNDLE]
    return [*portable_options(endpoint, streaming=streaming, job_name=job_name), _SPLIT_NO_BUNDLE]


def prism_binary(*, allow_open_ports: bool = False) -> str:
    """The one in the engines' folder, else the one in the PATH.

    allow_open_ports: also take a binary that may listen on all addresses. Raises EngineError.
    """
    try:
        found = str(engine_file(PRISM, "prism"))
    except EngineError:
        in_path = shutil.which(PRISM)
        if in_path is None:
            raise
        found = in_path
    if not allow_open_ports and not pathlib.Path(found).resolve().with_name(ON_LOOPBACK_MARK).exists():
        raise EngineError(
            f"{found} was not built by this version's make prism, so other machines may reach its port, which takes"
            " code without a password. It was not started. Build it again with: make prism."
        )
    return found


class Prism(Engine):
    """Takes Beam jobs at `endpoint` and runs them. Raises EngineError if it is missing or does not start.

    allow_open_ports: as in `prism_binary`.
    """

    def __init__(self, *, log_path: str | os.PathLike[str] | None = None, allow_open_ports: bool = False) -> None:
        binary = prism_binary(allow_open_ports=allow_open_ports)
        port = free_port()
        self.endpoint = f"localhost:{port}"
        self.log_path = pathlib.Path(os.devnull if log_path is None else log_path)
        command = [binary, f"--job_port={port}", "--serve_http=false", "--log_level=warn", "--log_kind=text"]
        self._start(command, self.log_path, lambda: is_port_open(port), _START_SECONDS)
