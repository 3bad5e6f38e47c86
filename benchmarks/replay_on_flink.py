"""Replays on a Flink of two processes against one in process: seconds of CPU by process, and memory of a worker.

The CPU of all processes is summed, since on two cores Java, Python and the command share what there is; the wall clock
is given beside it. Start and end of the job count, those of the cluster and of its pool of workers do not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Iterator

import psutil
from rich.console import Console

from benchmarks import logs
from benchmarks.processes import OUTPUT, run_measured
from benchmarks.report import Figure, show_figures, write_results
from dp_transforms.runners.flink import WorkerPool
from dp_transforms.runners.flink_cluster import FlinkCluster

_BUDGET = ("--epsilon", "2", "--delta", "1e-9", "--window", "1h")
_SECONDS_BETWEEN_LOOKS = 0.1
_WORKER, _TASK_MANAGER, _ELSE = "worker", "task manager", "command and job server"


@dataclasses.dataclass
class Use:
    """Of the processes of one kind. peak_bytes: resident memory of the largest one."""

    cpu_seconds: float = 0.0
    peak_bytes: int = 0


class _Watch:
    """Looks again and again at the descendants of this process: a worker is gone before it could be asked."""

    def __init__(self) -> None:
        self._cpu: dict[tuple[int, float], tuple[str, float, float]] = {}  # kind, first, latest
        self._peaks: dict[str, int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._done.wait(_SECONDS_BETWEEN_LOOKS):
            self.look(started=False)

    def look(self, *, started: bool) -> None:
        """started: processes that are seen now for the first time had used their CPU before."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                words = " ".join(process.cmdline())
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

    def __enter__(self) -> _Watch:
        self.look(started=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def run(*, quick: bool = False) -> list[Figure]:
    console = Console(stderr=True)
    sizes = (100_000,) if quick else (1_000_000, 10_000_000)
    figures: list[Figure] = []
    raw: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as folder:
        key = pathlib.Path(folder) / "noise.key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        for events in sizes:
            log = logs.simulated_log(events)
            console.print(f"  {events:,} events, in process ...")
            here = run_measured("dp_transforms.pipelines.cli", *_words(log, key))
            name = f"{events:,} events"
            figures += [
                Figure(f"{name}, in process: CPU", here.cpu_seconds, "s", note=f"{here.wall_seconds:.0f} s of clock"),
                Figure(f"{name}, in process: peak", here.peak_bytes / 1e6, "MB"),
            ]
            for workers in (1, 2):
                console.print(f"  {events:,} events, {workers} workers on Flink ...")
                wall, uses = _on_flink(log, key, workers, pathlib.Path(folder) / f"{events}-{workers}")
                cpu = sum(use.cpu_seconds for use in uses.values())
                parts = ", ".join(f"{kind} {use.cpu_seconds:.0f}" for kind, use in sorted(uses.items()))
                where = f"{name}, {workers} worker{'s' if workers > 1 else ''} on Flink"
                figures += [
                    Figure(f"{where}: CPU", cpu, "s", note=f"{parts}; {wall:.0f} s of clock"),
                    Figure(f"{where}: peak of a worker", uses[_WORKER].peak_bytes / 1e6, "MB"),
                    Figure(f"{where}: peak of the task manager", uses[_TASK_MANAGER].peak_bytes / 1e6, "MB"),
                ]
                raw[where] = {kind: dataclasses.asdict(use) for kind, use in uses.items()}
            write_results("replay_on_flink", figures, runs=raw)
    show_figures("Replays on Flink", figures)
    return figures


def _words(log: pathlib.Path, key: pathlib.Path) -> list[str]:
    start = datetime.datetime.fromisoformat(logs.START.replace("Z", "+00:00"))
    end = start + datetime.timedelta(days=logs.DAYS)
    return [
        "replay", str(log), "--start", logs.START, "--end", end.isoformat(), *_BUDGET,
        "--noise-key-file", str(key), "--output", f"{OUTPUT}.jsonl", "--allow-large-log",
    ]  # fmt: skip


def _on_flink(log: pathlib.Path, key: pathlib.Path, workers: int, folder: pathlib.Path) -> tuple[float, dict[str, Use]]:
    with _cluster(folder) as (cluster, pool), _Watch() as watch:
        started = time.perf_counter()
        words = [*_words(log, key), "--flink-master", cluster.address, "--worker-pool", pool.address]
        words += ["--parallelism", str(workers), "--", f"--sdk_worker_parallelism={workers}"]
        run_measured("dp_transforms.pipelines.cli", *words)
        wall = time.perf_counter() - started
    return wall, watch.uses()


@contextlib.contextmanager
def _cluster(folder: pathlib.Path) -> Iterator[tuple[FlinkCluster, WorkerPool]]:
    folder.mkdir()
    with FlinkCluster(folder) as cluster, WorkerPool(log_path=folder / "pool.log") as pool:
        yield cluster, pool
