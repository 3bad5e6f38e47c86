"""Figures with their targets: a table on the terminal, and JSON in ``benchmarks/results``."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import operator
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_RESULTS = Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured number. target: ``(">=", 1e6)``, ``("<=", 1.3)``, or None where it is only reported."""

    name: str
    value: float
    unit: str = ""
    target: tuple[str, float] | None = None
    note: str = ""

    @property
    def passed(self) -> bool | None:
        if self.target is None:
            return None
        relation, bound = self.target
        return {">=": operator.ge, "<=": operator.le}[relation](self.value, bound)


def show_figures(title: str, figures: Sequence[Figure]) -> None:
    marks = {True: "[green]pass[/]", False: "[bold red]MISSED[/]", None: ""}
    table = Table(title=title, title_justify="left", title_style="bold")
    for head in ("", "measured", "target", "", "note"):
        table.add_column(head, justify="right" if head in ("measured", "target") else "left", overflow="fold")
    for figure in figures:
        target = f"{figure.target[0]} {_shown(figure.target[1], figure.unit)}" if figure.target else ""
        table.add_row(figure.name, _shown(figure.value, figure.unit), target, marks[figure.passed], figure.note)
    Console(width=None if Console().is_terminal else 150).print(table)


def read_results(name: str) -> dict[str, Any]:
    """What the last run wrote; empty if there is none."""
    path = _RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write_results(name: str, figures: Sequence[Figure], **details: Any) -> None:
    """Figures, and whatever else is worth keeping, as ``results/NAME.json``."""
    _RESULTS.mkdir(exist_ok=True)
    document = {
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "figures": [{**dataclasses.asdict(figure), "passed": figure.passed} for figure in figures],
        **details,
    }
    (_RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _shown(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "-"
    digits = 0 if abs(value) >= 1000 or value == int(value) else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f} {unit}".strip()
