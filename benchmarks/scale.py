"""How a replay grows, stage by stage: with events, users, items, windows and shards; under skew; and how far its
sequential stage goes in the modes that have one. CPU seconds, so that other programs matter less.

Its parts can be run one at a time; the rows of the others stay as the last run wrote them.
`benchmarks/replay_on_flink.py` has the same on a Flink of two processes, with the memory of its workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import logs
from benchmarks.processes import run_measured
from benchmarks.report import Figure, read_results, show_figures, write_results
from benchmarks.stage_costs import makespan

_HOUR = 3600
_EVENTS_PER_SHARD = 500_000
_LEAST_SHARDS = 8
_SIZES, _LARGE = (1_000_000, 3_000_000, 10_000_000), (30_000_000, 100_000_000)
_MIDDLE, _SMALL = 3_000_000, 100_000
_WORKERS = (2, 4)
_LIMIT = (">=", 0.5)
_ROUNDS = 2
Cost = dict[str, Any]


class _Part:
    """Measures the rows of one part. costs: all that was measured, by name."""

    def __init__(self, quick: bool) -> None:
        self.sizes = (_SMALL,) if quick else _SIZES
        self.middle = _SMALL if quick else _MIDDLE
        self.costs: dict[str, Cost] = {}
        self._rounds = 1 if quick else _ROUNDS
        self._console = Console(stderr=True)

    def stages(self, name: str, log: Path, workers: int = 1) -> Cost:
        """The round that took less CPU. workers: so many the log is cut for."""
        shards = max(_LEAST_SHARDS, -(-logs.rows_of(log) // _EVENTS_PER_SHARD))
        words = (str(log), str(_HOUR), str(shards), str(workers))
        found = [self._last_line(name, "benchmarks.stage_costs", *words) for _ in range(self._rounds)]
        self.costs[name] = min(found, key=lambda cost: sum(cost["seconds"].values()))
        return self.costs[name]

    def monitor(self, mode: str, holders: int) -> Cost:
        name = f"{mode}, {holders:,} holders"
        self.costs[name] = self._last_line(name, "benchmarks.sequential_stage", mode, str(holders))
        return self.costs[name]

    def _last_line(self, name: str, module: str, *words: str) -> Cost:
        self._console.print(f"  {name} ...")
        return dict(json.loads(run_measured(module, *words).output.splitlines()[-1]))


def _sizes(part: _Part) -> Iterator[Figure]:
    for events in part.sizes:
        yield from _of_size(part.stages(f"{events:,} events", logs.simulated_log(events)))


def _large(part: _Part) -> Iterator[Figure]:
    for events in _LARGE:
        yield from _of_size(part.stages(f"{events:,} events", logs.simulated_log(events)))


def _skew(part: _Part) -> Iterator[Figure]:
    even = logs.simulated_log(part.middle)
    for workers in _WORKERS:
        costs = {
            kind: part.stages(f"skew: {kind}, {workers} workers", logs.derived_log(kind, even), workers=workers)
            for kind in logs.SKEW
        }
        for kind, words in logs.SKEW.items():
            if kind != "even":
                yield _under_skew(f"names, {words}", costs[kind], costs["even"], workers)


def _monitor(part: _Part) -> Iterator[Figure]:
    for mode, holders in (("hits-with-counts", 5000), ("hits-with-counts", 1000), ("hits", 550)):
        stage = part.monitor(mode, holders)
        note = f"{stage['charged']:,} of {stage['held']:,} pairs in candidates were charged, {stage['seconds']:.2f} s"
        rate = stage["held"] / stage["seconds"]
        yield Figure(f"monitor of {mode}, {holders:,} holders: pairs in candidates", rate, "pairs/s", note=note)


_PARTS: dict[str, Callable[[_Part], Iterator[Figure]]] = {
    "sizes": _sizes,
    "large": _large,
    "skew": _skew,
    "monitor": _monitor,
}
PARTS = tuple(_PARTS)


def run(*, quick: bool = False, full: bool = False, parts: Sequence[str] = ()) -> list[Figure]:
    """parts: these alone; without: all but ``large``, which is 30 and 100 million events (a log of 0.9 GB; 3 GB of
    memory) and belongs to full."""
    chosen = parts or [name for name in _PARTS if full or name != "large"]
    document = {name: rows for name, rows in read_results("scale").get("parts", {}).items() if parts}
    figures: list[Figure] = []
    for name in chosen:
        part = _Part(quick)
        found = list(_PARTS[name](part))
        figures += found
        document[name] = {"figures": [figure.to_dict() for figure in found], "costs": part.costs}
        write_results("scale", figures, parts=document)
    show_figures("How a replay grows", figures)
    return figures


def _of_size(cost: Cost) -> Iterator[Figure]:
    name = f"{cost['events']:,} events"
    parts = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in cost["seconds"].items())
    travels = (cost["user_bytes"] + cost["item_bytes"]) / cost["events"]
    rates = ", ".join(f"{workers} workers {makespan(cost['tasks'], workers):.2f} s" for workers in (1, *_WORKERS))
    yield _microseconds(name, cost)
    yield Figure(f"{name}: travels", travels, "bytes/event", note=f"{cost['messages']:,} messages")
    yield Figure(f"{name}: memory of all that travels and one task", cost["peak_bytes"] / 1e6, "MB", note=parts)
    yield Figure(f"{name}: on 4 workers", cost["events"] / makespan(cost["tasks"], 4), "events/s", note=rates)


def _microseconds(name: str, cost: Cost) -> Figure:
    """Of CPU for an event, by stage; and what travels."""
    parts = ", ".join(f"{stage} {1e6 * s / cost['events']:.2f}" for stage, s in cost["seconds"].items())
    travels = (cost["user_bytes"] + cost["item_bytes"]) / cost["events"]
    note = f"{parts}; {travels:.0f} bytes/event in {cost['messages']:,} messages"
    return Figure(f"{name}: CPU", 1e6 * sum(cost["seconds"].values()) / cost["events"], "us/event", note=note)


def _under_skew(words: str, cost: Cost, even: Cost, workers: int) -> Figure:
    """Throughput beside that of the even log."""
    ratio = makespan(even["tasks"], workers) / makespan(cost["tasks"], workers)
    note = f"longest task of each step: {_longest(cost)}; even: {_longest(even)}"
    return Figure(f"{words}, {workers} workers: throughput / even", ratio, "", _LIMIT, note)


def _longest(cost: Cost) -> str:
    """Of each step, its longest task and all of them, in seconds."""
    return ", ".join(f"{step} {max(tasks):.3f} of {sum(tasks):.2f} s" for step, tasks in cost["tasks"].items())
