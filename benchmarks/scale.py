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
from benchmarks.skewed_logs import KINDS, skewed_log
from benchmarks.stage_costs import makespan

_HOUR = 3600
_EVENTS_PER_SHARD = 500_000
_LEAST_SHARDS = 8
_AS_AT_HOME = 0
_SIZES, _LARGE = (1_000_000, 3_000_000, 10_000_000), (30_000_000, 100_000_000)
_MIDDLE, _SMALL = 3_000_000, 100_000
_SMALL_GROUP = 10_000
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

    def stages(
        self,
        name: str,
        log: Path,
        window: int = _HOUR,
        shards: int | None = None,
        mode: str = "looks",
        workers: int = 1,
    ) -> Cost:
        """The round that took less CPU. workers: so many the log is cut for."""
        if shards is None:
            shards = max(_LEAST_SHARDS, -(-logs.rows_of(log) // _EVENTS_PER_SHARD))
        words = (str(log), str(window), str(shards), mode, str(workers))
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


def _shards(part: _Part) -> Iterator[Figure]:
    for shards in (8, 64, 512):
        name = f"{part.middle:,} events in {shards} shards"
        yield _microseconds(name, part.stages(name, logs.simulated_log(part.middle), shards=shards))


def _formats(part: _Part) -> Iterator[Figure]:
    """Logs that come in small pieces."""
    for ending in ("jsonl", "csv", "avro"):
        for shards in (8, 64):
            name = f"{part.middle:,} events as {ending} in {shards} shards"
            yield _microseconds(name, part.stages(name, logs.simulated_log(part.middle, ending), shards=shards))
    small = logs.derived_log("grouped", logs.simulated_log(part.middle), _SMALL_GROUP)
    for shards in (8, 64):
        name = f"{part.middle:,} events in row groups of {_SMALL_GROUP:,}, {shards} shards"
        yield _microseconds(name, part.stages(name, small, shards=shards))


def _windows(part: _Part) -> Iterator[Figure]:
    for window, words in ((86_400, "16 windows"), (_HOUR, "384 windows"), (138, "10,017 windows")):
        name = f"{part.middle:,} events, {words}"
        yield _microseconds(name, part.stages(name, logs.simulated_log(part.middle), window))


def _shapes(part: _Part) -> Iterator[Figure]:
    """Other numbers of users and items."""
    for users, items in ((0.01, 50_000), (0.1, 50_000), (1.0, 50_000), (0.1, 500), (0.1, 1_000_000)):
        log = logs.simulated_log(part.middle, users_per_event=users, items=items)
        name = f"{part.middle:,} events, {int(part.middle * users):,} users, {items:,} items"
        yield _microseconds(name, part.stages(name, log))


def _skew(part: _Part) -> Iterator[Figure]:
    even = logs.simulated_log(part.middle)
    for workers in _WORKERS:
        costs = {
            kind: part.stages(f"skew: {kind}, {workers} workers", skewed_log(kind, even), workers=workers)
            for kind in KINDS
        }
        for kind, words in KINDS.items():
            if kind != "even":
                yield _under_skew(f"names, {words}", costs[kind], costs["even"], workers)


def _monitored_skew(part: _Part) -> Iterator[Figure]:
    """An item that everybody holds, in the modes where a shard of items has all holders of its items."""
    even = logs.simulated_log(part.middle)
    for mode in ("hits", "hits-with-counts"):
        for window, words in ((_HOUR, "384 windows"), (logs.DAYS * 86_400, "one window")):
            costs = {
                kind: part.stages(f"{mode}, {words}: {kind}", skewed_log(kind, even), window, _AS_AT_HOME, mode=mode)
                for kind in ("even", "one item")
            }
            name = f"{mode}, {words}, {KINDS['one item']}"
            yield _microseconds(f"{mode}, {words}, even", costs["even"])
            yield _microseconds(name, costs["one item"])
            for workers in _WORKERS:
                yield _under_skew(name, costs["one item"], costs["even"], workers)


def _monitor(part: _Part) -> Iterator[Figure]:
    for mode, holders in (("hits-with-counts", 5000), ("hits-with-counts", 1000), ("hits", 550)):
        stage = part.monitor(mode, holders)
        note = f"{stage['charged']:,} of {stage['held']:,} pairs in candidates were charged, {stage['seconds']:.2f} s"
        rate = stage["held"] / stage["seconds"]
        yield Figure(f"monitor of {mode}, {holders:,} holders: pairs in candidates", rate, "pairs/s", note=note)


_PARTS: dict[str, Callable[[_Part], Iterator[Figure]]] = {
    "sizes": _sizes,
    "large": _large,
    "shards": _shards,
    "formats": _formats,
    "windows": _windows,
    "shapes": _shapes,
    "skew": _skew,
    "monitored_skew": _monitored_skew,
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
