"""What a replay finds in real logs, beside one noisy histogram per window at the same lifetime budget."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks.processes import run_measured
from benchmarks.report import Figure, show_figures, write_results

if TYPE_CHECKING:  # imported where they are used: this process stays small for the ones that it measures
    from benchmarks.real_logs import Found, RealLog

_EPSILON, _DELTA, _MAX_ITEMS = 2.0, 1e-9, 3
_MODES = {"hits": 3, "hits-with-counts": 10}  # release: hits per user
# (log, variant, held by at least so many): share found
_TARGETS = {
    ("globo_news", "labels, 3 hits", 500): 0.85,
    ("globo_news", "labels, 3 hits", 1000): 0.99,
    ("globo_news", "counts, 10 hits", 1000): 0.97,
}
_PRECISION_TARGET = 0.99


@dataclasses.dataclass(frozen=True, eq=False)
class _Variant:
    name: str
    runs: list[Found]
    note: str


def run(*, quick: bool = False) -> list[Figure]:
    from benchmarks.real_logs import GLOBO_HOURLY, MOVIES_WEEKLY, read_pairs

    console = Console(stderr=True)
    rounds = 1 if quick else 5
    figures: list[Figure] = list(_thresholds())
    for log in (GLOBO_HOURLY, MOVIES_WEEKLY):
        if not log.path.exists():
            console.print(f"{log.name}: no log at {log.path}; name the folder that has it in SHH_TEST_DATA. Skipped.")
            continue
        console.print(f"{log.name}: {rounds} runs of each ...")
        pairs = read_pairs(log)
        holders = pairs.holders()
        for variant in [*_replays(log, rounds), *_histograms(log, pairs, rounds)]:
            figures += _figures(log.name, variant, holders)
    show_figures(f"Utility at epsilon {_EPSILON:g}, delta {_DELTA:g} for a user's whole life", figures)
    write_results("utility", figures, rounds=rounds)
    return figures


def _thresholds() -> Iterator[Figure]:
    """T by the length of the run, which needs no log: hourly windows of a day, of 16, 90 and 365 days."""
    from benchmarks import histogram
    from dp_transforms.plan.plan import Plan
    from dp_transforms.plan.window_schedule import WindowSchedule

    for windows in (24, 384, 2160, 8760):
        schedule = WindowSchedule.fixed(0, windows * 3600, 3600)
        for mode, hits in _MODES.items():
            plan = Plan.calibrate(epsilon=_EPSILON, delta=_DELTA, schedule=schedule, mode=mode, hits_per_user=hits)
            note = f"noise scale {plan.charged_hits.noise.scale:.1f}"
            yield Figure(f"T for {windows:,} windows, {mode}, {hits} hits", plan.threshold, "users", None, note)
        scale, threshold = histogram.gaussian_scale_and_threshold(_EPSILON, _DELTA, _MAX_ITEMS * windows)
        note = f"noise scale {scale:.1f}"
        yield Figure(f"T for {windows:,} windows, histograms, Gaussian", threshold, "users", None, note)


def _replays(log: RealLog, rounds: int) -> Iterator[_Variant]:
    from benchmarks.real_logs import read_found

    for mode, hits in _MODES.items():
        runs = []
        with tempfile.TemporaryDirectory() as folder:
            for number in range(rounds):
                report = Path(folder) / f"{number}.jsonl"
                arguments = log.replay_arguments(report, "--mode", mode, "--hits-per-user", str(hits))
                run_measured("dp_transforms.cli.main", *arguments)
                runs.append(read_found(log, report))
        yield _Variant(f"{mode}, {hits} hits", runs, f"L = {_MAX_ITEMS}")


def _histograms(log: RealLog, pairs: object, rounds: int) -> Iterator[_Variant]:
    import numpy as np

    from benchmarks import histogram
    from benchmarks.real_logs import Pairs

    assert isinstance(pairs, Pairs)
    random = np.random.default_rng(1)
    counts = histogram.bounded_counts(pairs, _MAX_ITEMS, random)
    for noise, calibrate in (
        ("Gaussian", histogram.gaussian_scale_and_threshold),
        ("Laplace", histogram.laplace_scale_and_threshold),
    ):
        scale, threshold = calibrate(_EPSILON, _DELTA, _MAX_ITEMS * log.windows)
        runs = [histogram.noisy_histograms(counts, noise, scale, threshold, random) for _ in range(rounds)]
        yield _Variant(f"histograms, {noise}", runs, f"L = {_MAX_ITEMS}, scale {scale:.1f}")


def _figures(log_name: str, variant: _Variant, holders: dict[tuple[int, int], int]) -> Iterator[Figure]:
    from benchmarks.real_logs import recall, share_held

    title = f"{log_name}, {variant.name}"
    threshold = variant.runs[0].threshold
    published = statistics.mean(len(found.reported) for found in variant.runs)
    yield Figure(f"{title}: T", threshold, "users", None, f"{variant.note}; {published:,.0f} published")
    for at_least in (500, 1000):
        if max(holders.values()) >= at_least:
            shares = [recall(found, holders, at_least) for found in variant.runs]
            yield _share(f"{title}: found of >= {at_least}", shares, _TARGETS.get((log_name, variant.name, at_least)))
    shares = [share_held(found, holders, 0.9 * threshold) for found in variant.runs]
    has_target = any((log_name, variant.name) == key[:2] for key in _TARGETS)
    yield _share(f"{title}: held by >= 0.9 T", shares, _PRECISION_TARGET if has_target else None)


def _share(title: str, shares: list[float], target: float | None) -> Figure:
    spread = f"{min(shares):.2%} .. {max(shares):.2%} in {len(shares)} runs"
    return Figure(title, statistics.mean(shares), "%", None if target is None else (">=", target), spread)
