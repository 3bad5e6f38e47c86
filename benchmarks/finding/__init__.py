"""What each method finds in real logs and a simulated one, at the same budget for a user's whole life."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.finding.logs import Found, Log, all_logs
from benchmarks.finding.methods import DELTA, EPSILON, OURS, PEERS, Method
from benchmarks.report import Figure, read_results, show_figures, write_results

_LEAST_PAIRS = {
    ("globo", "contributions, replay in one round"): 7_800,
    ("globo", "contributions, replay in rounds"): 12_000,
    ("globo", "contributions, nightly parts in rounds"): 9_800,
    ("globo", "contributions, stream order"): 8_000,
    ("simulated", "contributions, nightly parts in rounds"): 6_000,
}
_HELD_BY_MANY = 100

Row = dict[str, Any]


def run(*, runs: int, methods: Sequence[str] = ()) -> list[Figure]:
    """A table for docs/benchmarks.md, and the pairs of each log and method as figures.

    methods: only those whose name begins with one of these are run; the others stay as the last run wrote them.
    """
    before = read_results("finding").get("tables", {}) if methods else {}
    tables: dict[str, dict[str, Row]] = {}
    figures: list[Figure] = []
    for log in all_logs():
        rows = dict(before.get(log.name, {}))
        for name, method in {**OURS, **PEERS}.items():
            if not methods or name.startswith(tuple(methods)):
                rows[name] = _row(log, name, method, runs)
        tables[log.name] = rows
        for name, row in rows.items():
            least = _LEAST_PAIRS.get((log.name, name))
            figures.append(
                Figure(f"{log.name}: {name}", row["pairs"], "pairs", (">=", least) if least else None, row["note"])
            )
        write_results("finding", figures, epsilon=EPSILON, delta=DELTA, tables={**before, **tables})
    show_figures(f"Pairs found at epsilon {EPSILON:g}, delta {DELTA:g}", figures)
    print("\n".join(_markdown(tables)))
    return figures


def _row(log: Log, name: str, method: Method, runs: int) -> Row:
    """Means over runs. percent: of the pairs that many users hold, how many are found."""
    chosen = method(log, np.random.default_rng(1))
    started = time.perf_counter()
    found = [chosen.run() for _ in range(1 if chosen.is_slow else runs)]
    seconds = (time.perf_counter() - started) / len(found)
    row = {
        "pairs": statistics.mean(map(len, found)),
        "percent": statistics.mean(_percent_of_many(log, each) for each in found),
        "of_nobody": statistics.mean(each.of_nobody for each in found),
        "runs": len(found),
        "note": chosen.note,
    }
    print(f"{log.name}: {name}: {row['pairs']:,.0f} pairs; {chosen.note}; {seconds:.1f} s a run", flush=True)
    return row


def _percent_of_many(log: Log, found: Found) -> float:
    return 100 * float(found.pairs[log.holders >= _HELD_BY_MANY].mean())


def _markdown(tables: dict[str, dict[str, Row]]) -> Iterator[str]:
    yield f"| pairs; percent | {' | '.join(tables)} |"
    yield "|---" * (1 + len(tables)) + "|"
    for name in (*OURS, *PEERS):
        rows = [rows.get(name) for rows in tables.values()]
        cells = [f"{row['pairs']:,.0f}; {row['percent']:.1f}" if row else "-" for row in rows]
        yield f"| {name} | {' | '.join(cells)} |"
