"""Beam's options of its local runner, and of every engine with a job service; and the name of a job. Nothing is
downloaded here.

Whoever types ``DirectRunner``, ``direct`` or nothing gets the FnApiRunner, in this process: Beam's own DirectRunner
would choose an engine by itself, and try to download one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, cast

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from dp_transforms.beam.on_loopback import listen_on_loopback

ENVIRONMENTS = ("LOOPBACK", "EXTERNAL")
WATCH_FOREVER = "--job_server_timeout=315360000"
"""Beam watches a job for so long at most: ten years, in place of one minute."""

LOCAL_RUNNER = "FnApiRunner"
_NAMES_OF_LOCAL = (None, "DirectRunner", "direct", LOCAL_RUNNER)
_View = TypeVar("_View", bound=PipelineOptions)


class KnownOptions(PipelineOptions):
    """As `PipelineOptions`. Building one pipeline asks for 200 views of them, and Beam parses all words for each of
    these anew, which takes a quarter of the time."""

    def view_as(self, cls: type[_View]) -> _View:
        views: dict[type[PipelineOptions], PipelineOptions] = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)  # shares its values with all others
        return cast(_View, views[cls])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_views"}


def pipeline_options(arguments: Sequence[str]) -> PipelineOptions:
    """Beam's options from the command line; the local runner unless they name another.

    Servers that Beam starts in this process, for workers in others, listen on the loopback address alone from now on.
    Raises ValueError for an option that the local runner does not know; other runners may know more.
    """
    listen_on_loopback()
    options = KnownOptions(list(arguments))
    standard = options.view_as(StandardOptions)
    if standard.runner in _NAMES_OF_LOCAL:
        standard.runner = LOCAL_RUNNER
        unknown = set(options.get_all_options(retain_unknown_options=True)) - set(options.get_all_options())
        unknown.update(word for word in arguments[:1] if not word.startswith("-"))
        if unknown:
            raise ValueError(f"Beam has no option {', '.join(sorted(unknown))}. Check what follows --.")
    return options


def is_local(options: PipelineOptions) -> bool:
    """Whether the work is done on this machine."""
    return bool(options.view_as(StandardOptions).runner == LOCAL_RUNNER)


def portable_options(
    endpoint: str | None,
    *,
    environment: str = "LOOPBACK",
    worker_address: str | None = None,
    streaming: bool = True,
    job_name: str | None = None,
) -> list[str]:
    """Flags for a job service at `endpoint` ("host:port"). None: for one that a runner of Beam's own starts.

    environment: where the Python code runs. "LOOPBACK": in the process that submits. It must then stay alive, and its
        servers listen on the loopback address alone from now on (`listen_on_loopback`).
        "EXTERNAL": in workers that the pool at `worker_address` ("host:port") starts.
    Raises ValueError.
    """
    if environment not in ENVIRONMENTS:
        raise ValueError(f"environment must be one of {', '.join(ENVIRONMENTS)}, got {environment!r}.")
    if (environment == "EXTERNAL") != (worker_address is not None):
        raise ValueError(
            f"worker_address must be given for EXTERNAL, and only then, got {worker_address!r} for {environment}."
            " Use the address of a dp_transforms.engines.flink.WorkerPool."
        )
    if environment == "LOOPBACK":
        listen_on_loopback()
    flags = [] if endpoint is None else ["--runner=PortableRunner", f"--job_endpoint={endpoint}"]
    flags.append(f"--environment_type={environment}")
    if worker_address is not None:
        flags.append(f"--environment_config={worker_address}")
    if streaming:
        flags.append("--streaming")
    if job_name is not None:
        flags.append(f"--job_name={job_name}")
    return flags


class NamedRun(Protocol):
    """A run by the names that tell it from all others."""

    @property
    def stream(self) -> str: ...

    @property
    def run_id(self) -> str: ...


def job_name(request: NamedRun) -> str:
    """What the engine shows, within the rules of Dataflow. Each run has its own: a run cancels the job of its name."""
    name = re.sub(r"[^a-z0-9]+", "-", f"shh-{request.stream}-{request.run_id}".lower())
    digest = hashlib.sha256(json.dumps([request.stream, request.run_id]).encode()).hexdigest()
    return f"{name[:50].rstrip('-')}-{digest[:12]}"
