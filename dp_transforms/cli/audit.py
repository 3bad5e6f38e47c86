"""``shh audit --plan FILE``: the most that the mechanism of a plan can reveal, against what the plan claims."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import click
import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dp_transforms.audit.exact_hits import ChargedAudit, ExactAudit, audit_exactly
from dp_transforms.audit.exact_looks import MOST_FEW, LooksExactAudit, audit_looks_exactly, run_violations
from dp_transforms.audit.few_looks import FewLooks
from dp_transforms.audit.mechanism import HitsClaim, LooksClaim, LooksMechanism, Mechanism
from dp_transforms.audit.round_looks import RoundLooks
from dp_transforms.cli.operator_log import operator_progress
from dp_transforms.cli.options import OUTPUT, Option, Options, shh_command
from dp_transforms.cli.output_file import check_output, write_output
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.core.planned_run import PlannedRun, fresh_run_id
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan

FORMAT_VERSION = 2
_STEP = 0.2  # of the time of an audit, about
_ROUNDING = 1e-12  # relative: of prices, which are sums of many terms
_NEVER_TRIED = (
    "the code itself: counting, charging and drawing are held against these laws by tests, and so are reading, "
    "hashing, Beam, retries, late events and what one part of a run hands to the next",
    "delta for hash collisions and for the sampled noise: far below anything that can be observed",
    "a log that shares users with other runs, a user that is several people, groups of users",
    "the secrecy of the noise key, timing, and what only the operator sees",
)
_OF_ROUNDS = (
    "other counts and weights in rounds than equal ones of up to 10 contributions, and of more than that one round "
    "alone; that no stream attains more than delta_tests is the theorem of docs/guarantee.md"
)


class Line(NamedTuple):
    """What is attained, against what is claimed. more: a further cell. error: of the arithmetic, relative."""

    name: str
    claimed: float
    attained: float
    more: str = ""
    error: float = 0.0


class AuditReport(NamedTuple):
    """What was found of a plan. title: of the table. worst: sentences on what attains most. not_tried: what an audit of
    this plan says nothing about."""

    plan: Plan
    exact: ExactAudit | LooksExactAudit
    title: str
    lines: Sequence[Line]
    worst: Sequence[str]
    not_tried: Sequence[str]


@shh_command(
    "audit",
    Option("--plan", OUTPUT, "The plan to check, a file of `shh plan --output`.", name="plan_file", metavar="FILE"),
    Option("--output", OUTPUT, "Also write all numbers here, as JSON.", metavar="FILE"),
)
def command(options: Options) -> None:
    """Check a plan before it is used: the most that its mechanism can reveal, computed exactly, against what the plan
    claims. Uses no data and no noise key; takes less than a minute. Exit code 1 if a claim does not hold.

    \b
    shh plan --epsilon 2 --delta 1e-9 --window 1h --start 2026-01-01 --end 2026-02-01 --output plan.json
    shh audit --plan plan.json --output audit.json
    """
    if options.plan_file is None:
        raise click.UsageError("Missing --plan. Write a plan with `shh plan --output plan.json`, then give it here.")
    check_output(options.output)
    plan = read_plan(options.plan_file)
    with _progress() as advance:
        exact: ExactAudit | LooksExactAudit
        if plan.contributions is not None:
            exact = audit_looks_exactly(LooksMechanism.of_plan(plan), LooksClaim.of_plan(plan), on_step=advance)
        else:
            exact = audit_exactly(Mechanism.of_plan(plan), HitsClaim.of_plan(plan), on_step=advance)
    of_run = run_violations(plan, PlannedRun(plan=plan, stream="audit", run_id=fresh_run_id()))
    exact = dataclasses.replace(exact, violations=(*exact.violations, *of_run))
    finish(report_of(plan, exact), options.output)


def finish(report: AuditReport, output: str | None) -> None:
    """Prints and writes the result. Raises UserError if a claim does not hold."""
    violations = report.exact.violations
    if output is not None:
        record = {
            "format_version": FORMAT_VERSION,
            "verdict": "violated" if violations else "passed",
            "violations": violations,
            "plan": json.loads(report.plan.to_json()),
            "exact": _finite({**dataclasses.asdict(report.exact), "violations": ()}),
            "not_tried": report.not_tried,
        }
        write_output(output, json.dumps(record, indent=2, allow_nan=False) + "\n")
    console = Console(highlight=False, markup=False)
    console.print(Text(report.plan.guarantee, style="bold"), soft_wrap=True)
    console.print(f"Plan {report.plan.fingerprint[:16]}: {report.plan.charge_in_words}.", soft_wrap=True)
    console.print(_table_of(report))
    for text in report.worst:
        console.print(text, soft_wrap=True)
    console.print(Text("\nNot tried:", style="bold"))
    for limit in report.not_tried:
        console.print(f"- {limit}.", soft_wrap=True)
    verdict, style = "PASSED: nothing that was computed exceeds a claim of this plan.", "bold green"
    if violations:
        verdict, style = f"VIOLATED: {'; '.join(violations)}.", "bold red"
    console.print(Text(f"\n{verdict}", style=style), soft_wrap=True)
    if output is not None:
        click.echo(f"All numbers are in {output}.")
    if violations:
        raise UserError(f"DO NOT USE THIS PLAN. A claim does not hold: {'; '.join(violations)}.")


def report_of(plan: Plan, exact: ExactAudit | LooksExactAudit) -> AuditReport:
    return _of_hits(plan, exact) if isinstance(exact, ExactAudit) else _of_contributions(plan, exact)


def _table_of(report: AuditReport) -> Table:
    table = Table(title=report.title, title_justify="left", box=rich.box.SIMPLE, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in ("claimed", "attained", "ratio", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for name, claimed, attained, more, error in report.lines:
        if not claimed:  # of items that one user holds alone among public items
            table.add_row(name, "0", "0", "", more)
            continue
        ratio = "unbounded" if math.isinf(attained) else f"{math.floor(1000 * attained / claimed) / 1000:.3f}"
        style = "bold red" if attained > claimed * (1 + error) else None
        table.add_row(name, f"{claimed:.4g}", f"{attained:.4g}", ratio, more, style=style)
    shares = report.plan.shares
    table.add_row("hash collisions, sampled noise", f"{shares.hash + shares.sampling:.2g}", "not tried", "", "")
    return table


def _of_hits(plan: Plan, exact: ExactAudit) -> AuditReport:
    lines = [
        Line(f"charged results, user {name}", plan.shares.paid, side.attained, _epsilon_text(side.epsilon, plan))
        for name, side in (("added", exact.adding), ("removed", exact.removing))
    ]
    lines.append(Line("items the user holds alone", plan.delta_open, exact.lone_delta))
    lines.append(Line("both together", plan.delta, exact.together_delta, _epsilon_text(exact.together_epsilon, plan)))
    running = max(exact.running, key=lambda figure: figure.delta)
    name = f"running figure, cut at {running.hits:,} hit{'s' if running.hits > 1 else ''}"
    lines.append(Line(name, plan.shares.paid, running.delta, f"at {running.epsilon:.4f}"))
    worst = exact.worst
    text = (
        f"The worst stream tried attains epsilon {_rounded_down(worst.epsilon)} at delta {plan.shares.paid:.4g}: "
        f"{_stream_text(worst, plan)}. The worst that never changes its distance attains delta "
        f"{worst.static_delta:.3g}; the best adversary that chooses one for each window {worst.best_delta:.4g}."
    )
    sides = (exact.adding, exact.removing)
    others = "streams in which other items of the user, or the budgets of others, change what is tested"
    limits = []
    if worst.items < plan.queries_per_user:
        limits.append(f"streams that show the user on more than {worst.items:,} items")
    if all(side.is_settled for side in sides):
        limits.append(f"{others}: by the theorem in docs/audit.md none on {worst.items:,} items attains more")
    else:
        ceiling = max(side.ceiling_delta for side in sides)
        limits.append(
            f"{others} within a window: none on {worst.items:,} items attains a delta above {ceiling:.4g}, by the "
            f"theorem in docs/audit.md; whether one attains more than the {worst.attained:.4g} above is open"
        )
    title = f"Exact: delta at epsilon {plan.epsilon:g}, and epsilon at that share of delta"
    return AuditReport(plan, exact, title, lines, [text], [*limits, *_NEVER_TRIED])


def _of_contributions(plan: Plan, exact: LooksExactAudit) -> AuditReport:
    price, paid = exact.worst_price, plan.shares.paid
    name = f"price of a test, worst of {exact.prices:,}: weight {price.weight:,}"
    lines = [Line(name, price.claimed, price.look.divergence, error=_ROUNDING)]
    lines.append(Line("delta of a full budget", paid, exact.purse_delta * (1 - 1e-7), error=_ROUNDING))
    where = " in one round" if exact.in_rounds else ""
    attained = [(f"{few.looks} adaptive test{'s' if few.looks > 1 else ''}", few.delta) for few in exact.few]
    for pairs in exact.in_rounds:
        attained.append((f"{pairs.pairs} contribution{'s' if pairs.pairs > 1 else ''} in all rounds", pairs.delta))
    attained += [(f"{each.looks:,} equal tests{where}", each.delta) for each in exact.static if each.looks > 1]
    lines += [Line(name, paid, delta, error=_ROUNDING) for name, delta in attained]
    lone = "items the user holds alone" + (f", {exact.lone_looks:,} tests" if plan.delta_open else "")
    lines.append(Line(lone, plan.delta_open, exact.lone_delta, error=_ROUNDING))
    lines.append(Line("both together", plan.delta, exact.together_delta, error=_ROUNDING))
    tried: list[FewLooks | RoundLooks] = [*exact.few, *exact.in_rounds]
    worst = max(tried, key=lambda each: each.delta)
    weights = ", then ".join(f"{weight:,}" for weight in worst.weights)
    stream = f"The worst adaptive stream has tests of weight {weights} until an item is named, at first"
    margin = worst.margins[0]
    if isinstance(worst, RoundLooks):
        stream = f"The worst in all rounds are {worst.pairs} contributions, of weight {weights} while all are left,"
        stream, margin = f"{stream} in the last", worst.margins[-1]
    text = (
        f"The worst count for that price is {_margin_text(price.look.margin, adds_user=price.look.adds_user)}. "
        f"{stream} where others are {_margin_text(margin, adds_user=worst.adds_user)}."
    )
    limits: list[str] = []
    if exact.in_rounds:
        limits.append(_OF_ROUNDS)
    elif exact.tried > MOST_FEW:
        limits.append(
            f"adaptive streams of more than {MOST_FEW} tests: of more, only those with one weight and one count; that "
            "no stream attains more than delta_tests is the theorem of docs/guarantee.md"
        )
    if exact.tried < exact.most_paid:
        limits.append(
            f"more than {exact.tried:,} tests of a user on items of others, of the {exact.most_paid:,} that are paid"
        )
    title = f"Exact: divergence at order {plan.paid_contributions.order:.4g}; delta at epsilon {plan.epsilon:g}"
    return AuditReport(plan, exact, title, lines, [text], [*limits, *_NEVER_TRIED])


def _stream_text(side: ChargedAudit, plan: Plan) -> str:
    """What the adversary does, in words."""
    stream = side.stream
    many = f"in up to {stream.rounds:,} windows"
    if stream.items_per_window > 1 and (stream.rounds > plan.schedule.horizon or not stream.is_static):
        many = f"on up to {stream.rounds:,} items, {stream.items_per_window:,} of them in each window"
    where = f"an item with {_distance_text(stream.distance, plan)}"
    if not stream.is_static:
        world = "with" if stream.adds_user else "without"
        where += (
            f"; once what was published is over e^{stream.switch_loss:.4g} times likelier {world} the user, "
            f"{_distance_text(stream.later_distance, plan)} instead"
        )
    return f"{where}, {many}, until the user is excluded"


def _distance_text(distance: int, plan: Plan) -> str:
    """The number of other holders, and how far that is from the threshold."""
    count, zone = plan.threshold + distance, plan.charged_hits.zone_width
    others = f"{count:,} other holder{'' if count == 1 else 's'}"
    if zone and distance == zone - 1:
        return f"{others}, one fewer than the upper edge of the zone"
    if distance == -1:
        return f"{others}, one fewer than the threshold"
    return f"{others}, {abs(distance):,} {'more' if distance >= 0 else 'fewer'} than the threshold"


def _margin_text(margin: int, *, adds_user: bool) -> str:
    place = f"{abs(margin):,} {'below' if margin >= 0 else 'above'} the threshold"
    return f"{place} (user {'added' if adds_user else 'removed'})"


def _epsilon_text(epsilon: float, plan: Plan) -> str:
    return f"epsilon {_rounded_down(epsilon)} of {plan.epsilon:g}"


def _rounded_down(epsilon: float) -> str:
    """Four decimals, more if it is very small."""
    if not math.isfinite(epsilon):
        return "unbounded"
    if epsilon < 0.01:
        return f"{epsilon * (1 - 5e-4):.3g}"
    return f"{math.floor(1e4 * epsilon) / 1e4:.4f}"


def _finite(value: Any) -> Any:
    """As JSON can hold it: what is unbounded is null."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is done."""
    done = itertools.count(1)
    with operator_progress() as bars:
        task = bars.add_task("reading the plan", total=1.0)
        yield lambda step: bars.update(task, description=f"exact: {step}", completed=next(done) * _STEP)
