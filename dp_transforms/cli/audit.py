"""``shh audit --plan FILE``: the most that the mechanism of a plan can reveal, against what the plan claims."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator

import click
from rich.console import Console

from dp_transforms.audit.exact_hits import audit_exactly
from dp_transforms.audit.exact_looks import audit_looks_exactly, run_violations
from dp_transforms.audit.look_law import NoiseLaw
from dp_transforms.audit.mechanism import HitsClaim, LooksClaim, LooksMechanism, Mechanism
from dp_transforms.audit.payments import audit_payments
from dp_transforms.audit.sampled_hits import StreamDesign, design_sampling, sample_stream
from dp_transforms.audit.sampled_looks import LooksDesign, design_looks_sampling, sample_names
from dp_transforms.audit.statistics import SampledAudit
from dp_transforms.audit.streams import default_rounds
from dp_transforms.cli.audit_mode_reports import HitsReport, LooksReport
from dp_transforms.cli.audit_report import AuditReport
from dp_transforms.cli.operator_log import operator_progress
from dp_transforms.cli.options import filled_by, opt
from dp_transforms.cli.output_file import check_output, write_output
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.errors import UserError
from dp_transforms.monitor.planned_run import PlannedRun, fresh_run_id
from dp_transforms.plan.plan import Plan

_MOST_RUNS = 200_000
_LEAST_RUNS = 1_000
_HITS_OF_ALL_RUNS = 600_000  # about 15 seconds for each world
_HOLDERS_OF_ALL_RUNS = 40 * _HITS_OF_ALL_RUNS  # in mode `hits` an item has about as many holders as the zone is wide

# Of the time of an audit, about: each of the exact steps, all of them, and what comes before the sampling.
_EXACT_STEP, _EXACT_SHARE, _SAMPLED_FROM = 0.08, 0.32, 0.5

Advance = Callable[[str, float], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The command line of ``shh audit``."""

    plan_file: str | None = opt("", "The plan to check, a file of `shh plan --output`.", "--plan", metavar="FILE")
    runs: int | None = opt(
        "",
        "Runs of the real code with the user, and as many without; 0: no runs, only exact computation. "
        f"Default: {_MOST_RUNS:,}; fewer if a run has more than three hits, a wide zone or many holders.",
        type=click.IntRange(min=0, max=10_000_000),
        metavar="N",
    )
    rounds: int | None = opt(
        "",
        "How many items the adversary gives the user, one per window if there are enough windows; in mode looks, the "
        "most looks of the user in what is tried. "
        "Default: until the user is excluded, or its purse is empty.",
        type=click.IntRange(min=1, max=100_000),
        metavar="N",
    )
    output: str | None = opt(
        "", "Also write all numbers here, as JSON.", type=click.Path(path_type=str), metavar="FILE"
    )


@filled_by(AuditOptions, "audit")
def command(options: AuditOptions) -> None:
    """Check a plan before it is used: the most that its mechanism can reveal, computed exactly and by running the real
    code, against what the plan claims. Uses no data and no noise key; takes about a minute. Exit code 1 if a claim does
    not hold.

    \b
    shh plan --epsilon 2 --delta 1e-9 --window 1h --start 2026-01-01 --end 2026-02-01 --output plan.json
    shh audit --plan plan.json --output audit.json
    """
    plan_file, runs, rounds, output = options.plan_file, options.runs, options.rounds, options.output
    if plan_file is None:
        raise click.UsageError("Missing --plan. Write a plan with `shh plan --output plan.json`, then give it here.")
    check_output(output)
    plan = read_plan(plan_file)
    with _progress() as advance:
        if plan.looks is not None:
            report: AuditReport = audit_looks(plan, runs, rounds, advance)
        else:
            report = audit_hits(plan, runs, rounds, advance)
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


