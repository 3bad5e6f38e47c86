"""``shh ledger``: what users have lost in all runs together, and what is left; and a run that is at its end."""

from __future__ import annotations

import click

from dp_transforms.cli.options import Command, Options, option
from dp_transforms.errors import UserError
from dp_transforms.reports import ReportFileError, read_report_file
from dp_transforms.runs.ledger import Ledger, Shown
from dp_transforms.runs.records import Status
from dp_transforms.runs.state_file import StateFile
from dp_transforms.views.ledger_tables import json_of, print_balances, print_runs

_END = "This run will never go on. If no part of it has a start record it drew nothing, and is not charged any more."


@click.command(
    "ledger",
    cls=Command,
    params=[
        click.Argument(["files"], nargs=-1, metavar="[FILE]..."),
        option(["--ledger", "place"], required=True, metavar="FILE", help="The ledger: a file."),
        option(["--population"], metavar="NAME", help="Show this population, and each of its runs."),
        option(["--end"], metavar="RUN-ID", help=_END),
        option(["--json", "as_json"], is_flag=True, help="Print one JSON object, with exact amounts."),
    ],
)
def command(options: Options) -> None:
    """Show what users have lost in all runs together, and what is left, for each population.

    A ledger that was restored from a backup has forgotten what was spent since. Name the newest reports and states of
    its runs as FILE: if it does not know of them, it is an older copy, and the exit code is 1.
    """
    ledger = Ledger(options.place)
    faults = ledger.faults([_shown(path) for path in options.files])
    for fault in faults:
        click.echo(f"FAULT: {fault}")
    if faults:
        raise UserError("the ledger must not be used as it is.")
    if options.end is not None:
        status = ledger.end(options.end)
        charged = "not charged any more" if status == Status.RELEASED else "still charged"
        click.echo(f"Run {options.end} is {status}, and {charged}.")
        return
    balances, runs = ledger.balances(options.population), ledger.runs(options.population)
    if options.as_json:
        click.echo(json_of(balances, runs))
        return
    print_balances(balances)
    if options.population is not None:
        print_runs(runs)


def _shown(path: str) -> Shown:
    """What a report or a state says of its run. Raises UserError."""
    try:
        header, _ = read_report_file(path)
        return Shown(path, header.run_id)
    except (ReportFileError, OSError):
        state = StateFile(path)
    return Shown(path, state.header.run_id, state.header.closed_through, state.fingerprint)
