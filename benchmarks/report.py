"""Figures with their targets: a table on the terminal, and JSON in ``benchmarks/results``."""

from __future__ import annotations

import dataclasses
import datetime
import json
import operator
import os
import platform
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


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
        return {">=": operator.ge, "<=": operator.le, "<": operator.lt}[relation](self.value, bound)

    @property
    def target_text(self) -> str:
        return f"{self.target[0]} {format_value(self.target[1], self.unit)}" if self.target else ""

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "passed": self.passed}


def show_figures(title: str, figures: Sequence[Figure]) -> None:
    marks = {True: "[green]pass[/]", False: "[bold red]MISSED[/]", None: ""}
    rows = [
        (figure.name, format_value(figure.value, figure.unit), figure.target_text, marks[figure.passed], figure.note)
        for figure in figures
    ]
    show_table(title, ("", "measured", "target", "", "note"), rows, texts=(0, 3, 4))


def show_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], texts: Collection[int] = (0,)) -> None:
    """On the terminal. texts: numbers of the columns that hold no numbers."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place in texts else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(width=None if Console().is_terminal else 150).print(table)


def format_value(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.2%}".replace("%", " %")
    if value != value:
        return "-"
    digits = 0 if abs(value) >= 1000 or value == int(value) else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def read_results(name: str) -> dict[str, Any]:
    """What the last run wrote; empty if there is none."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write_results(name: str, figures: Sequence[Figure], **details: Any) -> Path:
    """Figures, and whatever else is worth keeping, as ``results/NAME.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "benchmark": name,
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "figures": [figure.to_dict() for figure in figures],
        **details,
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path
