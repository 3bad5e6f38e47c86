"""A replay by two worker processes beside one by one process, beside one of hits, and beside a read and group-by of
pyarrow in one thread.

shh is installed as its users install it, in an environment of its own (`environments.installed_shh`). Each runs in a
process of its own; they take turns, and each pause waits until the machine is quiet, for a minute at most: wall clock
is what more processes are for, and says nothing where others take the cores. So the smallest time of each counts.
"""

from __future__ import annotations

import pathlib
import time

import psutil
from rich.console import Console

from benchmarks import environments, logs
from benchmarks.processes import OUTPUT, Measurement, numbers_of, run_measured
from benchmarks.report import Figure, show_figures, write_results

_SIZES = (3_000_000, 10_000_000)
_FULL = 30_000_000
_PEER = "pyarrow"
_ONE, _TWO, _HITS = "1 process", "2 processes", "2 processes, hits"
_VARIANTS = {
    _ONE: ("--processes", "1"),
    _TWO: ("--processes", "2"),
    _HITS: ("--mode", "hits", "--processes", "2"),
}
_QUIET, _SECONDS_TO_WAIT = 0.08, 60


def run(*, quick: bool = False, full: bool = False, rounds: int = 3) -> list[Figure]:
    """full: 30 million events too. quick: one million events, once, without waiting."""
    console = Console(stderr=True)
    rounds = 1 if quick else rounds
    environments.installed_shh()  # it is made before anything is measured
    measured: dict[int, dict[str, list[Measurement]]] = {}
    figures: list[Figure] = []
    for events in (1_000_000,) if quick else (*_SIZES, *((_FULL,) if full else ())):
        log = logs.simulated_log(events)
        runs = measured[events] = {name: [] for name in (*_VARIANTS, _PEER)}
        for _ in range(rounds):
            for name in runs:
                console.print(f"  {events:,} events, {name} ...")
                if not quick:
                    _wait_until_quiet()
                runs[name].append(_measured(log, name))
        figures += _figures(events, {name: min(each, key=lambda m: m.wall_seconds) for name, each in runs.items()})
    show_figures("Two processes and one", figures)
    write_results("cores", figures, rounds=rounds, runs=numbers_of(measured))
    return figures


def _measured(log: pathlib.Path, name: str) -> Measurement:
    if name == _PEER:
        return run_measured("benchmarks.pyarrow_group_by", str(log), python=str(environments.installed_shh()))
    words = logs.replay(log, f"{OUTPUT}.avro", *_VARIANTS[name])
    return run_measured(*words, python=str(environments.installed_shh()))


def _figures(events: int, best: dict[str, Measurement]) -> list[Figure]:
    one, two, hits, peer = best[_ONE], best[_TWO], best[_HITS], best[_PEER]
    large = events == max(_SIZES)
    of = f"{events:,} events"
    return [
        Figure(
            f"{of}: 1 process / 2 processes",
            one.wall_seconds / two.wall_seconds,
            "",
            (">=", 1.7) if large else None,
            f"{one.wall_seconds:.1f} s / {two.wall_seconds:.1f} s;"
            f" CPU {one.cpu_seconds:.1f} s / {two.cpu_seconds:.1f} s",
        ),
        Figure(
            f"{of}: looks / hits",
            two.wall_seconds / hits.wall_seconds,
            note=f"{two.wall_seconds:.1f} s / {hits.wall_seconds:.1f} s",
        ),
        Figure(
            f"{of}: 2 processes / pyarrow in one thread",
            two.wall_seconds / peer.wall_seconds,
            "",
            ("<=", 2.0) if large else None,
            f"{two.wall_seconds:.1f} s / {peer.wall_seconds:.1f} s",
        ),
    ]


def _wait_until_quiet() -> None:
    deadline = time.monotonic() + _SECONDS_TO_WAIT
    while psutil.cpu_percent(interval=1.0) > 100 * _QUIET and time.monotonic() < deadline:
        pass
