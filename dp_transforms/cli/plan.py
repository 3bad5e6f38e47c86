"""``shh plan``: what a budget buys, before the data of the run are read."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dp_transforms.checks import exact, on_one_line
from dp_transforms.cli.operator_log import operator_console
from dp_transforms.cli.options import OUTPUT, Rule, filled_by, flags, names_of, nested, opt, switch
from dp_transforms.cli.output_file import check_output, write_output
from dp_transforms.cli.plan_from_log import FROM_LOG_RULES, Activity, FromLogOptions, plan_with_activity
from dp_transforms.cli.plan_options import (
    MODE_RULES,
    PLAN_OPTIONS,
    PlanOptions,
    read_plan,
)
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.plan_comparison import FOUND, LOOKS, TITLES, Comparison, FoundFrom, as_json, found_from
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.views.plan_tables import (
    alternatives,
    as_record,
    chart_looks,
    chart_svg,
    most_looks_of,
    print_comparison,
    print_sentence,
)
from dp_transforms.views.plan_words import in_a_sentence, why


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanCommand:
    """The command line of ``shh plan``."""

    plan: PlanOptions = nested(PlanOptions)
    log: FromLogOptions = nested(FromLogOptions)
    compare: tuple[str, str] | None = opt(
        OUTPUT,
        "Instead of a new plan, show two files of --output side by side. Needs no other options.",
        type=click.Path(),
        metavar="FILE FILE",
    )
    output: str | None = opt(
        OUTPUT,
        "Write the chosen plan to this file, as JSON; it must not exist.",
        brief="Write the plan to this file.",
        type=click.Path(path_type=str),
    )
    chart: str | None = opt(
        OUTPUT,
        "Draw from how many users on an item is found, against their activity, as SVG; the file must not exist.",
        brief="Draw what is found, as SVG.",
        type=click.Path(path_type=str),
        metavar="FILE",
    )
    as_json: bool = switch(OUTPUT, "Print JSON instead of tables.", "--json", brief="Print JSON instead of tables.")


_LOG_OPTIONS = names_of(FromLogOptions)
PLAN_COMMAND_RULES = (
    Rule(
        "--compare",
        excludes=flags([*PLAN_OPTIONS, *_LOG_OPTIONS, "output"]),
        is_usage=True,
    ),
    *FROM_LOG_RULES,
    *MODE_RULES,
)


@filled_by(PlanCommand, "plan", PLAN_COMMAND_RULES)
def command(options: PlanCommand) -> None:
    """Show what a budget buys: from how many users on an item is found, beside other methods.

    Reads no data but the log of --from-log.

    \b
    shh plan --epsilon 2 --delta 1e-9 --window 1h --start 2017-10-01 \\
        --end 2017-10-17
    shh plan ... --from-log 2017-09.parquet --from-log-users other \\
        --from-log-start 2017-09-01
    shh plan --compare a.json b.json
    """
    output, chart = options.output, options.chart
    if options.compare is not None:
        show_side_by_side(options.compare, chart, as_record=options.as_json)
        return
    if output is not None and output == chart:
        raise click.UsageError("--output and --chart name the same file. Name another one.")
    check_output(output)
    check_output(chart, "--chart")
    plan, activity = plan_with_activity(options.plan, options.log)
    if not options.as_json:
        print_sentence(plan)  # at once: the other methods take as long again
    with operator_console().status("comparing"):
        comparison = Comparison(plan)
        found = comparison.found_from(LOOKS)
        choices = alternatives(plan) if plan.looks is None else []
        drawn = None if chart is None else comparison.found_from(chart_looks(most_looks_of(plan)))
    if output is not None:
        write_output(output, plan.to_json() + "\n")
    if chart is not None and drawn is not None:
        title = f"epsilon {plan.epsilon:g}, delta {plan.delta:g}, {plan.schedule.horizon:,} windows"
        write_output(chart, chart_svg(title, {"": drawn}))
    if options.as_json:
        click.echo(json.dumps(_as_json(plan, found, choices, activity), indent=2))
        return
    print_comparison(plan, found, choices)
    if activity is not None:
        click.echo(activity.in_a_sentence)
    for what, path in (("Plan", output), ("Chart", chart)):
        if path is not None:
            click.echo(f"{what} written to {path}.")


def _as_json(plan: Plan, found: FoundFrom, choices: list[Plan], activity: Activity | None) -> dict[str, Any]:
    return {
        "summary": in_a_sentence(plan),
        **({"why": reason} if (reason := why(plan, found)) else {}),
        "found_from": as_json(found),
        "plans": [as_record(choice, plan) for choice in choices],
        "activity": None if activity is None else dataclasses.asdict(activity),
        "chosen": json.loads(plan.to_json()),
        "fingerprint": plan.fingerprint,
        "guarantee": plan.guarantee,
    }


def show_side_by_side(paths: tuple[str, str], chart: str | None, *, as_record: bool) -> None:
    """Prints both plans, or JSON with as_record. chart: a picture of both is written there."""
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


def _record(path: str, plan: Plan) -> dict[str, Any]:
    return {
        "file": path,
        "summary": in_a_sentence(plan),
        "found_from": as_json(found_from(plan, LOOKS)),
        "plan": json.loads(plan.to_json()),
    }


def _table(plans: list[Plan]) -> Table:
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


def _rows(plan: Plan) -> dict[str, str]:
    schedule = plan.schedule
    rows = {
        "mode": plan.mode,
        "epsilon": exact(plan.epsilon),
        "delta": exact(plan.delta),
        "from": format_utc(schedule.start_seconds * MICROS_PER_SECOND),
        "to": format_utc(schedule.end_seconds * MICROS_PER_SECOND),
        "window": f"{schedule.window_seconds:,} s",
        "slide": f"{schedule.slide_seconds:,} s",
        "windows": f"{schedule.horizon:,}",
        "known domain": f"{plan.domain_size:,} items" if plan.domain_size else "no",
        "delta, items of one user": f"{plan.delta_open:.4g}",
    }
    if plan.looks is not None:
        rows["usual pairs of a user"] = f"{plan.paid_looks.usual_looks[0]:,} to {plan.paid_looks.usual_looks[1]:,}"
        rows["pairs that count"] = f"{plan.paid_looks.most_looks:,}"
        rows["hits per user"] = f"{plan.hits_per_user:,}" if plan.hits_per_user else "looks alone"
        rows["shape of the noise"] = f"{plan.paid_looks.shape:g}"
        rows["order"] = f"{plan.paid_looks.order:.4g}"
        rows["forgotten after"] = f"{plan.known_for:,} windows" if plan.known_for else "not followed"
    else:
        rows["hits per user"] = f"{plan.hits_per_user:,}"
        rows["items per user and window"] = f"{plan.charged_hits.max_items_per_user:,}"
        rows["noise scale"] = f"{plan.charged_hits.noise.scale:,.2f}"
        rows["threshold"] = f"{plan.threshold:,}"
    return rows
