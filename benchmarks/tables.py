"""``python -m benchmarks.tables NAME``: tables for docs/benchmarks.md, from the JSON that the benchmark NAME wrote."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.found_pairs import SIZES
from benchmarks.peers import OURS
from benchmarks.report import RESULTS, Figure, format_value


def main(name: str) -> None:
    document = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    print(f"Measured at {document['measured_at']}, {document['cpus']} CPUs.\n")
    if name == "finding":
        lines = _of_finding(document)
    else:
        lines = of_peers(document["rows"]) if name == "peers" else _of_figures(document["figures"])
    print("\n".join(lines))


def _of_finding(document: dict[str, Any]) -> Iterator[str]:
    """All logs side by side, then each with all of its columns."""
    tables, logs = document["tables"], document["logs"]
    yield _row("pairs found", *tables)
    yield _row(*["---"] * (1 + len(tables)))
    methods = [row["method"] for row in next(iter(tables.values()))]
    rows = {log: {row["method"]: row for row in of_log} for log, of_log in tables.items()}
    for method in methods:
        yield _row(method, *(f"{rows[log][method]['pairs']:,.0f}" for log in tables))
    for log, of_log in tables.items():
        about = logs[log]
        yield f"\n{log}: {about['rows']:,} (user, window, item), {about['users']:,} users, {about['windows']} windows;"
        yield f"pairs of a user: median {about['median']:g}, 99 % at most {about['p99']:,.0f}.\n"
        held = [f"≥ {size:,} ({about['held'][str(size)]:,})" for size in SIZES]
        yield _row("", "pairs", *held, "below half the threshold", "held by nobody", "chosen")
        yield _row(*["---"] * (5 + len(SIZES)))
        for row in of_log:
            recalls = [_percent(row[f"recall_{size}"]) for size in SIZES]
            shares = [f"{row['below_half']:.2%}".replace("%", " %"), f"{row['of_nobody']:.1f}"]
            yield _row(row["method"], f"{row['pairs']:,.0f}", *recalls, *shares, row["note"])


def of_peers(rows: list[dict[str, Any]]) -> Iterator[str]:
    """rows: of `peers.Row`. Beside ours on the same log: clock by that of two processes, CPU by that of one. A rest of
    less than a tenth is left out: rounds differ by as much."""
    yield _row("", "events", "clock, s", "without start", "events/s", "without start", "CPU of an event, us",
               "without start", "peak", "published", "clock / ours", "CPU without start / ours")  # fmt: skip
    yield _row(*["---"] * 12)
    by_name = {(row["peer"], row["events"]): row for row in rows}
    for row in rows:
        events, seconds, cpu = row["events"], row["seconds"], row["cpu"]
        rest_seconds, rest_cpu = _rest(row)
        one, two = (by_name[name, events] for name in OURS)
        is_ours, is_sure = row["peer"] in OURS, rest_seconds > seconds / 10
        yield _row(
            row["peer"], f"{events:,}", f"{seconds:.1f}", f"{rest_seconds:.1f}" if is_sure else "-",
            f"{events / seconds:,.0f}", f"{events / rest_seconds:,.0f}" if is_sure else "-",
            f"{1e6 * cpu / events:.2f}", f"{1e6 * rest_cpu / events:.2f}", f"{row['peak_bytes'] / 1e9:.2f} GB",
            "-" if row["published"] is None else f"{row['published']:,}",
            "" if is_ours else f"{seconds / two['seconds']:.2f}",
            "" if is_ours or _rest(one)[1] <= 0 else f"{rest_cpu / _rest(one)[1]:.1f}",
        )  # fmt: skip


def _rest(row: dict[str, Any]) -> tuple[float, float]:
    return row["seconds"] - row["start_seconds"], row["cpu"] - row["start_cpu"]


def _of_figures(figures: list[dict[str, Any]]) -> Iterator[str]:
    yield _row("", "measured", "target", "")
    yield _row(*["---"] * 4)
    for stored in figures:
        figure = Figure(**{field.name: stored[field.name] for field in dataclasses.fields(Figure)})
        yield _row(figure.name, format_value(figure.value, figure.unit), figure.target_text, figure.note)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}".replace("%", " %")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main(sys.argv[1])
