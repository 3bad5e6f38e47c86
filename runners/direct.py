"""The local runner, named explicitly.

``DirectRunner`` would choose an engine by network and pipeline, each with its own timers, and try to download one.
"""

from __future__ import annotations

from collections.abc import Sequence

import psutil
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions

LOCAL_RUNNER = "FnApiRunner"
_NAMES_OF_LOCAL = (None, "DirectRunner", "direct", LOCAL_RUNNER)
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def pipeline_options(arguments: Sequence[str]) -> PipelineOptions:
    """Beam's options from the command line; the local runner unless they name another."""
    options = PipelineOptions(list(arguments))
    standard = options.view_as(StandardOptions)
    if standard.runner in _NAMES_OF_LOCAL:
        standard.runner = LOCAL_RUNNER
    return options


def is_local(options: PipelineOptions) -> bool:
    """Whether the work is done on this machine."""
    return bool(options.view_as(StandardOptions).runner == LOCAL_RUNNER)


def is_in_process(options: PipelineOptions) -> bool:
    """Whether the work is done in this very process."""
    return is_local(options) and options.view_as(DirectOptions).direct_running_mode in (None, "in_memory")


def free_memory_bytes() -> int:
    """Memory that this process may still take: of the machine, or of its container where that is less."""
    free = int(psutil.virtual_memory().available)
    for path in _CGROUP_LIMITS:
        try:
            with open(path) as file:
                limit = int(file.read())
        except (OSError, ValueError):  # no such controller, or "max"
            continue
        free = min(free, max(0, limit - int(psutil.Process().memory_info().rss)))
    return free
