"""How long commands take to start: `--help`, `show`, `plan`, and a replay until it reads its log.

Seconds say little about another machine. So each is set against ``python -c "import numpy"``, in turns with it in the
same run, by CPU seconds, which others on the machine change least. What a command may load is tested without a clock
(tests/test_layers.py).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import logs
from benchmarks.processes import run_measured
from benchmarks.report import Figure, show_figures, write_results

_BUDGET = ("--epsilon", "2", "--delta", "1e-9", "--window", "1h", "--start", "2026-01-01", "--end", "2026-01-17")
_EVENTS = 20_000
_Taken = tuple[float, float]  # seconds of wall clock, and of CPU
# A text log is opened by Python, to look at its first lines, and then by Arrow, to be read. Times since the process
# began, by the clock of its parent.
_WATCHED = """
import json, os, sys, time
log, begun, told = os.path.realpath(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
opened = []
def note(path):
    if isinstance(path, str) and os.path.realpath(path) == log:
        opened.append((time.monotonic() - begun, time.process_time()))
sys.addaudithook(lambda event, arguments: note(arguments[0]) if event == "open" else None)
import pyarrow
arrow_file = pyarrow.OSFile
def watched_file(path, *more, **options):
    note(path)
    return arrow_file(path, *more, **options)
pyarrow.OSFile = watched_file
from dp_transforms.pipelines.cli import main
try:
    main(sys.argv[4:])
finally:
    with open(told, "w") as file:
        json.dump(opened, file)
"""


def run(*, quick: bool = False, rounds: int = 5) -> list[Figure]:
    """quick: one round."""
    rounds = 1 if quick else rounds
    taken: dict[str, list[_Taken]] = {}
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as folder:
        log = logs.simulated_log(_EVENTS, "csv")
        report = str(Path(folder) / "report.avro")
        run_measured("dp_transforms.pipelines.cli", "replay", str(log), *_BUDGET, "--output", report)
        commands = {
            "shh --help": ("--help",),
            "shh show": ("show", report),
            "shh plan --help": ("plan", "--help"),
            "shh plan, all of it": ("plan", *_BUDGET),
        }
        for round_ in range(rounds):
            taken.setdefault("import numpy", []).append(_measured([sys.executable, "-c", "import numpy"]))
            for name, words in commands.items():
                command = [sys.executable, "-m", "dp_transforms.pipelines.cli", *words]
                taken.setdefault(name, []).append(_measured(command))
            found, read = _until_read(log, Path(folder), round_)
            taken.setdefault("shh replay, until the log is found", []).append(found)
            taken.setdefault("shh replay, until it is read", []).append(read)
    medians = {name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in taken.items()}
    numpy_wall, numpy_cpu = medians.pop("import numpy")
    wanted = {"shh --help": 0.7, "shh show": 0.7, "shh plan, all of it": 0.7, "shh replay, until it is read": 1.2}
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


def _until_read(log: Path, folder: Path, number: int) -> tuple[_Taken, _Taken]:
    """Until a replay first opens its log, and until it opens it to read its one chunk."""
    told, output = folder / f"opened-{number}.json", str(folder / f"read-{number}.avro")
    words = ["replay", str(log), *_BUDGET, "--output", output]
    command = [sys.executable, "-c", _WATCHED, str(log), repr(time.monotonic()), str(told), *words]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    opened = json.loads(told.read_text())
    return opened[0], opened[-1]
