"""How the work of a replay is spread on this machine: how many processes, how much memory, in how many parts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import resource
from collections.abc import Iterator, Sequence

from dp_transforms.local.pool import ProcessPool, ThisProcess
from dp_transforms.logs import EventFields, LogChunk, estimate_log, most_label_bytes
from dp_transforms.plan.window_schedule import WindowSchedule

SMALL_LOG_BYTES = 4_000_000  # a smaller log is read before other processes have started
_BYTES_OF_THIS_PROCESS = 350_000_000
_BYTES_OF_A_WORKER = 350_000_000  # its libraries, and the columns of one task
_EVENTS_PER_SHARD = 1_250_000
_LABEL_BYTES_PER_SHARD = 32_000_000  # a worker takes four times as much
_WIDE_ROW = 256  # bytes; of narrower ones so many events are less
_BYTES_PER_EVENT = 20  # rather too few, where a format does not say how many rows it has
_RARELY_SO_MUCH = 32  # rows are a thousand times what they are when packed, at most; ten times as a rule
_FEWEST_SHARDS, _MOST_SHARDS = 8, 256
_CPU_QUOTA = "/sys/fs/cgroup/cpu.max"
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclasses.dataclass(frozen=True)
class Spread:
    """number: of worker processes; 0: this process does all the work. memory_bytes: of what lies between two steps, so
    much is in memory; the rest is on disk."""

    number: int
    memory_bytes: int

    @classmethod
    def of(cls, log_bytes: int, processes: int | None, memory: int | None) -> Spread:
        """processes, memory: as they were asked for. By default one for each core, as far as memory goes: a worker that
        has not enough of it spills. None for a small log, unless several are asked for."""
        free = free_memory_bytes() if memory is None else memory
        number = processes
        if number is None:
            number = min(cores(), max(1, (free - _BYTES_OF_THIS_PROCESS) // (2 * _BYTES_OF_A_WORKER)))
        if log_bytes < SMALL_LOG_BYTES and (processes or 1) == 1:
            number = 0
        return cls(number, max(0, free - _BYTES_OF_THIS_PROCESS - number * _BYTES_OF_A_WORKER))

    @property
    def least_bytes(self) -> int:
        """What all processes may take together, even with all that lies between two steps on disk."""
        return _BYTES_OF_THIS_PROCESS + self.number * _BYTES_OF_A_WORKER

    @contextlib.contextmanager
    def workers(self, secret: bytes, *, shows_faults: bool = False) -> Iterator[ThisProcess]:
        """Who does the steps while the block runs. Raises PoolError."""
        if not self.number:
            yield ThisProcess(secret)
            return
        with ProcessPool(self.number, self.memory_bytes, secret, shows_faults=shows_faults) as pool:
            yield pool


def bytes_in_windows(chunks: Sequence[LogChunk], schedule: WindowSchedule) -> int:
    """About how many, each as often as it counts; of packed rows a part of what they may unpack to."""
    size = sum(max(chunk.bytes, chunk.unpacked, _BYTES_PER_EVENT * (chunk.events or 0)) for chunk in chunks)
    most = most_label_bytes([chunk for chunk in chunks if not chunk.unpacked]) // _RARELY_SO_MUCH
    return max(size, most) * schedule.windows_per_event


def events_in_windows(chunks: Sequence[LogChunk], schedule: WindowSchedule) -> int:
    """The same of events."""
    rows = sum(chunk.bytes // _BYTES_PER_EVENT if chunk.events is None else chunk.events for chunk in chunks)
    return rows * schedule.windows_per_event


def shards_of_log(
    chunks: Sequence[LogChunk], schedule: WindowSchedule, fields: EventFields, *, pays_tests: bool
) -> int | None:
    """Into how many parts users and items are cut, so that each fits into a worker; None where windows are cut too."""
    if not pays_tests:
        return None
    by_events = -(-events_in_windows(chunks, schedule) // _EVENTS_PER_SHARD)
    by_labels = -(-_long_label_bytes(chunks, fields) // _LABEL_BYTES_PER_SHARD)
    return min(_MOST_SHARDS, max(_FEWEST_SHARDS, by_events, by_labels))


def _long_label_bytes(chunks: Sequence[LogChunk], fields: EventFields) -> int:
    """About how many; 0 where rows are narrow, or not counted: then `events_in_windows` goes by bytes."""
    counted_rows = [chunk for chunk in chunks if chunk.events]
    size = sum(max(chunk.bytes, chunk.unpacked) for chunk in counted_rows)
    if size <= _WIDE_ROW * sum(chunk.events or 0 for chunk in counted_rows):
        return 0
    return min(size, estimate_log(counted_rows, fields).long_label_bytes)


def bytes_of_files(logs: Sequence[str]) -> int:
    """Of local files and folders; 0 for what takes a search or a store to find."""
    below = (os.path.join(folder, name) for log in logs for folder, _, names in os.walk(log) for name in names)
    return sum(map(_size, (*below, *(log for log in logs if not os.path.isdir(log)))))


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # a URL or a glob, or reading will say why it cannot be read
        return 0


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
    return max(0, min(_available_bytes(), *limits)) if limits else _available_bytes()


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
