"""``shh plan --compare A B``: two stored plans side by side."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dp_transforms.checks import exact, on_one_line
from dp_transforms.cli.output_file import check_output, write_output
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.plan.charging_plan import ChargingPlan
from dp_transforms.plan.names_plan import NamesPlan
from dp_transforms.plan.plan_comparison import FOUND, LOOKS, TITLES, as_json, found_from
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.views.plan_tables import chart_looks, chart_svg, most_looks_of
from dp_transforms.views.plan_words import in_a_sentence

_MICROS = 1_000_000


def show_side_by_side(paths: tuple[str, str], chart: str | None, *, as_record: bool) -> None:
    """Prints both plans, or JSON with as_record. chart: a picture of both is written there."""
    if chart is not None:
        check_output(chart, "--chart")
    plans = [read_plan(path, "--compare") for path in paths]
    if chart is not None:
        looks = chart_looks(max(most_looks_of(plan) for plan in plans))
        both = dict(zip("AB", (found_from(plan, looks) for plan in plans), strict=True))
        write_output(chart, chart_svg("Two plans, A and B", both))
    if as_record:
        click.echo(json.dumps({"compared": [_record(*each) for each in zip(paths, plans, strict=True)]}, indent=2))
        return
    console = Console(highlight=False)
    for letter, path, plan in zip("AB", paths, plans, strict=True):
        console.print(f"{letter}: {on_one_line(path)}", markup=False, soft_wrap=True)
        console.print(in_a_sentence(plan), style="bold", soft_wrap=True)
        console.print()
    console.print(_table(plans))
    if chart is not None:
        console.print(f"Chart written to {on_one_line(str(chart))}.", markup=False, soft_wrap=True)


def _record(path: str, plan: ReleasePlan) -> dict[str, Any]:
    return {
        "file": path,
        "summary": in_a_sentence(plan),
        "found_from": as_json(found_from(plan, LOOKS)),
        "plan": json.loads(plan.to_json()),
    }


def _table(plans: list[ReleasePlan]) -> Table:
    table = Table(caption=f"Items are found with {FOUND:.0%} from so many users on.")
    table.add_column("")
    table.add_column("A")
    table.add_column("B")
    each = [(_rows(plan), plan) for plan in plans]
    for name in [*dict.fromkeys(name for rows, _ in each for name in rows), "fingerprint"]:
        values = [{**rows, "fingerprint": plan.fingerprint[:16]}.get(name, "") for rows, plan in each]
        table.add_row(name, *map(escape, values), style=None if values[0] == values[1] else "bold")
    found = [found_from(plan, LOOKS) for plan in plans]
    table.add_section()
    for looks in LOOKS:
        for known in (False, True):
            values = [_found(each, looks, known=known) for each in found]
            if any(values):
                pairs = "1 pair" if looks == 1 else f"{looks:,} pairs"
                table.add_row(f"{'known' if known else 'new'} item, {pairs} each", *values)
    return table


def _found(found: dict[str, dict[int, int]], looks: int, *, known: bool) -> str:
    users = [row[looks] for method, row in found.items() if ("known" in TITLES[method]) == known]
    return f"from {users[0]:,} users on" if users else ""


def _rows(plan: ReleasePlan) -> dict[str, str]:
    schedule = plan.schedule
    rows = {
        "release": plan.release,
        "epsilon": exact(plan.epsilon),
        "delta": exact(plan.delta),
        "from": format_utc(schedule.start_seconds * _MICROS),
        "to": format_utc(schedule.end_seconds * _MICROS),
        "window": f"{schedule.window_seconds:,} s",
        "slide": f"{schedule.slide_seconds:,} s",
        "windows": f"{schedule.horizon:,}",
        "known domain": f"{plan.domain_size:,} items" if plan.domain_size else "no",
        "delta, items of one user": f"{plan.delta_open:.4g}",
    }
    if isinstance(plan, NamesPlan):
        rows["usual pairs of a user"] = f"{plan.usual_looks[0]:,} to {plan.usual_looks[1]:,}"
        rows["pairs that count"] = f"{plan.most_looks:,}"
        rows["hits per user"] = f"{plan.hits_per_user:,}" if plan.hits_per_user else "looks alone"
        rows["shape of the noise"] = f"{plan.shape:g}"
        rows["order"] = f"{plan.order:.4g}"
        rows["forgotten after"] = f"{plan.forget_after:,} windows" if plan.forget_after else "not followed"
    elif isinstance(plan, ChargingPlan):
        rows["hits per user"] = f"{plan.hits_per_user:,}"
        rows["items per user and window"] = f"{plan.max_items_per_user:,}"
        rows["noise scale"] = f"{plan.noise_scale:,.2f}"
        rows["threshold"] = f"{plan.threshold:,}"
        rows["accountant"] = plan.accountant
    return rows
