"""The result of a privacy audit: what the reports of all modes share, in words, as tables and as JSON."""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Sequence
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dp_transforms.plan.plan import Plan

FORMAT_VERSION = 1


class AuditReport(abc.ABC):
    """What was found of a plan."""

    plan: Plan

    @property
    @abc.abstractmethod
    def violations(self) -> list[str]:
        """A sentence for each claim that does not hold."""

    @abc.abstractmethod
    def plan_text(self) -> str:
        """The plan in a few words."""

    @abc.abstractmethod
    def exact_table(self) -> Table:
        """What is attained, against the claims."""

    @abc.abstractmethod
    def worst_texts(self) -> list[str]:
        """What attains most."""

    @abc.abstractmethod
    def not_tried(self) -> list[str]:
        """What a privacy audit of this plan says nothing about."""

    @abc.abstractmethod
    def record_of_parts(self) -> dict[str, Any]:
        """All numbers, for JSON."""

    def print(self, console: Console) -> None:
        """The report for people."""
        console.print(Text(self.plan.guarantee, style="bold"), soft_wrap=True)
        console.print(self.plan_text(), soft_wrap=True)
        console.print(self.exact_table())
        for text in self.worst_texts():
            console.print(text, soft_wrap=True)
        console.print(Text("\nNot tried:", style="bold"))
        for limit in self.not_tried():
            console.print(f"- {limit}.", soft_wrap=True)
        console.print()
        console.print(_verdict(self.violations), soft_wrap=True)

    def record(self) -> dict[str, Any]:
        """All numbers. What is unbounded is null."""
        violations = self.violations
        return {
            "format_version": FORMAT_VERSION,
            "verdict": "violated" if violations else "passed",
            "violations": violations,
            "plan": json.loads(self.plan.to_json()),
            **self.record_of_parts(),
            "not_tried": self.not_tried(),
        }


def table_of(title: str, columns: Sequence[str] = ()) -> Table:
    """A table for rows that begin with a name. columns: titles of the numbers behind it; without any, no header."""
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE, pad_edge=False, show_header=bool(columns))
    if columns:
        table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _verdict(violations: Sequence[str]) -> Text:
    if violations:
        return Text("VIOLATED: " + "; ".join(violations) + ".", style="bold red")
    return Text("PASSED: nothing that was computed exceeds a claim of this plan.", style="bold green")


def alarm(is_wrong: bool) -> str | None:
    """The style of a row of a table."""
    return "bold red" if is_wrong else None


def add_claim(table: Table, name: str, claimed: float, attained: float, *more: str, error: float = 0.0) -> None:
    """A row of what is attained against what is claimed, and a ratio. more: further cells. error: relative.

    Nothing is claimed, nor attained, of items that one user holds alone in a public domain.
    """
    if not claimed:
        table.add_row(name, "0", "0", "", *more)
        return
    ratio = "unbounded" if math.isinf(attained) else f"{math.floor(1000 * attained / claimed) / 1000:.3f}"
    style = alarm(attained > claimed * (1 + error))
    table.add_row(name, f"{claimed:.4g}", f"{attained:.4g}", ratio, *more, style=style)


def finite(value: float) -> float | None:
    """As JSON can hold it."""
    return value if math.isfinite(value) else None


def rounded_down(epsilon: float) -> str:
    """Four decimals, more if it is very small."""
    if not math.isfinite(epsilon):
        return "unbounded"
    if epsilon < 0.01:
        return f"{epsilon * (1 - 5e-4):.3g}"
    return f"{math.floor(1e4 * epsilon) / 1e4:.4f}"
