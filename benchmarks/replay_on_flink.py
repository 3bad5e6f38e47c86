"""Replays on Flink against the same in process: seconds of CPU by process, memory of a worker, and the same report.

One task manager has as many slots and Python workers as are asked for. The CPU of all processes is summed, since on
two cores Java, Python and the command share what there is; the wall clock is given beside it. Start and end of the job
count, those of the cluster and of its pool of workers do not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import os
import pathlib
import tempfile
import time
from collections.abc import Sequence

import psutil
from rich.console import Console

from benchmarks import logs
from benchmarks.processes import Watch, run_measured
from benchmarks.report import Figure, show_figures, write_results
from dp_transforms.reports import read_report_file
from examples.engines.flink import WorkerPool
from examples.engines.flink_cluster import FlinkCluster

_LARGEST = 100_000_000
_TASK_HEAP_MEGABYTES = 768
_MOST_MEGABYTES = 2000  # of a worker, whatever the log
_WORKER, _TASK_MANAGER, _ELSE = "worker", "task manager", "command and job server"


@dataclasses.dataclass
class Use:
    """Of the processes of one kind. peak_bytes: resident memory of the largest one."""

    cpu_seconds: float = 0.0
    peak_bytes: int = 0


class _Watch(Watch):
    """Of the descendants of this process: a worker is gone before it could be asked."""

    def __init__(self) -> None:
        super().__init__()
        self._cpu: dict[tuple[int, float], tuple[str, float, float]] = {}  # kind, first, latest
        self._peaks: dict[str, int] = {}
        self.look(started=True)

    def look(self, *, started: bool = False) -> None:
        """started: processes that are seen now for the first time had used their CPU before."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                words = " ".join(process.cmdline())
                if not words:  # it ends
                    continue
                times = process.cpu_times()
                used = times.user + times.system
                kind = _WORKER if "SdkHarness" in words else _TASK_MANAGER if "TaskManagerRunner" in words else _ELSE
                key = (process.pid, process.create_time())
                first = self._cpu[key][1] if key in self._cpu else used if started else 0.0
                self._cpu[key] = (kind, first, used)
                self._peaks[kind] = max(self._peaks.get(kind, 0), process.memory_info().rss)

    def uses(self) -> dict[str, Use]:
        found = {kind: Use(peak_bytes=peak) for kind, peak in self._peaks.items()}
        for kind, first, used in self._cpu.values():
            found[kind].cpu_seconds += used - first
        return found


def run(*, quick: bool = False, full: bool = False) -> list[Figure]:
    console = Console(stderr=True)
    sizes = (100_000,) if quick else (1_000_000, 10_000_000)
    runs = [(events, workers) for events in sizes for workers in (1, 2)]
    figures: list[Figure] = []
    raw: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as folder:
        key = pathlib.Path(folder) / "noise.key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        for events, workers in [*runs, (_LARGEST, 2)] if full else runs:
            name = f"{events:,} events, {workers} worker{'s' if workers > 1 else ''}"
            console.print(f"  {name} ...")
            place = pathlib.Path(folder) / f"{events}-{workers}"
            place.mkdir()
            found, raw[name] = _measure(name, logs.simulated_log(events), key, workers, place)
            figures += found
            write_results("replay_on_flink", figures, runs=raw)
    show_figures("Replays on Flink", figures)
    return figures


def _measure(
    name: str, log: pathlib.Path, key: pathlib.Path, workers: int, place: pathlib.Path
) -> tuple[list[Figure], dict[str, object]]:
    there, here = place / "there.jsonl", place / "here.jsonl"
    key_words = ("--noise-key-file", str(key))
    wall, uses = _on_flink(logs.replay(log, there, *key_words), workers, place / "cluster")
    header, reports = read_report_file(there)
    windows = sum(1 for _ in reports)
    _, *words = logs.replay(log, here, *key_words, "--processes", str(workers))
    again = run_measured("benchmarks.replay_again", header.run_id, *words)
    is_same = filecmp.cmp(here, there, shallow=False)
    parts = ", ".join(f"{kind} {use.cpu_seconds:.0f}" for kind, use in sorted(uses.items()))
    cpu = sum(use.cpu_seconds for use in uses.values())
    figures = [
        Figure(f"{name}, in process: CPU", again.cpu_seconds, "s", note=f"{again.wall_seconds:.0f} s of clock"),
        Figure(f"{name} on Flink: CPU", cpu, "s", note=f"{parts}; {wall:.0f} s of clock"),
        Figure(f"{name} on Flink: peak of a worker", uses[_WORKER].peak_bytes / 1e6, "MB", ("<=", _MOST_MEGABYTES)),
        Figure(f"{name} on Flink: peak of a task manager", uses[_TASK_MANAGER].peak_bytes / 1e6, "MB"),
        Figure(
            f"{name}: reports that are equal, byte for byte", float(is_same), "", (">=", 1.0), f"{windows:,} windows"
        ),
    ]
    return figures, {kind: dataclasses.asdict(use) for kind, use in uses.items()}


def _on_flink(words: Sequence[str], workers: int, folder: pathlib.Path) -> tuple[float, dict[str, Use]]:
    folder.mkdir()
    with (
        FlinkCluster(folder, workers, task_heap_megabytes=_TASK_HEAP_MEGABYTES) as cluster,
        WorkerPool(log_path=folder / "pool.log") as pool,
        _Watch() as watch,
    ):
        started = time.perf_counter()
        words = [*words, "--flink-master", cluster.address, "--worker-pool", pool.address]
        run_measured(*words, "--parallelism", str(workers), "--", f"--sdk_worker_parallelism={workers}")
        wall = time.perf_counter() - started
    return wall, watch.uses()