def audit_hits(plan: Plan, runs: int | None, rounds: int | None, advance: Advance) -> HitsReport:
    """runs: of the real code, in each world; 0: the real code is not run. rounds: items of the user."""
    mechanism, claim = Mechanism.of_plan(plan), HitsClaim.of_plan(plan)
    run = PlannedRun(plan=plan, stream="audit", run_id=fresh_run_id())
    rounds = default_rounds(mechanism) if rounds is None else rounds
    runs = _default_runs(plan) if runs is None else runs
    exact = audit_exactly(mechanism, claim, rounds=rounds, on_step=_exact_steps(advance))
    exact = dataclasses.replace(exact, violations=(*exact.violations, *run_violations(plan, run)))
    return HitsReport(plan, exact, sample_hits(mechanism, claim, run, runs, rounds, advance) if runs else None)


def sample_hits(
    mechanism: Mechanism, claim: HitsClaim, run: PlannedRun, runs: int, rounds: int, advance: Advance
) -> SampledAudit[StreamDesign]:
    """Runs the real code with a noise key that is drawn for this audit and forgotten."""
    advance("choosing what to sample", _SAMPLED_FROM)
    design = design_sampling(mechanism, claim, runs, rounds)
    return sample_stream(mechanism, claim, run, design, os.urandom(32), _sampled_steps(advance))


def audit_looks(plan: Plan, runs: int | None, rounds: int | None, advance: Advance) -> LooksReport:
    """runs: as above. rounds: most looks of the user in the streams tried; None: all that a purse pays for."""
    mechanism, claim = LooksMechanism.of_plan(plan), LooksClaim.of_plan(plan)
    run = PlannedRun(plan=plan, stream="audit", run_id=fresh_run_id())
    runs = _MOST_RUNS if runs is None else runs
    exact = audit_looks_exactly(mechanism, claim, most_looks=rounds, on_step=_exact_steps(advance))
    exact = dataclasses.replace(exact, violations=(*exact.violations, *run_violations(plan, run)))
    if not runs:
        return LooksReport(plan, exact)
    advance("what users pay", _EXACT_SHARE)
    payments = audit_payments(mechanism, run, os.urandom(32))
    return LooksReport(plan, exact, payments, sample_looks(mechanism, claim, run, runs, rounds, advance))


def sample_looks(
    mechanism: LooksMechanism,
    claim: LooksClaim,
    run: PlannedRun,
    runs: int,
    rounds: int | None,
    advance: Advance,
) -> SampledAudit[LooksDesign]:
    """The same where users pay for looks."""
    advance("choosing what to sample", _SAMPLED_FROM)
    law = NoiseLaw.whole(mechanism.shape, mechanism.scale)
    most_looks = mechanism.most_looks if rounds is None else rounds
    design = design_looks_sampling(mechanism, claim, law, runs, most_looks)
    return sample_names(mechanism, claim, run, design, law, os.urandom(32), _sampled_steps(advance))


def _exact_steps(advance: Advance) -> Callable[[str], None]:
    done = itertools.count()
    return lambda step: advance(f"exact: {step}", min(next(done) * _EXACT_STEP, _EXACT_SHARE))


def _sampled_steps(advance: Advance) -> Advance:
    return lambda step, share: advance(step, _SAMPLED_FROM + share * (1 - _SAMPLED_FROM))


def _default_runs(plan: Plan) -> int:
    """As many as about half a minute allows."""
    affordable = (
        min(_HITS_OF_ALL_RUNS, _HOLDERS_OF_ALL_RUNS // (plan.charged_hits.zone_width + 1)) // plan.hits_per_user
    )
    return min(_MOST_RUNS, max(_LEAST_RUNS, affordable))


@contextlib.contextmanager
def _progress() -> Iterator[Advance]:
    """A line on stderr that says what is done."""
    with operator_progress() as bars:
        task = bars.add_task("reading the plan", total=1.0)
        yield lambda text, share: bars.update(task, description=text, completed=share)
