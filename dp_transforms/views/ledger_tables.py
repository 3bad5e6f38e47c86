"""A ledger for a terminal, entry by entry, and as JSON. Names may be hostile: they are escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dp_transforms.runs.lifetime_cost import from_delta_units, from_epsilon_units
from dp_transforms.runs.records import Balance, Part, Run, Status, amount
from dp_transforms.views.report_words import is_ascii_only, label_text

_AMOUNTS = tuple(f"{what}_{of}" for of in ("epsilon", "delta") for what in ("max", "spent", "left"))

RunWithParts = tuple[Run, list[Part]]


def print_balances(balances: Sequence[Balance]) -> None:
    """What each population has spent, and what is left."""
    console = Console(highlight=False)
    ascii_only = is_ascii_only(console)
    if not balances:
        console.print("The ledger has no populations yet. Declare one with --caps", soft_wrap=True)
        return
    heads = ("population", "rule", "runs", "epsilon spent", "epsilon left", "delta spent", "delta left")
    rows: list[list[str]] = []
    for balance in balances:
        population = balance.population
        order = f", order {float(population.order):.4g}" if population.order else ""
        rows.append(
            [
                label_text(population.name, ascii_only),
                f"{population.kind}{order}",
                f"{balance.runs:,}",
                f"{amount(balance.spent_epsilon)} of {amount(balance.max_epsilon)}",
                amount(balance.left_epsilon, down=True),
                f"{amount(balance.spent_delta)} of {amount(balance.max_delta)}",
                amount(balance.left_delta, down=True),
            ]
        )
    _print_rows(console, heads, rows)


def print_runs(runs: Sequence[RunWithParts]) -> None:
    """What became of each run."""
    console = Console(highlight=False)
    ascii_only = is_ascii_only(console)
    heads = ("run", "population", "stream", "range", "windows", "status", "planned", "reserved by", "at")
    rows = [
        [
            *(label_text(name, ascii_only) for name in (run.run_id, run.population, run.stream or "-")),
            f"{run.range_start} .. {run.range_end}",
            f"{windows_done(parts):,} of {run.horizon:,}",
            status_of(run, parts),
            amount(from_epsilon_units(run.plan_epsilon)),
            label_text(run.who, ascii_only),
            run.reserved_at[:19],
        ]
        for run, parts in runs
    ]
    _print_rows(console, heads, rows)


def status_of(run: Run, parts: Sequence[Part]) -> str:
    """The status of a run: its own once it has ended, else that of its last part."""
    kept = [part for part in parts if part.status != Status.RELEASED]
    if run.status != Status.RESERVED or not kept:
        return str(run.status)
    return str(kept[-1].status)


def windows_done(parts: Sequence[Part]) -> int:
    """Up to which window the run is published."""
    return max((part.end_window for part in parts if part.status == Status.FINISHED), default=0)


def json_of(balances: Sequence[Balance], runs: Sequence[RunWithParts]) -> str:
    """All of it as one JSON object. Amounts are exact, as text."""
    by_population: dict[str, list[dict[str, Any]]] = {}
    for run, parts in runs:
        by_population.setdefault(run.population, []).append(_run_fields(run, parts))
    populations = [
        {
            "population": balance.population.name,
            "unit": "user",
            "rule": balance.population.kind,
            "order": balance.population.order or None,
            "declared_at": balance.population.declared_at,
            **{name: _exact(getattr(balance, name)) for name in _AMOUNTS},
            "runs": by_population.get(balance.population.name, []),
        }
        for balance in balances
    ]
    return json.dumps({"populations": populations}, indent=2)


def _run_fields(run: Run, parts: Sequence[Part]) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "stream": run.stream,
        "plan": run.plan_fingerprint,
        "start": run.range_start,
        "end": run.range_end,
        "windows": run.horizon,
        "windows_done": windows_done(parts),
        "status": status_of(run, parts),
        "plan_epsilon": _exact(from_epsilon_units(run.plan_epsilon)),
        "plan_delta": _exact(from_delta_units(run.plan_delta)),
        "who": run.who,
        "reserved_at": run.reserved_at,
        "parts": [
            {
                "first_window": part.first_window,
                "end_window": part.end_window,
                "status": str(part.status),
                "input": part.input_fingerprint,
                **{name: getattr(part, name) for name in ("state_before", "state_after", "who", "reserved_at")},
                "started_at": part.started_at or None,
                "finished_at": part.finished_at or None,
            }
            for part in parts
        ],
    }


def _exact(value: Decimal) -> str:
    """All digits, without an exponent where there is none."""
    return f"{value.normalize():f}" if value else "0"


def _print_rows(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A line for each cell: as a table they would be wider than most terminals."""
    for row in rows:
        entry = Table.grid(padding=(0, 2))
        for head, cell in zip(heads, row, strict=True):
            entry.add_row(head, Text(cell, overflow="fold"))
        console.print(entry)
        console.print()
