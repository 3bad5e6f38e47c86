"""What the reports of both privacy audits share: their tables, their verdict, and how they round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import rich.box
from rich.table import Table
from rich.text import Text


def table_of(title: str, columns: Sequence[str] = ()) -> Table:
    """A table for rows that begin with a name. columns: titles of the numbers behind it; without any, no header."""
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE, pad_edge=False, show_header=bool(columns))
    if columns:
        table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def verdict(violations: Sequence[str], *, is_sampled: bool) -> Text:
    if violations:
        return Text("VIOLATED: " + "; ".join(violations) + ".", style="bold red")
    what = "nothing that was computed or sampled" if is_sampled else "nothing that was computed"
    return Text(f"PASSED: {what} exceeds a claim of this plan.", style="bold green")


def rounded_down(epsilon: float) -> str:
    """Four decimals, more if it is very small."""
    if not math.isfinite(epsilon):
        return "unbounded"
    if epsilon < 0.01:
        return f"{epsilon * (1 - 5e-4):.3g}"
    return f"{math.floor(1e4 * epsilon) / 1e4:.4f}"
