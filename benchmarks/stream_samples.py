"""What a stream on an engine costs while it goes on, looked at from outside: memory, CPU, checkpoints, delays."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

from benchmarks.processes import Watch

# By what stands in the command line; the first that fits.
_ROLES = (
    ("task manager", "TaskManagerRunner"),
    ("job manager", "StandaloneSessionClusterEntrypoint"),
    ("job server", "flink-job-server"),
    ("Kafka", "kafka.Kafka"),
    ("producer", "benchmarks.stream_producer"),
    ("Python worker", "SdkHarness"),
    ("worker pool", "worker_pool_main"),
    ("shh stream", "dp_transforms.cli.main"),
    ("benchmark", "benchmarks"),
)


@dataclasses.dataclass(frozen=True)
class Sample:
    """At one moment. rss_bytes, cpu_seconds (since their start): by role. busy_seconds: of all CPUs of the machine.
    checkpoint: bytes and seconds of the newest complete one, and its number; None before the first."""

    at_seconds: float
    rss_bytes: Mapping[str, int]
    cpu_seconds: Mapping[str, float]
    busy_seconds: float
    checkpoint: tuple[int, float, int] | None


class Sampler(Watch):
    """Takes a sample every two seconds, from the start of the block to its end."""

    seconds_between_looks = 2.0

    def __init__(self, checkpoint: Callable[[], tuple[int, float, int] | None]) -> None:
        super().__init__()
        self.samples: list[Sample] = []
        self._checkpoint = checkpoint

    def look(self) -> None:
        rss: dict[str, int] = {}
        cpu: dict[str, float] = {}
        this = psutil.Process()
        for process in [this, *this.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                name = role(process.cmdline())
                rss[name] = rss.get(name, 0) + process.memory_info().rss
                times = process.cpu_times()
                cpu[name] = cpu.get(name, 0.0) + times.user + times.system
        times = psutil.cpu_times()
        busy = times.user + times.system + times.nice + times.irq + times.softirq
        self.samples.append(Sample(time.time(), rss, cpu, busy, self._checkpoint()))


def role(command: Sequence[str]) -> str:
    """What a process is to us."""
    line = " ".join(command)
    return next((name for name, mark in _ROLES if mark in line), "other")


def delays(
    arrivals: Mapping[int, float], start_seconds: int, window_seconds: int, windows: int, lateness_seconds: float
) -> list[float]:
    """For each window, seconds from when the last event could count for it until its report arrived; inf: it did not.

    arrivals: start of a window (microseconds since 1970) -> when its report was seen (seconds since 1970).
    """
    found = []
    for window in range(windows):
        begin = start_seconds + window * window_seconds
        closes = begin + window_seconds + lateness_seconds
        found.append(arrivals.get(begin * 1_000_000, math.inf) - closes)
    return found


def sustained(delays_by_step: Sequence[Sequence[float]], limit_seconds: float) -> int:
    """How many steps from the first one kept every delay within the limit."""
    for number, step in enumerate(delays_by_step):
        if not step or max(step) > limit_seconds:
            return number
    return len(delays_by_step)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def cpu_between(samples: Sequence[Sample], begin: float, end: float) -> tuple[dict[str, float], float]:
    """CPUs in use by role between two moments, on average, and those that other programs used."""
    within = [sample for sample in samples if begin <= sample.at_seconds <= end]
    if len(within) < 2:
        return {}, math.nan
    first, last = within[0], within[-1]
    seconds = last.at_seconds - first.at_seconds
    used = {
        name: (last.cpu_seconds[name] - first.cpu_seconds[name]) / seconds
        for name in last.cpu_seconds
        if name in first.cpu_seconds
    }
    return used, max(0.0, (last.busy_seconds - first.busy_seconds) / seconds - sum(used.values()))


def median_memory(samples: Sequence[Sample], name: str, begin: float, end: float) -> float:
    """Bytes of one role between two moments."""
    values = [s.rss_bytes[name] for s in samples if begin <= s.at_seconds <= end and name in s.rss_bytes]
    return statistics.median(values) if values else math.nan
