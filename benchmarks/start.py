"""How long commands take to start: `--help`, `show`, `plan`, and a replay until it reads its log.

Seconds say little about another machine. So each is set against ``python -c "import numpy"``, in turns with it in the
same run, by CPU seconds, which others on the machine change least. What a command may load is tested without a clock
(tests/test_layers.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks import logs
from benchmarks.processes import run_measured
from benchmarks.report import Figure, show_figures, write_results

_PLAN = ("plan", *logs.BUDGET, "--window", "1h", "--start", "2026-01-01", "--end", "2026-01-17")
_EVENTS = 20_000
_SECONDS_BETWEEN_LOOKS = 0.005
_Taken = tuple[float, float]  # seconds of wall clock, and of CPU
_READ_EVENTS = 1_000_000  # not a small log: worker processes read it


def run(*, quick: bool = False, rounds: int = 5) -> list[Figure]:
    """quick: one round."""
    rounds = 1 if quick else rounds
    taken: dict[str, list[_Taken]] = {}
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as folder:
        log = logs.simulated_log(_EVENTS, "csv")
        large = logs.simulated_log(_READ_EVENTS).resolve()
        report = str(Path(folder) / "report.avro")
        run_measured(*logs.replay(log, report))
        commands = {
            "shh --help": ("--help",),
            "shh show": ("show", report),
            "shh plan --help": ("plan", "--help"),
            "shh plan, all of it": _PLAN,
        }
        for round_ in range(rounds):
            taken.setdefault("import numpy", []).append(_measured([sys.executable, "-c", "import numpy"]))
            for name, words in commands.items():
                command = [sys.executable, "-m", logs.COMMAND, *words]
                taken.setdefault(name, []).append(_measured(command))
            taken.setdefault("shh plan, its first sentence", []).append(_until_first_line(_PLAN))
            taken.setdefault("shh replay, until the log is read", []).append(_until_read(large, Path(folder), round_))
    medians = {name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in taken.items()}
    numpy_wall, numpy_cpu = medians.pop("import numpy")
    wanted = {
        "shh --help": 0.7,
        "shh show": 0.7,
        "shh plan, its first sentence": 0.7,
        "shh replay, until the log is read": 1.2,
    }
    figures = []
    for name, (wall, cpu) in medians.items():
        target = ("<=", wanted[name]) if name in wanted else None
        note = f"{cpu:.2f} s of CPU, {cpu / numpy_cpu:.1f} times an import of numpy"
        figures.append(Figure(name, wall, "s", target, note))
    figures.append(Figure("import numpy", numpy_wall, "s", None, f"{numpy_cpu:.2f} s of CPU"))
    show_figures("Start", figures)
    write_results("start", figures, rounds=rounds, columns=["wall_seconds", "cpu_seconds"], runs=taken)
    return figures


def _measured(command: list[str]) -> _Taken:
    begun = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}.")
    return time.monotonic() - begun, usage.ru_utime + usage.ru_stime


def _until_first_line(words: Sequence[str]) -> _Taken:
    """Until a command says its first line; then it is killed."""
    begun = time.monotonic()
    command = [sys.executable, "-m", logs.COMMAND, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        wall = time.monotonic() - begun
        child.kill()
        _, _, usage = os.wait4(child.pid, 0)
        child.returncode = -signal.SIGKILL
    if not line:
        raise RuntimeError(f"{' '.join(command)} said nothing.")
    return wall, usage.ru_utime + usage.ru_stime


def _until_read(log: Path, folder: Path, number: int) -> _Taken:
    """Until a worker process of a replay opens its log, to read it: looked at from outside. CPU is that of all
    processes of the replay."""
    words = logs.replay(log, folder / f"read-{number}.avro", "--processes", "2")
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        main = psutil.Process(child.pid)
        while not any(_has_open(worker.pid, log) for worker in main.children(recursive=True)):
            if child.poll() is not None:
                raise RuntimeError(f"{' '.join(words)} ended with {child.returncode} before a worker read the log.")
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        taken = time.monotonic() - begun
        cpu = sum(sum(process.cpu_times()[:2]) for process in (main, *main.children(recursive=True)))
        child.terminate()
    return taken, cpu


def _has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(os.readlink(each) == str(path) for each in Path(f"/proc/{pid}/fd").iterdir())
    return False
