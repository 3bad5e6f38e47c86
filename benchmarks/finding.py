"""What each method finds in real logs and a simulated one, at the same budget for a user's whole life."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.finding_logs import LogPairs, all_logs
from benchmarks.finding_methods import DELTA, EPSILON, METHODS, MODES, OURS
from benchmarks.found_pairs import SIZES, columns
from benchmarks.report import Figure, read_results, show_figures, show_table, write_results

# (log, method): at least so many pairs
_WANTED = {
    ("globo_news, hourly", "contributions, replay"): 7800,
    ("globo_news, 10 users merged", "contributions, replay"): 4700,
    ("globo_news, 30 users merged", "contributions, replay"): 3100,
    ("globo_news, hourly", "contributions, replay in rounds"): 11_800,
    ("globo_news, 10 users merged", "contributions, replay in rounds"): 7_500,
    ("globo_news, 30 users merged", "contributions, replay in rounds"): 5_100,
    ("globo_news, hourly", "contributions, nightly in rounds"): 9_800,
    ("globo_news, 30 users merged", "contributions, nightly in rounds"): 4_600,
    ("simulated, 28 days", "contributions, nightly in rounds"): 6_000,
    ("globo_news, hourly", "contributions, stream order"): 6200,
    ("globo_news, 30 users merged", "contributions, stream order"): 2450,
}
_WANTED_RECALL = {("globo_news, hourly", "contributions, replay"): 0.99}  # of pairs with at least 100 users
_NOT_BELOW_PEERS = 0.97

Row = dict[str, Any]


def run(*, quick: bool = False, rounds: int = 3, methods: Sequence[str] = ()) -> list[Figure]:
    """A table for each log, and its pairs as figures.

    methods: only those whose name begins with one of these are run; the others stay as the last run wrote them.
    """
    console = Console(stderr=True)
    before = read_results("finding").get("tables", {}) if methods else {}
    tables: dict[str, list[Row]] = {}
    activity: dict[str, Row] = {}
    figures: list[Figure] = []
    for log in all_logs(quick=quick):
        rows = {row["method"]: row for row in before.get(log.name, [])}
        for method in METHODS:
            if not methods or method.startswith(tuple(methods)):
                rows[method] = _row(log, method, 1 if quick else rounds, console)
        tables[log.name] = [rows[method] for method in METHODS if method in rows]
        activity[log.name] = _activity(log)
        _show(log, tables[log.name])
        figures += _figures(log.name, tables[log.name])
        budget = {"epsilon": EPSILON, "delta": DELTA}
        write_results("finding", figures, **budget, modes=MODES, logs=activity, tables={**before, **tables})
    show_figures(f"Contributions found at epsilon {EPSILON:g}, delta {DELTA:g}", figures)
    return figures


def _row(log: LogPairs, method: str, rounds: int, console: Console) -> Row:
    chosen = METHODS[method](log, np.random.default_rng(1))
    started = time.perf_counter()
    found = [chosen.run() for _ in range(1 if chosen.is_slow else rounds)]
    each = (time.perf_counter() - started) / len(found)
    console.print(f"  {log.name}: {method}: {found[0].pairs:,} pairs; {chosen.note} ({each:.1f} s a run)")
    return {"method": method, "note": chosen.note, "runs": len(found), **columns(log, found)}


def _activity(log: LogPairs) -> Row:
    """Of users: how many pairs (window, item) they have. Of pairs: how many have at least so many users."""
    median, most_active = np.quantile(log.looks, [0.5, 0.99])
    held = {str(size): int((log.holders >= size).sum()) for size in SIZES}
    return {
        "rows": len(log), "users": len(log.looks), "windows": log.horizon,
        "median": float(median), "p99": float(most_active), "held": held,
    }  # fmt: skip


def _figures(log: str, rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        wanted = _WANTED.get((log, row["method"]))
        target = (">=", float(wanted)) if wanted else None
        yield Figure(f"{log}: {row['method']}", row["pairs"], "pairs", target, row["note"])
        recall = _WANTED_RECALL.get((log, row["method"]))
        if recall:
            name = f"{log}: {row['method']}, found of >= 100 users"
            yield Figure(name, row["recall_100"], "%", (">=", recall))
    names = [row["pairs"] for row in rows if row["method"] == "contributions, replay"]
    peers = [row for row in rows if row["method"] not in OURS]
    if not names or not peers:
        return
    peer = max(peers, key=lambda row: row["pairs"])
    name = f"{log}: contributions, replay / best peer"
    yield Figure(name, names[0] / peer["pairs"], "", (">=", _NOT_BELOW_PEERS), peer["method"])


def _show(log: LogPairs, rows: list[Row]) -> None:
    heads = ("method", "pairs", "of looks", *(f">= {size:,}" for size in SIZES), "below T/2", "of nobody", "note")
    cells = []
    for row in rows:
        shares = ["-" if row[f"recall_{size}"] is None else f"{row[f'recall_{size}']:.1%}" for size in SIZES]
        of_looks = f"{row['looks']:.1%}" if "looks" in row else "-"  # of an older run
        numbers = [f"{row['pairs']:,.0f}", of_looks, *shares, f"{row['below_half']:.2%}", f"{row['of_nobody']:.1f}"]
        cells.append((row["method"], *numbers, row["note"]))
    show_table(f"{log.name}: {len(log):,} (user, window, item)", heads, cells, texts=(0, len(heads) - 1))
