"""How the work of a replay is spread on this machine: how many processes, with how much memory, in how many parts."""

from __future__ import annotations

import os
import pathlib
import resource
from collections.abc import Sequence

from dp_transforms.local.pool import ProcessPool, ThisProcess
from dp_transforms.logs import LogChunk
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule

SMALL_LOG_BYTES = 4_000_000  # a smaller log is read before other processes have started
_BYTES_OF_A_PROCESS = 350_000_000  # its libraries, and the columns of one task
_EVENTS_PER_SHARD = 1_250_000
_BYTES_PER_SHARD = 32_000_000  # of wide rows: if all of it are labels, a worker takes four times as much
_WIDE_ROW = 256  # bytes
_BYTES_PER_EVENT = 20
_UNPACKED = 32  # times what rows are when packed; a thousand times at most, ten times as a rule
_FEWEST_SHARDS, _MOST_SHARDS = 8, 256
_CPU_QUOTA = "/sys/fs/cgroup/cpu.max"
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def start_workers(log_bytes: int, secret: bytes, processes: int | None = None) -> ThisProcess:
    """Who does the steps of a replay: this process for a small log, else a pool. A context manager.

    processes: as many as were asked for; by default one for each core, as far as memory goes. What is then free of
    memory holds what lies between two steps; the rest is on disk. Raises PoolError.
    """
    if log_bytes < SMALL_LOG_BYTES and (processes or 1) == 1:
        return ThisProcess(secret)
    left = free_memory_bytes() - _BYTES_OF_A_PROCESS
    number = processes or min(cores(), max(1, left // (2 * _BYTES_OF_A_PROCESS)))
    return ProcessPool(number, max(0, left - number * _BYTES_OF_A_PROCESS), secret)


def bytes_in_windows(chunks: Sequence[LogChunk], schedule: WindowSchedule) -> int:
    """About how many, each as often as it counts; of packed rows rather too many."""
    return sum(_bytes_of(chunk) for chunk in chunks) * schedule.windows_per_event


def _bytes_of(chunk: LogChunk) -> int:
    return max(chunk.bytes * (_UNPACKED if chunk.is_packed else 1), chunk.unpacked, _BYTES_PER_EVENT * chunk.rows_about)


def shards_of_log(chunks: Sequence[LogChunk], plan: Plan) -> int | None:
    """Into how many parts users and items are cut, so that each fits into a worker; None where windows are cut too."""
    if plan.contributions is None:
        return None
    rows = sum(chunk.rows_about for chunk in chunks)
    size = sum(max(chunk.bytes, chunk.unpacked) for chunk in chunks)
    by_events = -(-rows * plan.schedule.windows_per_event // _EVENTS_PER_SHARD)
    by_bytes = -(-size // _BYTES_PER_SHARD) if size > _WIDE_ROW * rows else 0
    return min(_MOST_SHARDS, max(_FEWEST_SHARDS, by_events, by_bytes))


def bytes_of_files(logs: Sequence[str]) -> int:
    """Of local files and folders; 0 for what takes a search or a store to find."""
    below = (os.path.join(folder, name) for log in logs for folder, _, names in os.walk(log) for name in names)
    return sum(os.path.getsize(path) for path in (*logs, *below) if os.path.isfile(path))


def cores() -> int:
    """That this process may use; of a container with a share of a core, one."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    match _words_in(_CPU_QUOTA):
        case [quota, period] if quota != "max":
            return max(1, min(found, int(quota) // int(period)))
    return found


def free_memory_bytes() -> int:
    """Memory that this process may still take: what the machine has, or its container if that is less."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # the most that it ever had
    limits = [int(words[0]) - used for path in _CGROUP_LIMITS if (words := _words_in(path)) and words[0] != "max"]
    return max(0, min([_available_bytes(), *limits]))


def _available_bytes() -> int:
    """Without swapping, as Linux says; of another system half of what it has."""
    words = _words_in("/proc/meminfo")
    if "MemAvailable:" in words:
        return int(words[words.index("MemAvailable:") + 1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _words_in(path: str) -> list[str]:
    """None where there is no such file, as without a controller."""
    try:
        return pathlib.Path(path).read_text().split()
    except OSError:
        return []
