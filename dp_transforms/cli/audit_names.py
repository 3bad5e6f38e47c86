"""``shh audit`` for a plan of release mode `names`: its parts in order, and what comes out of them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable

import click
from rich.console import Console

from dp_transforms.audit.names.exact import NamesExactAudit, audit_names_exactly
from dp_transforms.audit.names.mechanism import NamesClaim, NamesMechanism
from dp_transforms.audit.names.noise_law import NoiseLaw
from dp_transforms.audit.names.payments import PaymentAudit, audit_payments
from dp_transforms.audit.names.sampled import NamesSampledAudit, design_names_sampling, sample_names
from dp_transforms.audit.worker_settings import settings_violations
from dp_transforms.cli.audit_names_report import as_record, print_audit, violations_of
from dp_transforms.cli.output_file import write_output
from dp_transforms.errors import UserError
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.run_settings import fresh_run_id, settings_of_plan
from dp_transforms.plan.names_plan import NamesPlan

DEFAULT_RUNS = 200_000

Advance = Callable[[str, float], None]


def audit_names(
    plan: NamesPlan, runs: int | None, rounds: int | None, advance: Advance
) -> tuple[NamesExactAudit, PaymentAudit | None, NamesSampledAudit | None]:
    """runs: of the real code, in each world; None: the default; 0: the real code is not run. rounds: most looks of the
    user in the streams tried; None: all that a purse pays for."""
    mechanism, claim = NamesMechanism.of_plan(plan), NamesClaim.of_plan(plan)
    exact = audit_names_exactly(
        mechanism, claim, most_looks=rounds, on_step=lambda step: advance(f"exact: {step}", 0.0)
    )
    settings = settings_of_plan(plan, stream="audit", run_id=fresh_run_id())
    exact = dataclasses.replace(exact, violations=(*exact.violations, *settings_violations(plan, settings)))
    if runs == 0:
        return exact, None, None
    advance("what users pay", 0.0)
    payments = audit_payments(mechanism, settings, os.urandom(32))
    advance("choosing what to sample", 0.0)
    sampled = sample(mechanism, claim, settings, DEFAULT_RUNS if runs is None else runs, rounds, advance)
    return exact, payments, sampled


def sample(
    mechanism: NamesMechanism,
    claim: NamesClaim,
    settings: NamingSettings,
    runs: int,
    rounds: int | None,
    advance: Advance,
) -> NamesSampledAudit:
    """Runs the real code with a noise key that is drawn for this audit and forgotten."""
    law = NoiseLaw.whole(mechanism.shape, mechanism.scale)
    most_looks = mechanism.most_looks if rounds is None else rounds
    design = design_names_sampling(mechanism, claim, law, runs, most_looks)
    return sample_names(mechanism, claim, settings, design, law, os.urandom(32), advance)


def finish(
    plan: NamesPlan,
    exact: NamesExactAudit,
    payments: PaymentAudit | None,
    sampled: NamesSampledAudit | None,
    output: str | None,
) -> None:
    """Prints and writes the result. Raises UserError if a claim does not hold."""
    if output is not None:
        record = as_record(plan, exact, payments, sampled)
        write_output(output, json.dumps(record, indent=2, allow_nan=False) + "\n")
    print_audit(Console(highlight=False, markup=False), plan, exact, payments, sampled)
    if output is not None:
        click.echo(f"All numbers are in {output}.")
    violations = violations_of(exact, payments, sampled)
    if violations:
        raise UserError(f"DO NOT USE THIS PLAN. A claim does not hold: {'; '.join(violations)}.")
