"""Memory of a replay with two workers, of all its processes together, for each reader and each mode, with a declared
--memory and without.

What each process has for itself, its share of what several have, and what lies in memory between two steps
(`processes.PeakOfAll`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks import logs
from benchmarks.processes import OUTPUT, PeakOfAll, run_measured
from benchmarks.report import Figure, show_figures, write_results

_DECLARED = 1.2  # GB: the command and two workers, and a little between two steps
_LIMIT = ("<=", _DECLARED)
_WORK = {"": (), f" --memory {_DECLARED}GB": ("--memory", f"{_DECLARED}GB")}
_FEWER = 100  # events for sliding windows: one is in 1,440 of them
_PARQUET = {
    "looks": (),
    "looks --rounds": ("--rounds",),
    "hits": ("--mode", "hits"),
    "hits-with-counts": ("--mode", "hits-with-counts"),
}


def run(*, quick: bool = False) -> list[Figure]:
    """quick: a tenth of the events."""
    events = 1_000_000 if quick else 10_000_000
    console, figures = Console(stderr=True), list[Figure]()

    def measure(name: str, log: Path, *more: str) -> None:
        for how, words in _WORK.items():
            console.print(f"  {name}{how} ...")
            replay = logs.replay(log, f"{OUTPUT}.avro", "--processes", "2", *words, *more)
            figures.append(_measured(name + how, _LIMIT if words else None, *replay))

    for ending in ("avro", "csv", "jsonl"):
        measure(f"looks, {ending}", logs.simulated_log(events, ending))
    for name, words in _PARQUET.items():
        measure(f"{name}, parquet", logs.simulated_log(events), *words)
    measure("looks, sliding", logs.simulated_log(events // _FEWER), "--window", "1d", "--slide", "1m")
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "noise.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(32))
        words = ("--state", f"{OUTPUT}.state", "--noise-key-file", str(key))
        replay = logs.replay(logs.simulated_log(events), f"{OUTPUT}.avro", *words)
        figures.append(_measured("looks --state, parquet, one process", None, *replay))
    show_figures(f"Memory, {events:,} events", figures)
    write_results("memory", figures, events=events)
    return figures


def _measured(name: str, limit: tuple[str, float] | None, *words: str) -> Figure:
    with PeakOfAll() as peak:
        ended = run_measured(*words)
    return Figure(name, peak.bytes / 1e9, "GB", limit, f"{ended.wall_seconds:.1f} s, {ended.cpu_seconds:.1f} s of CPU")
