"""What each method finds in real logs and a simulated one, at the same budget for a user's whole life.

Methods that need a cap or another number get the best one for the log, found on the log itself: their user would have
to know it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import found_names, peers_histograms, peers_pipeline_dp, peers_set_union
from benchmarks.finding_logs import LogPairs, all_logs
from benchmarks.found_pairs import SIZES, FoundPairs, columns
from benchmarks.report import Figure, show_figures, write_results
from dp_transforms.accounting.names_plan import NamesPlan
from dp_transforms.accounting.release_plan import ReleasePlan
from dp_transforms.window_schedule import WindowSchedule

_EPSILON, _DELTA = 2.0, 1e-9
_MODES: dict[str, dict[str, Any]] = {
    "names": found_names.LOOKS_ALONE,
    "labels": {"hits_per_user": 3},
    "counts": {"hits_per_user": 10},
}
_CAPS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 512)
_CAPS_OF_WINDOW = (1, 2, 3, 5)
_WIDER = (1.0005, 1.002, 1.005, 1.01, 1.02, 1.05)
_MOST_LOOKS = (10, 30, 100, 300, 1000, 3000)
_ALPHAS = (1.0, 3.0, 5.0, 8.0)
_ROUNDS = 3
# (log, method): at least so many pairs
_WANTED = {
    ("globo_news, hourly", "names, replay"): 7800,
    ("globo_news, 10 users merged", "names, replay"): 4700,
    ("globo_news, 30 users merged", "names, replay"): 3100,
    ("globo_news, hourly", "names, stream order"): 6200,
    ("globo_news, 30 users merged", "names, stream order"): 2450,
}
_WANTED_RECALL = {("globo_news, hourly", "names, replay"): 0.99}  # of pairs with at least 100 users
_NOT_BELOW_PEERS = 0.97
_OURS = ("names, replay", "names, stream order", "labels", "counts")

Row = dict[str, Any]


def run(*, quick: bool = False, rounds: int = _ROUNDS) -> list[Figure]:
    """A table for each log, and its pairs as figures."""
    console = Console(stderr=True)
    rounds = 1 if quick else rounds
    tables: dict[str, list[Row]] = {}
    activity: dict[str, Row] = {}
    figures: list[Figure] = []
    for log in all_logs(quick=quick):
        rows = tables[log.name] = []
        activity[log.name] = _activity(log)
        for method, note, found in _methods(log, rounds, console):
            rows.append({"method": method, "note": note, "runs": len(found), **columns(log, found)})
        _show(log, rows)
        figures += _figures(log.name, rows)
        budget = {"epsilon": _EPSILON, "delta": _DELTA}
        write_results("finding", figures, **budget, rounds=rounds, modes=_MODES, logs=activity, tables=tables)
    show_figures(f"Pairs found at epsilon {_EPSILON:g}, delta {_DELTA:g}", figures)
    return figures


def _activity(log: LogPairs) -> Row:
    """Of users: how many pairs (window, item) they have. Of pairs: how many have at least so many users."""
    median, most_active = np.quantile(log.looks, [0.5, 0.99])
    held = {str(size): int((log.holders >= size).sum()) for size in SIZES}
    return {
        "rows": len(log), "users": len(log.looks), "windows": log.horizon,
        "median": float(median), "p99": float(most_active), "held": held,
    }  # fmt: skip


def _methods(log: LogPairs, rounds: int, console: Console) -> Iterator[tuple[str, str, list[FoundPairs]]]:
    """Each method: its name, a note with what was chosen, and its runs."""
    random = np.random.default_rng(1)

    def repeat(name: str, note: str, run_once: Callable[[], FoundPairs], times: int = rounds) -> Any:
        started = time.perf_counter()
        found = [run_once() for _ in range(times)]
        each = (time.perf_counter() - started) / times
        console.print(f"  {log.name}: {name}: {found[0].pairs:,} pairs; {note} ({each:.1f} s a run)")
        return name, note, found

    plan = _plan(log, "names")
    assert isinstance(plan, NamesPlan)
    note = f"p = {plan.shape:g}"
    yield repeat("names, replay", note, lambda: found_names.replay(log, plan))
    yield repeat("names, stream order", note, lambda: found_names.stream_order(log, plan))
    for mode in ("labels", "counts"):
        charged = _plan(log, mode)
        note = f"T = {charged.threshold:,}"
        yield repeat(mode, note, lambda plan=charged: found_names.replay(log, plan))
    yield from _set_unions(log, random, repeat, plan)
    yield from _histograms(log, random, repeat)
    rank = log.rank_in_user(random)
    choice = peers_pipeline_dp.best_selection(log, rank, _EPSILON, _DELTA, _CAPS)
    note = f"{choice.strategy.lower().replace('_', ' ')}, cap {choice.cap}"
    run_once = lambda: peers_pipeline_dp.select_partitions(log, choice, _EPSILON, _DELTA)  # noqa: E731
    yield repeat("PipelineDP select_partitions", note, run_once, 1)


def _plan(log: LogPairs, mode: str) -> ReleasePlan:
    end = log.start_seconds + log.horizon * log.window_seconds
    schedule = WindowSchedule.fixed(log.start_seconds, end, log.window_seconds)
    return ReleasePlan.calibrate(epsilon=_EPSILON, delta=_DELTA, schedule=schedule, release=mode, **_MODES[mode])


def _set_unions(log: LogPairs, random: np.random.Generator, repeat: Any, plan: NamesPlan) -> Iterator[Any]:
    def weighted(most: int) -> FoundPairs:
        return peers_set_union.weighted_gaussian(log, _EPSILON, _DELTA, most, random)

    def known(most: int) -> FoundPairs:
        return peers_set_union.weighted_gaussian_known(
            log, _EPSILON, _DELTA, most, random,
            known_error=_MODES["names"]["known_error"], forget_after=plan.forget_after,
        )  # fmt: skip

    def policy(choice: tuple[int, float]) -> FoundPairs:
        return peers_set_union.policy_gaussian(log, _EPSILON, _DELTA, *choice, random)

    most = max(_MOST_LOOKS, key=lambda most: weighted(most).pairs)
    yield repeat("weighted Gaussian", f"at most {most:,} pairs of a user", lambda: weighted(most))
    most = max(_MOST_LOOKS, key=lambda most: known(most).pairs)
    yield repeat("weighted Gaussian, known items", f"at most {most:,} pairs of a user", lambda: known(most))
    choices = itertools.product(_around(most), _ALPHAS)
    choice = max(choices, key=lambda choice: policy(choice).pairs)
    note = f"at most {choice[0]:,} pairs of a user, alpha {choice[1]:g}"
    yield repeat("policy Gaussian", note, lambda: policy(choice), 1)


def _around(most: int) -> tuple[int, ...]:
    """The neighbours of a choice of `_MOST_LOOKS`, and itself."""
    place = _MOST_LOOKS.index(most)
    return _MOST_LOOKS[max(0, place - 1) : place + 2]


def _histograms(log: LogPairs, random: np.random.Generator, repeat: Any) -> Iterator[Any]:
    by_user, by_window = log.rank_in_user(random), log.rank_in_window(random)
    for name, rank, caps, windows in (
        ("Gaussian histogram per window", by_window, _CAPS_OF_WINDOW, log.horizon),
        ("Gaussian histogram, cap for the run", by_user, _CAPS, 1),
    ):
        best = max(
            (peers_histograms.expected_gaussian(counts, *numbers), cap, wider)
            for cap in caps
            for counts in [peers_histograms.counts_under_cap(log, rank, cap)]
            for wider in _WIDER
            for numbers in [peers_histograms.exact_threshold(_EPSILON, _DELTA, cap * windows, wider)]
        )
        cap = best[1]
        sigma, threshold = peers_histograms.exact_threshold(_EPSILON, _DELTA, cap * windows, best[2])
        counts = peers_histograms.counts_under_cap(log, rank, cap)
        gain = 1 - peers_histograms.correlated_gain(cap * windows, int((counts > 0).sum()))
        note = f"cap {cap}, T = {threshold:,.1f}; correlated noise could be at most {gain:.2%} less"
        yield repeat(
            name, note,
            lambda n=counts, s=sigma, t=threshold: peers_histograms.gaussian_histogram(log, n, s, t, random),
        )  # fmt: skip
    cap, counts, threshold = max(
        (
            (cap, counts, peers_histograms.laplace_threshold(_EPSILON, _DELTA, cap))
            for cap in _CAPS
            for counts in [peers_histograms.counts_under_cap(log, by_user, cap)]
        ),
        key=lambda each: peers_histograms.expected_laplace(each[1], each[0] / _EPSILON, each[2]),
    )
    note = f"cap {cap}, T = {threshold:,.1f}"
    run_once = lambda: peers_histograms.laplace_histogram(log, counts, cap / _EPSILON, threshold, random)  # noqa: E731
    yield repeat("Laplace histogram, cap for the run", note, run_once)


def _figures(log: str, rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        wanted = _WANTED.get((log, row["method"]))
        target = (">=", float(wanted)) if wanted else None
        yield Figure(f"{log}: {row['method']}", row["pairs"], "pairs", target, row["note"])
        recall = _WANTED_RECALL.get((log, row["method"]))
        if recall:
            name = f"{log}: {row['method']}, found of >= 100 users"
            yield Figure(name, row["recall_100"], "%", (">=", recall))
    names = next(row["pairs"] for row in rows if row["method"] == "names, replay")
    peer = max((row for row in rows if row["method"] not in _OURS), key=lambda row: row["pairs"])
    yield Figure(
        f"{log}: names, replay / best peer", names / peer["pairs"], "", (">=", _NOT_BELOW_PEERS), peer["method"]
    )


def _show(log: LogPairs, rows: list[Row]) -> None:
    table = Table(title=f"{log.name}: {len(log):,} (user, window, item)", title_justify="left", title_style="bold")
    for heading in ("method", "pairs", *(f">= {size:,}" for size in SIZES), "below T/2", "of nobody", "note"):
        table.add_column(heading, justify="left" if heading in ("method", "note") else "right")
    for row in rows:
        shares = ["-" if row[f"recall_{size}"] is None else f"{row[f'recall_{size}']:.1%}" for size in SIZES]
        numbers = [f"{row['pairs']:,.0f}", *shares, f"{row['below_half']:.2%}", f"{row['of_nobody']:.1f}"]
        table.add_row(row["method"], *numbers, row["note"])
    Console(width=None if Console().is_terminal else 170).print(table)
