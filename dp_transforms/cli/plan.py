"""``shh plan``: what a budget buys, before the data of the run are read."""

from __future__ import annotations

import json
from typing import Any

import click

from dp_transforms.cli.grouped_options import OUTPUT, GroupedCommand, option
from dp_transforms.cli.operator_log import operator_console
from dp_transforms.cli.output_file import check_output, write_output
from dp_transforms.cli.plan_accountants import show_accountants
from dp_transforms.cli.plan_from_log import Activity, from_log_options, plan_with_activity, refuse_from_log
from dp_transforms.cli.plan_options import PLAN_OPTIONS, flag, plan_options
from dp_transforms.cli.plan_side_by_side import show_side_by_side
from dp_transforms.plan.charging_plan import ChargingPlan
from dp_transforms.plan.plan_comparison import LOOKS, Comparison, FoundFrom, as_json
from dp_transforms.plan.release_plan import ReleasePlan
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


@click.command("plan", cls=GroupedCommand)
@plan_options
@from_log_options
@option(
    OUTPUT,
    "--epsilon-per-query",
    type=float,
    help="Instead of a plan, print which epsilon each accountant proves for noise of scale 1 / this. --delta then goes "
    "to the accountant alone and is not split.",
)
@option(
    OUTPUT,
    "--compare",
    type=click.Path(),
    nargs=2,
    metavar="FILE FILE",
    help="Instead of a new plan, show two files of --output side by side. Needs no other options.",
)
@option(
    OUTPUT,
    "--output",
    brief="Write the plan to this file.",
    type=click.Path(path_type=str),
    help="Write the chosen plan to this file, as JSON; it must not exist.",
)
@option(
    OUTPUT,
    "--chart",
    brief="Draw what is found, as SVG.",
    type=click.Path(path_type=str),
    metavar="FILE",
    help="Draw from how many users on an item is found, against their activity, as SVG; the file must not exist.",
)
@option(
    OUTPUT,
    "--json",
    "as_json_text",
    brief="Print JSON instead of tables.",
    is_flag=True,
    help="Print JSON instead of tables.",
)
def command(
    epsilon_per_query: float | None,
    compare: tuple[str, str] | None,
    output: str | None,
    chart: str | None,
    as_json_text: bool,
    **options: Any,
) -> None:
    """Show what a budget buys: from how many users on an item is found, beside other methods.

    Reads no data but the log of --from-log.

    \b
    shh plan --epsilon 2 --delta 1e-9 --window 1h --start 2017-10-01 \\
        --end 2017-10-17
    shh plan ... --from-log 2017-09.parquet --from-log-users other \\
        --from-log-start 2017-09-01
    shh plan --compare a.json b.json
    shh plan --epsilon-per-query 0.1 --hits-per-user 5 --delta 1e-8 \\
        --release counts
    """
    if compare is not None:
        _check_alone(epsilon_per_query, output, options)
        refuse_from_log(options)
        show_side_by_side(compare, chart, as_record=as_json_text)
        return
    if epsilon_per_query is not None:
        refuse_from_log(options)
        show_accountants(epsilon_per_query, {"--output": output, "--chart": chart}, as_json_text, options)
        return
    if output is not None and output == chart:
        raise click.UsageError("--output and --chart name the same file. Name another one.")
    for path, name in ((output, "--output"), (chart, "--chart")):
        if path is not None:
            check_output(path, name)
    with operator_console().status("calibrating"):
        plan, activity = plan_with_activity(options)
    if not as_json_text:
        print_sentence(plan)  # at once: the other methods take as long again
    with operator_console().status("comparing"):
        comparison = Comparison(plan)
        found = comparison.found_from(LOOKS)
        choices = alternatives(plan) if isinstance(plan, ChargingPlan) else []
        drawn = None if chart is None else comparison.found_from(chart_looks(most_looks_of(plan)))
    if output is not None:
        write_output(output, plan.to_json() + "\n")
    if chart is not None and drawn is not None:
        write_output(
            chart,
            chart_svg(
                f"epsilon {plan.epsilon:g}, delta {plan.delta:g}, {plan.schedule.horizon:,} windows", {"": drawn}
            ),
        )
    if as_json_text:
        click.echo(json.dumps(_as_json(plan, found, choices, activity), indent=2))
        return
    print_comparison(plan, found, choices)
    if activity is not None:
        click.echo(activity.in_a_sentence)
    if output is not None:
        click.echo(f"Plan written to {output}.")
    if chart is not None:
        click.echo(f"Chart written to {chart}.")


def _check_alone(epsilon_per_query: float | None, output: str | None, options: dict[str, Any]) -> None:
    used = [flag(name) for name in PLAN_OPTIONS if options[name] is not None]
    used += [name for name, value in (("--epsilon-per-query", epsilon_per_query), ("--output", output)) if value]
    if used:
        raise click.UsageError(f"--compare cannot be used with {', '.join(used)}. Leave one out.")


def _as_json(
    plan: ReleasePlan, found: FoundFrom, choices: list[ChargingPlan], activity: Activity | None
) -> dict[str, Any]:
    return {
        "summary": in_a_sentence(plan),
        **({"why": reason} if (reason := why(plan, found)) else {}),
        "found_from": as_json(found),
        "plans": [as_record(choice, plan) for choice in choices if isinstance(plan, ChargingPlan)],
        "activity": None if activity is None else activity.as_record(),
        "chosen": json.loads(plan.to_json()),
        "fingerprint": plan.fingerprint,
        "guarantee": plan.guarantee,
    }
