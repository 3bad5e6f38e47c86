"""What browsers get of a ledger: a page of its budgets and runs, and a message once they have changed.

It is for the operator. A ledger holds no event, no user id and no label, but it names runs and people, and when what
was done; no report tells this. What is derived from a log or a key is left out: fingerprints.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import json
import secrets
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from dp_transforms.plan.lifetime_cost import BASIC, BudgetRule, from_epsilon_units
from dp_transforms.runs.ledger import Balance, Ledger
from dp_transforms.runs.ledger.processes import is_gone
from dp_transforms.runs.records import Part, Run, Status
from dp_transforms.views.ledger_tables import RunWithParts, status_of, windows_done
from dp_transforms.views.page.html_text import ServedFile, asset, data_block, escaped, served_document
from dp_transforms.views.report_words import shown_text
from dp_transforms.views.serving.live_view import Followed, View, event_bytes, packed
from dp_transforms.views.time_axis import local_text

_MOST_RUNS = 500  # of a population
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_HEADS = ["run", "stream", "range", "windows", "status", "epsilon planned", "reserved by", "reserved at"]


@functools.cache
def ledger_files() -> tuple[ServedFile, ...]:
    """The style and the scripts of the page."""
    return tuple(ServedFile.of(name, asset(name)) for name in ("page.css", "connection.js", "ledger.js"))


class LiveLedger(Followed):
    """Reads a ledger again and again."""

    def __init__(self, place: str, zone: datetime.tzinfo) -> None:
        """Reads it for the first time. Raises UserError if there is no ledger."""
        self._zone = zone
        self._place = place
        self._told: tuple[str, list[dict[str, Any]]] = self._read()
        self._epoch = secrets.token_hex(8)
        self.view = self._view(0, [])

    def files(self) -> tuple[ServedFile, ...]:
        return ledger_files()

    def read(self) -> bool:
        found = self._read()
        if found == self._told:
            return False
        self._told = found
        number = self.view.last + 1
        self.view = self._view(number, [event_bytes("ledger", json.dumps(found[1]), f"{self._epoch}.{number}")])
        return True

    def _read(self) -> tuple[str, list[dict[str, Any]]]:
        ledger = Ledger.open(self._place, create=False)
        balances, runs = ledger.balances(), ledger.runs()
        by_population: dict[str, list[RunWithParts]] = {}
        for each in runs:
            by_population.setdefault(each[0].population, []).append(each)
        shown = [self._population(each, by_population.get(each.population.name, [])) for each in balances]
        return f"The ledger {shown_text(ledger.name)}.", shown

    def _population(self, balance: Balance, runs: Sequence[RunWithParts]) -> dict[str, Any]:
        rule, number = balance.population.rule, len(runs)
        declared = self._time(balance.population.declared_at)
        charged = f"{balance.runs:,} {'is' if balance.runs == 1 else 'are'} charged"
        return {
            "name": shown_text(balance.population.name),
            "about": f"Declared {declared}; {charged}. {_adding_up(rule)}",
            "budgets": [
                _budget("epsilon", balance.spent_epsilon, balance.max_epsilon, balance.left_epsilon),
                _budget("delta", balance.spent_delta, balance.max_delta, balance.left_delta),
            ],
            "heads": [*_HEADS[:-1], f"{_HEADS[-1]} ({self._zone})"],
            "runs": [self._run(*each) for each in reversed(runs[-_MOST_RUNS:])],
            "more": f"And {number - _MOST_RUNS:,} runs before these." if number > _MOST_RUNS else "",
        }

    def _run(self, run: Run, parts: Sequence[Part]) -> list[str]:
        return [
            shown_text(run.run_id),
            shown_text(run.stream or "-"),
            f"{self._time(run.range_start)} to {self._time(run.range_end)}",
            f"{windows_done(parts):,} of {run.horizon:,}",
            _status(run, parts),
            short_amount(from_epsilon_units(run.plan_epsilon)),
            shown_text(run.who),
            self._time(run.reserved_at),
        ]

    def _time(self, text: str) -> str:
        moment = datetime.datetime.fromisoformat(text)
        return local_text((moment - _EPOCH) // datetime.timedelta(seconds=1) * 1_000_000, self._zone)

    def _view(self, number: int, messages: list[bytes]) -> View:
        style, *scripts = self.files()
        summary, populations = self._told
        page = served_document(
            "ledger.html",
            style,
            scripts,
            {
                "title": "What users have lost in all runs together",
                "summary": escaped(summary),
                "data": data_block({"ledger": populations, "after": f"{self._epoch}.{number}"}),
            },
        ).encode()
        return View(self._epoch, page, packed(page), number, number - len(messages), messages, summary, "")


def _budget(name: str, spent: Decimal, most: Decimal, left: Decimal) -> dict[str, Any]:
    share = min(float(spent / most), 1.0) if most else float(spent > 0)
    stated = {"spent": short_amount(spent), "most": short_amount(most), "left": short_amount(left, down=True)}
    return {"name": name, "share": share, **stated}


def _adding_up(rule: BudgetRule) -> str:
    """What the rule of a population means."""
    if rule.kind == BASIC:
        return "The epsilons of all runs add up, and so do their deltas (rule basic)."
    return (
        f"Renyi divergences of order {float(rule.order):.4g} add up, and what is spent is the epsilon that they come"
        " to: after several runs less than the sum of their epsilons (rule renyi)."
    )


def short_amount(value: Decimal, *, down: bool = False) -> str:
    """Two decimals, or three digits of what is smaller, rounded up; what is left is rounded down."""
    rounding = decimal.ROUND_DOWN if down else decimal.ROUND_UP
    if not 0 < value < Decimal("0.01"):
        return f"{value.quantize(Decimal('0.01'), rounding):,}"
    return f"{float(decimal.Context(prec=3, rounding=rounding).plus(value)):.3g}"


def _status(run: Run, parts: Sequence[Part]) -> str:
    status = status_of(run, parts)
    last = max(parts, key=lambda part: part.range, default=None)
    if status == Status.RUNNING and last is not None and is_gone(last.place, last.process):
        return "running, but its process has ended: see shh ledger doctor"
    return status
