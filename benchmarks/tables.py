"""``python -m benchmarks.tables NAME``: tables for docs/benchmarks.md, from the JSON that the benchmark NAME wrote."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.found_pairs import SIZES
from benchmarks.report import RESULTS, Figure, format_value


def main(name: str) -> None:
    document = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    print(f"Measured at {document['measured_at']}, {document['cpus']} CPUs.\n")
    lines = _of_finding(document) if name == "finding" else _of_figures(document["figures"])
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
