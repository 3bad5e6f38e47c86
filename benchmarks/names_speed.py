"""A replay of mode looks beside one of mode hits: time, CPU and memory, on logs of 1 to 30 million events.

Each replay is a process of its own; the two take turns, so that both meet the same machine. Wall clock counts from the
start of the process to its end. On a machine that others use, CPU seconds say more.
"""

from __future__ import annotations

import datetime

from rich.console import Console

from benchmarks import logs
from benchmarks.processes import OUTPUT, Measurement, medians, run_measured
from benchmarks.report import Figure, show_figures, write_results

_SIZES = (1_000_000, 3_000_000, 10_000_000)
_FULL = 30_000_000
_MODES = {"looks": ("--mode", "looks", "--usual-looks", "1", "1000"), "hits": ("--mode", "hits")}


def run(*, quick: bool = False, full: bool = False, rounds: int = 3) -> list[Figure]:
    """full: 30 million events too. quick: the smallest log alone, once."""
    console = Console(stderr=True)
    rounds = 1 if quick else rounds
    sizes = _SIZES[:1] if quick else (*_SIZES, *((_FULL,) if full else ()))
    measured: dict[int, dict[str, list[Measurement]]] = {}
    for events in sizes:
        log = logs.simulated_log(events)
        runs = measured[events] = {mode: [] for mode in _MODES}
        for _ in range(rounds):
            for mode, options in _MODES.items():
                console.print(f"  {events:,} events, {mode} ...")
                runs[mode].append(run_measured("dp_transforms.cli.main", *_replay(str(log), options)))
    figures = _figures(measured)
    show_figures("A replay of looks and one of hits", figures)
    raw = {
        str(events): {
            mode: [[run.wall_seconds, run.cpu_seconds, run.pipeline_seconds, run.peak_bytes] for run in of_mode]
            for mode, of_mode in runs.items()
        }
        for events, runs in measured.items()
    }
    columns = ["wall_seconds", "cpu_seconds", "pipeline_seconds", "peak_bytes"]
    write_results("names_speed", figures, rounds=rounds, columns=columns, runs=raw)
    return figures


def _figures(measured: dict[int, dict[str, list[Measurement]]]) -> list[Figure]:
    figures = []
    each = {events: {mode: medians(of_mode) for mode, of_mode in runs.items()} for events, runs in measured.items()}
    for events, modes in each.items():
        looks, hits = modes["looks"], modes["hits"]
        wall = f"{looks.wall_seconds:.1f} s / {hits.wall_seconds:.1f} s"
        cpu = f"{looks.cpu_seconds:.1f} s / {hits.cpu_seconds:.1f} s"
        peak = f"{looks.peak_bytes / 1e9:.2f} GB / {hits.peak_bytes / 1e9:.2f} GB"
        of = f"{events:,} events: looks / hits"
        figures += [
            Figure(f"{of}, wall clock", looks.wall_seconds / hits.wall_seconds, "", ("<=", 1.0), wall),
            Figure(f"{of}, CPU", looks.cpu_seconds / hits.cpu_seconds, "", None, cpu),
            Figure(f"{of}, peak memory", looks.peak_bytes / hits.peak_bytes, "", ("<=", 1.0), peak),
        ]
    fewest = min(each)
    for events, modes in each.items():
        if events > fewest:
            first = each[fewest]["looks"].cpu_seconds / fewest
            ratio = modes["looks"].cpu_seconds / events / first
            name = f"CPU of an event, looks: {events:,} / {fewest:,} events"
            figures.append(Figure(name, ratio, "", ("<=", 1.0), f"{modes['looks'].cpu_seconds / events * 1e6:.2f} us"))
    return figures


def _replay(log: str, options: tuple[str, ...]) -> list[str]:
    start = datetime.datetime.fromisoformat(logs.START.replace("Z", "+00:00"))
    end = start + datetime.timedelta(days=logs.DAYS)
    return [
        "replay", log, "--start", logs.START, "--end", end.isoformat(), "--window", "1h",
        "--epsilon", "2", "--delta", "1e-9", *options, "--output", f"{OUTPUT}.avro", "--processes", "1",
    ]  # fmt: skip
