"""Runs a command in a process of its own and measures it from outside."""

from __future__ import annotations

import dataclasses
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

OUTPUT = "{OUTPUT}"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """wall_seconds: from start to exit. pipeline_seconds: as `shh replay` says, 0 where it does not.
    peak_bytes: resident memory at its highest (ru_maxrss). output: all that was printed."""

    wall_seconds: float
    cpu_seconds: float
    pipeline_seconds: float
    peak_bytes: int
    output: str


class Watch:
    """While the block runs, `look` is called again and again, in a thread."""

    seconds_between_looks = 0.05

    def __init__(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._done.wait(self.seconds_between_looks):
            self.look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def run_measured(module: str, *arguments: str) -> Measurement:
    """``python -m module arguments``. Raises RuntimeError, with the end of what it printed, if it fails.

    OUTPUT in an argument becomes the path of a new file, in a folder that is removed afterwards.
    Keep this process small: Linux counts what a parent holds when it starts a child toward the child's peak.
    """
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as folder, tempfile.TemporaryFile() as output:
        arguments = tuple(word.replace(OUTPUT, os.path.join(folder, "output")) for word in arguments)
        started = time.perf_counter()
        child = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=output, stderr=output)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if child.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} ended with {child.returncode}:\n{text[-2000:]}")
    match = re.search(r"rows in ([0-9.]+) s", text)
    unit = 1 if sys.platform == "darwin" else 1024
    cpu = usage.ru_utime + usage.ru_stime
    return Measurement(wall, cpu, float(match[1]) if match else 0.0, usage.ru_maxrss * unit, text)


def medians(measurements: Sequence[Measurement]) -> Measurement:
    """The median of each number; the largest peak."""
    return Measurement(
        statistics.median(m.wall_seconds for m in measurements),
        statistics.median(m.cpu_seconds for m in measurements),
        statistics.median(m.pipeline_seconds for m in measurements),
        max(m.peak_bytes for m in measurements),
        measurements[-1].output,
    )


def numbers_of(runs: Any) -> Any:
    """All measurements in dicts and lists of any depth, to keep: without what was printed."""
    if isinstance(runs, Measurement):
        return {name: value for name, value in dataclasses.asdict(runs).items() if name != "output"}
    if isinstance(runs, Mapping):
        return {str(name): numbers_of(each) for name, each in runs.items()}
    return [numbers_of(each) for each in runs]
