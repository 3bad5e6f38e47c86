"""``shh audit --plan FILE``: the most that the mechanism of a plan can reveal, against what the plan claims."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator

import click
from rich.console import Console

from dp_transforms.audit.exact_hits import audit_exactly
from dp_transforms.audit.exact_looks import audit_looks_exactly, run_violations
from dp_transforms.audit.mechanism import HitsClaim, LooksClaim, LooksMechanism, Mechanism
from dp_transforms.audit.streams import default_rounds
from dp_transforms.cli.audit_report import AuditReport, HitsReport, LooksReport
from dp_transforms.cli.operator_log import operator_progress
from dp_transforms.cli.options import filled_by, opt
from dp_transforms.cli.output_file import check_output, write_output
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.core.planned_run import PlannedRun, fresh_run_id
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan

_STEP = 0.2  # of the time of an audit, about


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The command line of ``shh audit``."""

    plan_file: str | None = opt("", "The plan to check, a file of `shh plan --output`.", "--plan", metavar="FILE")
    rounds: int | None = opt(
        "",
        "How many items the adversary gives the user, one per window if there are enough windows; if users pay for "
        "contributions, the most of the user in what is tried. "
        "Default: until the user is excluded, or its user budget is spent.",
        type=click.IntRange(min=1, max=100_000),
        metavar="N",
    )
    output: str | None = opt(
        "", "Also write all numbers here, as JSON.", type=click.Path(path_type=str), metavar="FILE"
    )


@filled_by(AuditOptions, "audit")
def command(options: AuditOptions) -> None:
    """Check a plan before it is used: the most that its mechanism can reveal, computed exactly, against what the plan
    claims. Uses no data and no noise key; takes less than a minute. Exit code 1 if a claim does not hold.

    \b
    shh plan --epsilon 2 --delta 1e-9 --window 1h --start 2026-01-01 --end 2026-02-01 --output plan.json
    shh audit --plan plan.json --output audit.json
    """
    plan_file, rounds, output = options.plan_file, options.rounds, options.output
    if plan_file is None:
        raise click.UsageError("Missing --plan. Write a plan with `shh plan --output plan.json`, then give it here.")
    check_output(output)
    plan = read_plan(plan_file)
    with _progress() as advance:
        if plan.contributions is not None:
            report: AuditReport = audit_looks(plan, rounds, advance)
        else:
            report = audit_hits(plan, rounds, advance)
    finish(report, output)


def finish(report: AuditReport, output: str | None) -> None:
    """Prints and writes the result. Raises UserError if a claim does not hold."""
    if output is not None:
        write_output(output, json.dumps(report.record(), indent=2, allow_nan=False) + "\n")
    report.print(Console(highlight=False, markup=False))
    if output is not None:
        click.echo(f"All numbers are in {output}.")
    if report.violations:
        raise UserError(f"DO NOT USE THIS PLAN. A claim does not hold: {'; '.join(report.violations)}.")


def audit_hits(plan: Plan, rounds: int | None, advance: Callable[[str], None]) -> HitsReport:
    """rounds: items of the user."""
    mechanism = Mechanism.of_plan(plan)
    rounds = default_rounds(mechanism) if rounds is None else rounds
    exact = audit_exactly(mechanism, HitsClaim.of_plan(plan), rounds=rounds, on_step=advance)
    return HitsReport(plan, dataclasses.replace(exact, violations=(*exact.violations, *_violations_of_run(plan))))


def audit_looks(plan: Plan, rounds: int | None, advance: Callable[[str], None]) -> LooksReport:
    """rounds: most looks of the user in the streams tried; None: all that a purse pays for."""
    mechanism, claim = LooksMechanism.of_plan(plan), LooksClaim.of_plan(plan)
    exact = audit_looks_exactly(mechanism, claim, most_tests=rounds, on_step=advance)
    return LooksReport(plan, dataclasses.replace(exact, violations=(*exact.violations, *_violations_of_run(plan))))


def _violations_of_run(plan: Plan) -> Iterator[str]:
    return run_violations(plan, PlannedRun(plan=plan, stream="audit", run_id=fresh_run_id()))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is done."""
    done = itertools.count(1)
    with operator_progress() as bars:
        task = bars.add_task("reading the plan", total=1.0)
        yield lambda step: bars.update(task, description=f"exact: {step}", completed=next(done) * _STEP)
