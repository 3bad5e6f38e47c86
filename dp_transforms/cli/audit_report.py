"""The result of a privacy audit: what the reports of all modes share, in words, as tables and as JSON."""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dp_transforms.audit.payments import PaymentAudit
from dp_transforms.audit.statistics import FALSE_ALARM, SampledAudit
from dp_transforms.plan.plan import Plan

FORMAT_VERSION = 1


class SampledParts(NamedTuple):
    """What is particular to the sampled runs of a mode.

    note: how they differ from those of the plan. event: what they count, agreement: what the p-value is of, in words.
    adds_user: whether the event is likelier with the user. stream, of_event, of_tests: records for JSON.
    """

    note: str
    event: str
    agreement: str
    adds_user: bool
    stream: dict[str, Any]
    of_event: dict[str, Any]
    of_tests: dict[str, Any]


class AuditReport(abc.ABC):
    """What was found of a plan. Without `sampled` the real code was not run."""

    plan: Plan
    payments: PaymentAudit | None = None
    sampled: SampledAudit[Any] | None = None

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
        """The plan, its claims and all numbers but the sampled ones, for JSON."""

    @abc.abstractmethod
    def sampled_parts(self, sampled: SampledAudit[Any]) -> SampledParts:
        """Of its design."""

    def print(self, console: Console) -> None:
        """The report for people."""
        console.print(Text(self.plan.guarantee, style="bold"), soft_wrap=True)
        console.print(self.plan_text(), soft_wrap=True)
        console.print(self.exact_table())
        for text in self.worst_texts():
            console.print(text, soft_wrap=True)
        if self.payments is not None:
            console.print(_payments_table(self.payments))
        if self.sampled is not None:
            console.print(self._sampled_table(self.sampled))
            console.print(self.sampled_parts(self.sampled).note, soft_wrap=True)
        else:
            console.print("The real code was not run (--runs 0).")
        console.print(Text("\nNot tried:", style="bold"))
        for limit in self.not_tried():
            console.print(f"- {limit}.", soft_wrap=True)
        console.print()
        console.print(_verdict(self.violations, is_sampled=self.sampled is not None), soft_wrap=True)

    def record(self) -> dict[str, Any]:
        """All numbers. What is unbounded is null."""
        violations = self.violations
        return {
            "format_version": FORMAT_VERSION,
            "verdict": "violated" if violations else "passed",
            "violations": violations,
            "plan": json.loads(self.plan.to_json()),
            **self.record_of_parts(),
            "sampled": None if self.sampled is None else self._sampled_record(self.sampled),
            "not_tried": self.not_tried(),
        }

    def _sampled_table(self, sampled: SampledAudit[Any]) -> Table:
        parts = self.sampled_parts(sampled)
        table = table_of(f"Sampled: {sampled.design.runs:,} runs of the real code in each world")
        confidence = f"with {100 * sampled.confidence:g} % confidence"
        table.add_row("epsilon is at least", f"{rounded_down(sampled.epsilon)}, {confidence}, of {self.plan.epsilon:g}")
        table.add_row("to be expected of so many runs", rounded_down(sampled.design.expected_epsilon))
        for world, seen, expected in _worlds(sampled, parts.adds_user):
            table.add_row(f"{parts.event}, {world} the user", f"{seen:,}; {expected:,.0f} expected")
        p_value = f"p = {sampled.p_value:.2g}; alarm below {FALSE_ALARM:g}"
        table.add_row(parts.agreement, p_value, style=alarm(sampled.p_value < FALSE_ALARM))
        return table

    def _sampled_record(self, sampled: SampledAudit[Any]) -> dict[str, Any]:
        parts = self.sampled_parts(sampled)
        worlds = _worlds(sampled, parts.adds_user)
        seen = {f"seen_{world}_user": seen for world, seen, _ in worlds}
        expected = {f"expected_{world}_user": expected for world, _, expected in worlds}
        return {
            "runs_in_each_world": sampled.design.runs,
            "stream": parts.stream,
            "event": {**parts.of_event, **seen, **expected},
            "epsilon_lower_bound": sampled.epsilon,
            "confidence": sampled.confidence,
            "expected_lower_bound": sampled.design.expected_epsilon,
            "fit": {"p_value": sampled.p_value, "false_alarm": FALSE_ALARM, **parts.of_tests},
        }


def _worlds(sampled: SampledAudit[Any], adds_user: bool) -> list[tuple[str, int, float]]:
    """The world in which the event is likelier, and the other one: how often it was seen, and was to be expected."""
    design, names = sampled.design, ("with", "without") if adds_user else ("without", "with")
    return [(names[0], sampled.p_seen, design.runs * design.p), (names[1], sampled.q_seen, design.runs * design.q)]


def _payments_table(payments: PaymentAudit) -> Table:
    table = table_of(f"Payments: {payments.users:,} users with {payments.looks:,} pairs, through the real code")
    shares = {
        "a replay": payments.replay_share,
        "a stream": payments.stream_share,
        "a run in parts": payments.parts_share,
    }
    for name, share in ((name, share) for name, share in shares.items() if share is not None):
        text = f"{math.floor(1e4 * share) / 1e4:.4f} of a purse" if share <= 1 else f"{share:.4f} purses"
        table.add_row(f"most that a user spends in {name}", text, style=alarm(share > 1))
    changed = any("events of others" in text for text in payments.violations)
    table.add_row("weights that change with the events of others", "some" if changed else "0", style=alarm(changed))
    return table


def table_of(title: str, columns: Sequence[str] = ()) -> Table:
    """A table for rows that begin with a name. columns: titles of the numbers behind it; without any, no header."""
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE, pad_edge=False, show_header=bool(columns))
    if columns:
        table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _verdict(violations: Sequence[str], *, is_sampled: bool) -> Text:
    if violations:
        return Text("VIOLATED: " + "; ".join(violations) + ".", style="bold red")
    what = "nothing that was computed or sampled" if is_sampled else "nothing that was computed"
    return Text(f"PASSED: {what} exceeds a claim of this plan.", style="bold green")


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
