"""``shh plan --epsilon-per-query``: which epsilon each accountant proves for one noise."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dp_transforms.accounting.release_modes import RELEASE_MODES, NoiseParameters, TargetChargingMode
from dp_transforms.cli.plan_options import PLAN_OPTIONS, flag, option_error, warn_of_budget
from dp_transforms.mechanisms.discrete_laplace_law import check_epsilon
from dp_transforms.plan.plan_checks import check_hits

CHARGED_BY_TARGET = [name for name, mode in RELEASE_MODES.items() if isinstance(mode, TargetChargingMode)]
_USED = ("delta", "release", "hits_per_user")


def show_accountants(
    epsilon_per_query: float, outputs: dict[str, str | None], as_json: bool, options: dict[str, Any]
) -> None:
    """Prints the epsilon that every accountant proves for one noise, number of hits and delta.

    outputs: by their flags; none can be used here.
    """
    unused = [flag(name) for name in PLAN_OPTIONS if name not in _USED and options[name] is not None]
    unused += [name for name, path in outputs.items() if path is not None]
    if unused:
        raise click.UsageError(f"--epsilon-per-query cannot be used with {', '.join(unused)}. Leave one out.")
    if options["delta"] is None:
        raise click.UsageError("Missing --delta.")
    release = options["release"] or CHARGED_BY_TARGET[0]
    mode = RELEASE_MODES.get(release)
    if not isinstance(mode, TargetChargingMode):
        reason = "whose noise has three numbers" if mode else "where users pay for looks"
        raise click.UsageError(f"--epsilon-per-query cannot be used with --release {release}, {reason}.")
    hits = mode.default_hits if options["hits_per_user"] is None else options["hits_per_user"]
    try:
        check_epsilon(epsilon_per_query)
        check_hits(hits)
        q = mode.target_probability(epsilon_per_query)
        noise = NoiseParameters(epsilon_per_query)
        epsilons = {name: mode.accountant(name, noise, hits).epsilon(options["delta"]) for name in mode.accountants}
    except ValueError as error:
        raise option_error(error) from None
    warn_of_budget(None, options["delta"])
    record = {
        "release": release,
        "epsilon_per_query": epsilon_per_query,
        "hits_per_user": hits,
        "delta": options["delta"],
        "zone_width": mode.zone_width(noise),
        "target_probability": q,
        "epsilon": epsilons,
    }
    if as_json:
        click.echo(json.dumps(record, indent=2))
        return
    table = Table(
        title=f"epsilon at delta = {options['delta']:g}, {release}, {hits} hits per user, noise scale "
        f"{1 / epsilon_per_query:.4g}"
    )
    table.add_column("accountant")
    table.add_column("epsilon", justify="right")
    for name, value in epsilons.items():
        table.add_row(name, f"{value:.4f}")
    Console().print(table)
