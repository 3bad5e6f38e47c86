"""``shh ledger``: what users have lost in all runs together, what is left, and what an operator may do about it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

from dp_transforms.cli.operator_log import note_done
from dp_transforms.cli.options import CAPS, user_errors
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.cli.run_account import caps_of
from dp_transforms.errors import UserError
from dp_transforms.reports import ReportFileError, read_report_file
from dp_transforms.runs.ledger import Ledger, Shown
from dp_transforms.runs.records import PartRequest
from dp_transforms.runs.state_file import StateFile
from dp_transforms.views.ledger_tables import json_of, print_balances, print_runs

_F = TypeVar("_F", bound=Callable[..., Any])


def _ledger_option(function: _F) -> _F:
    return click.option("--ledger", "place", metavar="FILE", help="The ledger: a file.")(function)


@click.group(name="ledger", invoke_without_command=True)
@_ledger_option
@click.option("--population", metavar="NAME", help="Show this population, and each of its runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with exact amounts.")
@click.pass_context
def command(context: click.Context, place: str | None, population: str | None, as_json: bool) -> None:
    """Show what users have lost in all runs together, and what is left, for each population."""
    context.meta["shh.ledger"] = place
    if context.invoked_subcommand is not None:
        return
    ledger = _opened(place)
    balances, runs = ledger.balances(population), ledger.runs(population)
    if as_json:
        click.echo(json_of(balances, runs))
        return
    print_balances(balances)
    if population is not None:
        print_runs(runs)


@command.command("reserve")
@_ledger_option
@click.option("--population", metavar="NAME", required=True, help="Name for all streams that share users.")
@click.option("--plan", "plan_file", metavar="FILE", required=True, help="A plan of `shh plan --output`.")
@click.option("--stream", default="events", show_default=True, metavar="NAME", help="Name of the stream.")
@click.option("--run-id", help="Name of the run. Default: a fresh one.")
@click.option("--caps", nargs=2, metavar="EPSILON DELTA", help=f"{CAPS[0].upper()}{CAPS[1:]}")
def reserve(
    place: str | None,
    population: str,
    plan_file: str,
    stream: str,
    run_id: str | None,
    caps: tuple[str, str] | None,
) -> None:
    """Set the budget of a run aside before it begins. Makes the ledger, and declares the population, if they are
    new.
    """
    plan = read_plan(plan_file)
    with user_errors(ValueError):
        request = PartRequest.whole(plan, population=population, stream=stream, run_id=run_id or "")
    verdict = _opened(place).reserve_run(request, caps_of(caps))
    note_done()  # else who reads an exit code reserves again
    click.echo(
        f"Run {verdict.run_id}: {verdict.line}\nNow run it: shh replay or shh stream with --run-id"
        f" {shlex.quote(verdict.run_id)}, and --plan, --ledger, --population and --stream as here. Without --run-id"
        " another run is charged."
    )


@command.command("release")
@_ledger_option
@click.argument("run_id")
def release(place: str | None, run_id: str) -> None:
    """Give back what RUN_ID was charged. Only of a run that has no start record, and so drew nothing."""
    _opened(place).release(run_id)
    click.echo(f"Run {run_id} is released: it drew nothing, and is not charged any more.")


@command.command("abandon")
@_ledger_option
@click.argument("run_id")
def abandon(place: str | None, run_id: str) -> None:
    """Say that RUN_ID will never go on. What it cost stays spent."""
    _opened(place).abandon(run_id)
    click.echo(f"Run {run_id} is abandoned. What it cost stays spent.")


@command.command("doctor")
@_ledger_option
@click.argument("files", metavar="[FILE]...", nargs=-1)
def doctor(place: str | None, files: tuple[str, ...]) -> None:
    """Say what is wrong with a ledger, and which runs need a hand. Ends with exit code 1 if there is a fault.

    A ledger that was restored from a backup has forgotten what was spent since. Name the newest reports and states of
    its runs as FILE: if it does not know of them, it is an older copy.
    """
    findings = _opened(place).findings([_shown(path) for path in files])
    for finding in findings:
        click.echo(f"{'FAULT' if finding.is_fault else 'note'}: {finding.text}")
    if any(finding.is_fault for finding in findings):
        raise UserError("the ledger must not be used as it is.")
    click.echo("The ledger is sound.")


def _shown(path: str) -> Shown:
    """What a report or a state says of its run. Raises UserError."""
    try:
        header, _ = read_report_file(path)
        return Shown(path, header.run_id)
    except (ReportFileError, OSError):
        state = StateFile(path)
    return Shown(path, state.header.run_id, state.header.closed_through, state.fingerprint)


def _opened(place: str | None) -> Ledger:
    """The ledger of the command or of its subcommand."""
    place = place or click.get_current_context().meta.get("shh.ledger")
    if place is None:
        raise click.UsageError("--ledger is missing: name a file.")
    return Ledger(place)
