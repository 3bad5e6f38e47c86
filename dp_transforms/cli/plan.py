"""``shh plan``: what a budget buys, before the data of the run are read."""

from __future__ import annotations

import json

import click

from dp_transforms.cli.options import Command, Options, option
from dp_transforms.cli.plan_options import PLAN, plan_from_options
from dp_transforms.plan.rounds import REPLAY, USES
from dp_transforms.stores.files import check_output, write_output
from dp_transforms.views.plan_tables import alternatives, as_record, print_plan
from dp_transforms.views.plan_words import CONTRIBUTIONS, found_from, in_a_sentence, why


@click.command(
    "plan",
    cls=Command,
    params=[
        click.Argument(["use"], type=click.Choice(USES), default=REPLAY, metavar=f"[{'|'.join(USES)}]"),
        *PLAN,
        option(["--output"], metavar="FILE", help="Write the plan to this file. It must not exist."),
        option(["--json", "as_json"], is_flag=True, help="Print JSON instead of tables."),
    ],
)
def command(options: Options) -> None:
    """Show what a budget buys: from how many users on an item is found. Reads no data.

    The plan is for a replay, or for one in parts, or for a stream. Those of replays and parts test contributions in
    rounds where a block of windows has six: a day, or the run where windows are days.

    \b
    shh plan --epsilon 2 --delta 1e-9 --window 1h --start 2017-10-01 \\
        --end 2017-10-17
    """
    check_output(options.output)
    plan, use = plan_from_options(options, options.use), options.use
    found = found_from(plan, CONTRIBUTIONS)
    choices = alternatives(plan) if plan.contributions is None else []
    if options.output is not None:
        write_output(options.output, plan.to_json() + "\n")
    if options.as_json:
        record = {
            "summary": in_a_sentence(plan),
            **({"why": why(plan, use)} if plan.contributions is not None else {}),
            "found_from": found,
            "plans": [as_record(choice, plan) for choice in choices],
            "chosen": json.loads(plan.to_json()),
            "fingerprint": plan.fingerprint,
            "guarantee": plan.guarantee,
        }
        click.echo(json.dumps(record, indent=2))
        return
    print_plan(plan, use, found, choices)
    if options.output is not None:
        click.echo(f"Plan written to {options.output}.")
