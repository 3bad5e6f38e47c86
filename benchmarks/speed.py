"""Speed of whole replays, each in a process of its own, and of keyed draws.

Rates are events per second of wall clock from the start of the process to its end, imports included; the pipeline's own
time is given beside them. The variants of a comparison run in turn, several times; figures are medians.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks import logs
from benchmarks.processes import OUTPUT, Measurement, medians, numbers_of, run_measured
from benchmarks.report import Figure, show_figures, write_results

_HOUR = 3600
# 100 and 10,000 whole windows: the last 40 minutes of the log are left out.
_RANGE_SECONDS = 1_380_000
_PEER_EVENTS = 1_000_000
_EPSILON_PER_QUERY, _THRESHOLD = 0.0568745, 490  # epsilon 2, delta 1e-9, 3 hits, 384 windows


def run(*, quick: bool = False, full: bool = False) -> list[Figure]:
    console = Console(stderr=True)
    events = 1_000_000 if quick else 10_000_000
    rounds = 1 if quick else 3
    console.print(f"Simulating logs of {events:,} events in {logs.data_folder()}, once ...")
    parquet = logs.simulated_log(events)
    small = logs.simulated_log(events // 10)
    prefix_events = min(events, _PEER_EVENTS)
    prefix = logs.derived_log("prefix", parquet, prefix_events)
    shuffled = logs.derived_log("shuffled", parquet)
    others = {ending: logs.simulated_log(events, ending) for ending in ("avro", "csv", "jsonl")}

    measured: dict[str, list[Measurement]] = {}

    def measure(name: str, module: str, *arguments: str) -> None:
        console.print(f"  {name} ...")
        measured.setdefault(name, []).append(run_measured(module, *arguments))

    for _ in range(rounds):
        measure("parquet", *_replay(parquet))
        measure("peer", "benchmarks.beam_elements", str(prefix), str(_HOUR))
        measure("small", *_replay(small))
        for ending, path in others.items():
            measure(ending, *_replay(path))
        for windows in (100, 10_000):
            measure(f"{windows} windows", *_replay_in_windows(parquet, windows))
            measure(f"{windows} windows, shuffled", *_replay_in_windows(shuffled, windows))
    if full:
        measure("peer, all events", "benchmarks.beam_elements", str(parquet), str(_HOUR))

    results = {name: medians(runs) for name, runs in measured.items()}
    figures = _figures(results, events, prefix_events, rounds)
    figures += _draws(quick)
    if quick:  # the targets are those of the large log
        figures = [dataclasses.replace(figure, target=None) for figure in figures]
    show_figures(f"Speed, {events:,} events", figures)
    write_results("speed", figures, events=events, peer_events=prefix_events, runs=numbers_of(measured))
    return figures


def _replay(log: Path, window: str = "1h", seconds: int = logs.DAYS * 86_400) -> tuple[str, ...]:
    more = ("--charge", "hits", "--processes", "1")
    return logs.replay(log, f"{OUTPUT}.jsonl", *more, window=window, seconds=seconds)


def _replay_in_windows(log: Path, windows: int) -> tuple[str, ...]:
    return _replay(log, f"{_RANGE_SECONDS // windows}s", _RANGE_SECONDS)


def _figures(results: dict[str, Measurement], events: int, prefix_events: int, rounds: int) -> list[Figure]:
    def rate(name: str, count: int = events) -> float:
        return count / results[name].wall_seconds

    def beside(name: str) -> str:
        result = results[name]
        pipeline = f"pipeline {result.pipeline_seconds:.1f} s of " if result.pipeline_seconds else ""
        peak = f"peak {result.peak_bytes / 1e9:.2f} GB"
        return f"{pipeline}{result.wall_seconds:.1f} s, {result.cpu_seconds:.1f} s of CPU, {peak}"

    figures = [
        Figure("Parquet", rate("parquet"), "events/s", (">=", 1e6), f"median of {rounds}; {beside('parquet')}"),
    ]
    peers = {"peer": (prefix_events, f"the first {prefix_events:,} events"), "peer, all events": (events, "same file")}
    for name, (count, log) in peers.items():
        if name in results:
            peer_rate = rate(name, count)
            figures += [
                Figure(f"Beam's element path, {log}", peer_rate, "events/s", None, beside(name)),
                Figure(f"Parquet / Beam's element path, {log}", rate("parquet") / peer_rate, "", (">=", 25)),
            ]
    figures += [
        Figure("Avro (deflate)", rate("avro"), "events/s", (">=", 4e5), beside("avro")),
        Figure("CSV", rate("csv"), "events/s", None, beside("csv")),
        Figure("JSON lines", rate("jsonl"), "events/s", None, beside("jsonl")),
    ]
    per_event = results["parquet"].wall_seconds / (results["small"].wall_seconds * 10)
    in_pipeline = results["parquet"].pipeline_seconds / (results["small"].pipeline_seconds * 10)
    note = f"of the pipeline alone {in_pipeline:.2f}; small: {beside('small')}"
    figures.append(Figure(f"Time per event, {events:,} / {events // 10:,}", per_event, "", ("<=", 1.3), note))
    for order, ending, target in (("", "", ("<=", 3.0)), (", shuffled", ", shuffled", None)):
        many, few = results[f"10000 windows{ending}"], results[f"100 windows{ending}"]
        note = f"{many.wall_seconds:.1f} s / {few.wall_seconds:.1f} s; peak {many.peak_bytes / 1e9:.2f} GB"
        ratio = many.wall_seconds / few.wall_seconds
        figures.append(Figure(f"10,000 windows / 100 windows{order}", ratio, "", target, note))
    return figures


def _draws(quick: bool) -> list[Figure]:
    """Keyed draws per second: the block function and the exact inversion of the discrete Laplace distribution."""
    import numpy as np

    from dp_transforms.core.noise_table import discrete_laplace
    from dp_transforms.core.randomness import StreamKeys

    rows, rounds = (100_000, 3) if quick else (1_000_000, 7)
    keys = StreamKeys(secrets.token_bytes(32), run_id="bench", plan_fingerprint="", stream="bench", threshold=500)
    noise = discrete_laplace(_EPSILON_PER_QUERY)
    hashes = np.frombuffer(secrets.token_bytes(16 * rows), dtype=np.uint64).reshape(-1, 2)
    digests = np.frombuffer(secrets.token_bytes(16 * rows), dtype=np.uint64).reshape(-1, 2)
    # As in a replay: most items are far below the threshold, and about one in a hundred passes the first stage.
    counts = (np.frombuffer(secrets.token_bytes(8 * rows), dtype=np.uint64) >> np.uint64(11)) / 2**53
    margins = _THRESHOLD - np.minimum(5 / np.maximum(counts, 1e-6), 4 * _THRESHOLD).astype(np.int64)

    def one_stage() -> None:
        noise.sample(keys.noise_uniforms(7).of_pairs(hashes, digests))

    def first_stage() -> None:
        noise.passes(keys.pass_uniforms(7).of_pairs(hashes, digests), margins)

    def second_stage() -> None:
        noise.sample_given_pass(keys.noise_uniforms(7).of_pairs(hashes, digests), margins)

    def both_stages() -> None:
        first_stage()
        second_stage()

    def two_stages() -> None:
        passed = noise.passes(keys.pass_uniforms(7).of_pairs(hashes, digests), margins)
        noise.sample_given_pass(keys.noise_uniforms(7).of_pairs(hashes[passed], digests[passed]), margins[passed])

    def rate(draw: Callable[[], None]) -> float:
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            draw()
            seconds.append(time.perf_counter() - started)
        return rows / min(seconds)

    passing = np.mean(noise.passes(keys.pass_uniforms(7).of_pairs(hashes, digests), margins))
    note = f"{rows:,} at once, best of {rounds}, noise scale {1 / _EPSILON_PER_QUERY:.1f}"
    return [
        Figure("Keyed draws, one stage", rate(one_stage), "draws/s", (">=", 3e6), note),
        Figure("Keyed draws, both stages for every item", rate(both_stages), "draws/s", (">=", 3e6), "never so many"),
        Figure("Keyed draws, as a replay", rate(two_stages), "draws/s", None, f"{passing:.1%} pass the first stage"),
        Figure("First stage alone", rate(first_stage), "draws/s", None, "what every item costs"),
        Figure("Second stage alone", rate(second_stage), "draws/s", None, "what a candidate costs, many at once"),
    ]
