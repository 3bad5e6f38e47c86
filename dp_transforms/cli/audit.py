"""``shh audit --plan FILE``: the most that the mechanism of a plan can reveal, against what the plan claims."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import NamedTuple

import click
import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dp_transforms.audit.contributions import (
    ContributionsAudit,
    ContributionsClaim,
    ContributionsMechanism,
    audit_contributions,
)
from dp_transforms.audit.hits import HitsAudit, HitsClaim, Mechanism, audit_hits
from dp_transforms.cli.operator_log import operator_console
from dp_transforms.cli.options import Command, Options, option
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.stores.files import check_output, write_output

FORMAT_VERSION = 3
_ROUNDING = 1e-12  # relative: of prices, which are sums of many terms
_NEVER_TRIED = (
    "the code itself: counting, charging and drawing are held against these laws by tests, and so are reading, "
    "hashing, Beam, retries, late events and what one part of a run hands to the next",
    "delta for hash collisions and for the sampled noise: far below anything that can be observed",
    "a log that shares users with other runs, a user that is several people, groups of users",
    "the secrecy of the noise key, timing, and what only the operator sees",
)
_OF_CONTRIBUTIONS = (
    "streams of many tests: that none attains more than a full budget proves is the theorem of docs/guarantee.md"
)

Audit = HitsAudit | ContributionsAudit


class Line(NamedTuple):
    """What is attained, against what is claimed. error: of the arithmetic, relative."""

    name: str
    claimed: float
    attained: float
    error: float = 0.0


class Summary(NamedTuple):
    """What was found of a plan. title: of the table. worst: a sentence on what attains most. not_tried: what an audit
    of this plan says nothing about."""

    title: str
    lines: list[Line]
    worst: str
    not_tried: list[str]


@click.command(
    "audit",
    cls=Command,
    params=[
        option(["--plan", "plan_file"], required=True, metavar="FILE", help="A file of `shh plan --output`."),
        option(["--output"], metavar="FILE", help="Also write all numbers here, as JSON."),
    ],
)
def command(options: Options) -> None:
    """Check a plan before it is used: the most that its mechanism can reveal, computed exactly, against what the plan
    claims. Uses no data and no noise key; takes less than a minute. Exit code 1 if a claim does not hold.

    \b
    shh plan --epsilon 2 --delta 1e-9 --window 1h --start 2026-01-01 --end 2026-02-01 --output plan.json
    shh audit --plan plan.json --output audit.json
    """
    check_output(options.output)
    plan = read_plan(options.plan_file)
    with operator_console().status("reading the plan") as status:
        exact: Audit
        if plan.contributions is not None:
            mechanism, claim = ContributionsMechanism.of_plan(plan), ContributionsClaim.of_plan(plan)
            exact = audit_contributions(mechanism, claim, on_step=lambda step: status.update(f"exact: {step}"))
        else:
            law, hits = Mechanism.of_plan(plan), HitsClaim.of_plan(plan)
            exact = audit_hits(law, hits, on_step=lambda step: status.update(f"exact: {step}"))
    finish(plan, exact, options.output)


def finish(plan: Plan, exact: Audit, output: str | None) -> None:
    """Prints and writes the result. Raises UserError if a claim does not hold."""
    summary = _of_hits(plan, exact) if isinstance(exact, HitsAudit) else _of_contributions(plan, exact)
    broken = "; ".join(exact.violations)
    if output is not None:
        record = {
            "format_version": FORMAT_VERSION,
            "verdict": "violated" if broken else "passed",
            "violations": exact.violations,
            "plan": json.loads(plan.to_json()),
            "exact": {**dataclasses.asdict(exact), "violations": ()},
            "not_tried": summary.not_tried,
        }
        write_output(output, json.dumps(record, indent=2, allow_nan=False) + "\n")
    console = Console(highlight=False, markup=False)
    console.print(Text(plan.guarantee, style="bold"), soft_wrap=True)
    console.print(f"Plan {plan.fingerprint[:16]}: {plan.charge_in_words}.", soft_wrap=True)
    console.print(_table_of(plan, summary))
    console.print(summary.worst, soft_wrap=True)
    console.print(Text("\nNot tried:", style="bold"))
    for limit in summary.not_tried:
        console.print(f"- {limit}.", soft_wrap=True)
    verdict = f"VIOLATED: {broken}." if broken else "PASSED: nothing that was computed exceeds a claim of this plan."
    console.print(Text(f"\n{verdict}", style="bold red" if broken else "bold green"), soft_wrap=True)
    if output is not None:
        click.echo(f"All numbers are in {output}.")
    if broken:
        raise UserError(f"DO NOT USE THIS PLAN. A claim does not hold: {broken}.")


def _table_of(plan: Plan, summary: Summary) -> Table:
    table = Table(title=summary.title, title_justify="left", box=rich.box.SIMPLE, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in ("claimed", "attained", "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, claimed, attained, error in summary.lines:
        if not claimed:  # of items that one user holds alone among public items
            table.add_row(name, "0", "0", "")
            continue
        style = "bold red" if attained > claimed * (1 + error) else None
        ratio = f"{math.floor(1000 * attained / claimed) / 1000:.3f}"
        table.add_row(name, f"{claimed:.4g}", f"{attained:.4g}", ratio, style=style)
    table.add_row("hash collisions, sampled noise", f"{plan.shares.hash + plan.shares.sampling:.2g}", "not tried", "")
    return table


def _of_hits(plan: Plan, exact: HitsAudit) -> Summary:
    sides = {"added": exact.adding, "removed": exact.removing}
    lines = [Line(f"charged results, user {name}", plan.shares.paid, side.attained) for name, side in sides.items()]
    lines.append(Line("items the user holds alone", plan.delta_open, exact.lone_delta))
    lines.append(Line("both together", plan.delta, exact.together_delta))
    running = max(exact.running, key=lambda figure: figure.delta)
    name = f"running figure {running.epsilon:.4f}, cut at {running.hits:,} hit{'s' if running.hits > 1 else ''}"
    lines.append(Line(name, plan.shares.paid, running.delta))
    items = exact.worst.items
    others, zone = f"{plan.threshold - 1:,} other holders, one fewer than the threshold", plan.charged_hits.zone_width
    if zone:
        others += f", to {plan.threshold + zone - 1:,}, one fewer than the upper edge of the zone"
    text = f"The worst streams show the user on up to {items:,} items with {others}, until the user is excluded."
    rest = "streams in which other items of the user, or the budgets of others, change what is tested"
    limits = []
    if items < plan.queries_per_user:
        limits.append(f"streams that show the user on more than {items:,} items")
    if all(side.is_settled for side in sides.values()):
        limits.append(f"{rest}: by the theorem in docs/proofs.md none on {items:,} items attains more")
    else:
        ceiling = max(side.ceiling for side in sides.values())
        limits.append(
            f"{rest} within a window: none on {items:,} items attains a delta above {ceiling:.4g}, by the theorem in "
            f"docs/proofs.md; whether one attains more than the {exact.worst.attained:.4g} above is open"
        )
    title = f"Exact: delta at epsilon {plan.epsilon:g}"
    return Summary(title, lines, text, [*limits, *_NEVER_TRIED])


def _of_contributions(plan: Plan, exact: ContributionsAudit) -> Summary:
    price = exact.worst_price
    name = f"price of a test, worst of {exact.prices:,}: weight {price.weight:,}{price.where}"
    lone = "items the user holds alone" + (f", {exact.lone_tests:,} tests" if plan.delta_open else "")
    lines = [
        Line(name, price.claimed, price.test.divergence, _ROUNDING),
        Line(f"delta of a full budget, {exact.most_tests:,} tests", plan.shares.paid, exact.budget_delta, _ROUNDING),
        Line(lone, plan.delta_open, exact.lone_delta, _ROUNDING),
        Line("both together", plan.delta, exact.together_delta, _ROUNDING),
    ]
    margin, where = price.test.margin, "added" if price.test.adds_user else "removed"
    text = (
        f"The worst count for that price is {abs(margin):,} {'below' if margin >= 0 else 'above'} the threshold (user "
        f"{where})."
    )
    title = f"Exact: divergence at order {plan.paid_contributions.order:.4g}; delta at epsilon {plan.epsilon:g}"
    return Summary(title, lines, text, [_OF_CONTRIBUTIONS, *_NEVER_TRIED])
