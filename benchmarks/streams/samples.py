"""What a stream on an engine costs while it goes on, looked at from outside: memory, CPU, checkpoints, delays."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import psutil

# By what stands in the command line; the first that fits.
_ROLES = (
    ("task manager", "TaskManagerRunner"),
    ("job manager", "StandaloneSessionClusterEntrypoint"),
    ("job server", "flink-job-server"),
    ("Kafka", "kafka.Kafka"),
    ("producer", "benchmarks.streams.producer"),
    ("Python worker", "SdkHarness"),
    ("worker pool", "worker_pool_main"),
    ("shh stream", "dp_transforms.cli.main"),
    ("benchmark", "benchmarks"),
)


class Repeated:
    """While the block runs, `look` is called again and again, in a thread."""

    def __init__(self, look: Callable[[], None], seconds_between: float) -> None:
        self._look, self._seconds_between = look, seconds_between
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._done.wait(self._seconds_between):
            self._look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@dataclasses.dataclass(frozen=True)
class Sample:
    """At one moment. rss_bytes, cpu_seconds (since their start): by role. busy_seconds: of all CPUs of the machine.
    checkpoint_bytes: of the newest complete one; 0 before the first."""

    at_seconds: float
    rss_bytes: Mapping[str, int]
    cpu_seconds: Mapping[str, float]
    busy_seconds: float
    checkpoint_bytes: int


def take_sample(checkpoint_bytes: int) -> Sample:
    rss: dict[str, int] = {}
    cpu: dict[str, float] = {}
    this = psutil.Process()
    for process in [this, *this.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            name = _role(process.cmdline())
            rss[name] = rss.get(name, 0) + process.memory_info().rss
            times = process.cpu_times()
            cpu[name] = cpu.get(name, 0.0) + times.user + times.system
    times = psutil.cpu_times()
    busy = times.user + times.system + times.nice + times.irq + times.softirq
    return Sample(time.time(), rss, cpu, busy, checkpoint_bytes)


def _role(command: Sequence[str]) -> str:
    """What a process is to us."""
    line = " ".join(command)
    return next((name for name, mark in _ROLES if mark in line), "other")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def cpu_of(samples: Sequence[Sample]) -> tuple[dict[str, float], float]:
    """CPUs in use by role on average, and those that other programs used."""
    if len(samples) < 2:
        return {}, math.nan
    first, last = samples[0], samples[-1]
    seconds = last.at_seconds - first.at_seconds
    used = {
        name: (last.cpu_seconds[name] - first.cpu_seconds[name]) / seconds
        for name in last.cpu_seconds
        if name in first.cpu_seconds
    }
    return used, max(0.0, (last.busy_seconds - first.busy_seconds) / seconds - sum(used.values()))


def median_memory(samples: Sequence[Sample], name: str) -> float:
    """Bytes of one role."""
    values = [sample.rss_bytes[name] for sample in samples if name in sample.rss_bytes]
    return statistics.median(values) if values else math.nan
