"""What this machine has: cores and memory, or those of the container."""

from __future__ import annotations

import os

import psutil

_CPU_QUOTA = "/sys/fs/cgroup/cpu.max"
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def cores() -> int:
    """That this process may use; of a container with a share of a core, one."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open(_CPU_QUOTA) as file:
            quota, period = map(int, file.read().split())
    except (OSError, ValueError):  # no such controller, or "max"
        return found
    return max(1, min(found, quota // period))


def free_memory_bytes() -> int:
    """Memory that this process may still take: what the machine has, or its container if that is less."""
    free = int(psutil.virtual_memory().available)
    for path in _CGROUP_LIMITS:
        try:
            with open(path) as file:
                limit = int(file.read())
        except (OSError, ValueError):  # no such controller, or "max"
            continue
        free = min(free, max(0, limit - int(psutil.Process().memory_info().rss)))
    return free
