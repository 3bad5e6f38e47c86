"""Runs a command in a process of its own and measures it from outside."""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

COMMAND = "dp_transforms.cli.main"  # `shh`
OUTPUT = "{OUTPUT}"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """wall_seconds: from start to exit. peak_bytes: resident memory at its highest (ru_maxrss)."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int


def data_folder() -> Path:
    """Of simulated logs, kept between runs: ``SHH_BENCH_DATA``, or a folder among the temporary files."""
    folder = Path(os.environ.get("SHH_BENCH_DATA") or Path(tempfile.gettempdir()) / "shh_bench_data")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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
    unit = 1 if sys.platform == "darwin" else 1024
    return Measurement(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


def medians(measurements: Sequence[Measurement]) -> Measurement:
    """The median of each number; the largest peak."""
    return Measurement(
        statistics.median(m.wall_seconds for m in measurements),
        statistics.median(m.cpu_seconds for m in measurements),
        max(m.peak_bytes for m in measurements),
    )
