"""``shh plan``: what a budget buys, before any data are read."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dp_transforms.accounting.noise_parameters import NoiseParameters
from dp_transforms.accounting.plan_checks import check_hits
from dp_transforms.accounting.release_modes import RELEASE_MODES, TargetChargingMode
from dp_transforms.accounting.release_plan import ReleasePlan
from dp_transforms.discrete_laplace_law import check_epsilon
from dp_transforms.pipelines.output_file import check_output, write_output
from dp_transforms.pipelines.plan_options import (
    PLAN_OPTIONS,
    flag,
    option_error,
    plan_from_options,
    plan_options,
    warn_of_delta,
)

_HITS = (1, 3, 10, 30)
_MAX_ITEMS_PER_USER = (1, 3, 10)
_FOUND = 0.95
_CHARGED_BY_TARGET = [name for name, mode in RELEASE_MODES.items() if isinstance(mode, TargetChargingMode)]


@click.command("plan")
@plan_options
@click.option(
    "--epsilon-per-query",
    type=float,
    help="Instead of a plan, print which epsilon each accountant proves for noise of scale 1 / this. --delta then goes "
    "to the accountant alone and is not split.",
)
@click.option(
    "--output",
    type=click.Path(path_type=pathlib.Path),
    help="Write the chosen plan to this file, as JSON; it must not exist.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(epsilon_per_query: float | None, output: pathlib.Path | None, as_json: bool, **options: Any) -> None:
    """Show what a budget buys: noise, threshold, and the smallest count that is found. Reads no data.

    \b
    shh plan --epsilon 2 --delta 1e-9 --window 1h --start 2017-10-01 --end 2017-10-17
    shh plan --epsilon-per-query 0.1 --hits-per-user 5 --delta 1e-8 --release counts
    """
    if epsilon_per_query is not None:
        _show_accountants(epsilon_per_query, output, as_json, options)
        return
    if output is not None:
        check_output(output)
    with Console(stderr=True).status("calibrating"):
        chosen = plan_from_options(**options)
        rows = _alternatives(chosen, options)
    if output is not None:
        write_output(output, chosen.to_json() + "\n")
    if as_json:
        click.echo(json.dumps(_as_json(chosen, rows), indent=2))
    else:
        _print_plan(chosen, rows)
        if output is not None:
            click.echo(f"Plan written to {output}.")


def _show_accountants(
    epsilon_per_query: float, output: pathlib.Path | None, as_json: bool, options: dict[str, Any]
) -> None:
    """Prints the epsilon that every accountant proves for one noise, number of hits and delta."""
    used = ("delta", "release", "hits_per_user")
    unused = [flag(name) for name in PLAN_OPTIONS if name not in used and options[name] is not None]
    if unused or output is not None:
        raise click.UsageError(
            f"--epsilon-per-query cannot be used with {', '.join(unused or ['--output'])}. Leave one out."
        )
    if options["delta"] is None:
        raise click.UsageError("Missing --delta.")
    release = options["release"] or _CHARGED_BY_TARGET[0]
    mode = RELEASE_MODES[release]
    if not isinstance(mode, TargetChargingMode):
        raise click.UsageError(
            f"--epsilon-per-query cannot be used with --release {release}, whose noise has three numbers."
        )
    hits = mode.default_hits if options["hits_per_user"] is None else options["hits_per_user"]
    try:
        check_epsilon(epsilon_per_query)
        check_hits(hits)
        q = mode.target_probability(epsilon_per_query)
        noise = NoiseParameters(epsilon_per_query)
        epsilons = {name: mode.accountant(name, noise, hits).epsilon(options["delta"]) for name in mode.accountants}
    except ValueError as error:
        raise option_error(error) from None
    warn_of_delta(options["delta"])
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


def _alternatives(chosen: ReleasePlan, options: dict[str, Any]) -> list[ReleasePlan]:
    """The chosen plan among others: with other hits, items per user and, unless --release is given, release mode.

    The others have the default threshold. Plans that the budget cannot pay for are left out.
    """
    plans = []
    for release in _CHARGED_BY_TARGET if options["release"] is None else (chosen.release,):
        for hits in sorted({*_HITS, chosen.hits_per_user}):
            for max_items_per_user in sorted({*_MAX_ITEMS_PER_USER, chosen.max_items_per_user}):
                if (release, hits, max_items_per_user) == (
                    chosen.release,
                    chosen.hits_per_user,
                    chosen.max_items_per_user,
                ):
                    plans.append(chosen)
                    continue
                try:
                    plans.append(
                        ReleasePlan.calibrate(
                            epsilon=chosen.epsilon,
                            delta=chosen.delta,
                            schedule=chosen.schedule,
                            hits_per_user=hits,
                            max_items_per_user=max_items_per_user,
                            release=release,
                            domain=chosen.domain,
                            max_users=chosen.max_users,
                            max_items=chosen.max_items,
                            accountant=chosen.accountant,
                        )
                    )
                except ValueError:
                    continue
    return plans


def _as_json(chosen: ReleasePlan, plans: list[ReleasePlan]) -> dict[str, Any]:
    return {
        "plans": [
            {
                "release": plan.release,
                "hits_per_user": plan.hits_per_user,
                "max_items_per_user": plan.max_items_per_user,
                "epsilon_per_query": plan.epsilon_per_query,
                "noise_scale": plan.noise_scale,
                "threshold": plan.threshold,
                "zone_width": plan.zone_width,
                "smallest_detectable": plan.smallest_detectable(_FOUND),
                "expected_false_reports": plan.expected_false_reports,
                "chosen": plan is chosen,
            }
            for plan in plans
        ],
        "chosen": json.loads(chosen.to_json()),
        "fingerprint": chosen.fingerprint,
        "guarantee": chosen.guarantee,
    }


def _print_plan(chosen: ReleasePlan, plans: list[ReleasePlan]) -> None:
    console = Console(highlight=False)
    table = Table(title=f"epsilon {chosen.epsilon:g}, delta {chosen.delta:g}, {chosen.schedule.horizon:,} windows")
    table.add_column("")
    table.add_column("release")
    for title in ("hits\nper user", "items per user\nand window", "noise\nscale", "threshold", "found with\n95 %"):
        table.add_column(title, justify="right")
    for before, plan in zip([None, *plans], plans, strict=False):
        if before is not None and (before.release, before.hits_per_user) != (plan.release, plan.hits_per_user):
            table.add_section()
        table.add_row(
            ">" if plan is chosen else "",
            plan.release,
            str(plan.hits_per_user),
            str(plan.max_items_per_user),
            f"{plan.noise_scale:,.1f}",
            f"{plan.threshold:,}",
            f"{plan.smallest_detectable(_FOUND):,}",
            style="bold" if plan is chosen else None,
        )
    console.print(table)
    console.print(
        "found with 95 %: how many users an item needs in a window to be reported, if none of them is excluded.\n"
        "labels: only items in a zone above the threshold are hits; counts and kms21: every report is a hit.\n"
    )
    lines = [
        ("chosen", f"{chosen.release}, {chosen.hits_per_user} hits, {chosen.max_items_per_user} items per user"),
        ("noise", _noise_text(chosen)),
        ("threshold", _threshold_text(chosen)),
        *([("known domain", _domain_text(chosen))] if chosen.domain_size else []),
        ("accountant", chosen.accountant),
        ("delta, charged results", f"{chosen.delta_accounting:.4g}"),
        ("delta, items of one user", f"{chosen.delta_open:.4g}"),
        ("delta, hash collisions", f"{chosen.delta_hash:.2g}"),
        ("delta, sampled noise", f"{chosen.delta_sampling:.2g}"),
        ("fingerprint", chosen.fingerprint[:16]),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in lines:
        grid.add_row(name, value)
    console.print(grid)
    console.print(f"\n{chosen.guarantee}", soft_wrap=True)
    if chosen.release == "kms21":
        console.print(f"\n{_price_of_kms21(chosen)}", soft_wrap=True)


def _noise_text(plan: ReleasePlan) -> str:
    if plan.release == "kms21":
        return (
            f"W + min(V, {plan.noise_cap:,}), W of scale {plan.noise_scale:,.0f} and V of scale"
            f" {1 / plan.epsilon_per_query:,.0f}"
        )
    return f"scale {plan.noise_scale:.2f} ({plan.epsilon_per_query:g} = epsilon per query)"


def _domain_text(plan: ReleasePlan) -> str:
    return (
        f"{plan.domain_size:,} items; about {plan.expected_false_reports:.2g} reports of items that nobody holds in the"
        " whole run"
    )


def _price_of_kms21(chosen: ReleasePlan) -> str:
    """The same guarantee in labels mode, to compare."""
    try:
        labels = ReleasePlan.calibrate(
            epsilon=chosen.epsilon,
            delta=chosen.delta,
            schedule=chosen.schedule,
            max_items_per_user=chosen.max_items_per_user,
            domain=chosen.domain,
            max_users=chosen.max_users,
            max_items=chosen.max_items,
        )
    except ValueError:
        return "labels cannot keep this guarantee either. Raise --epsilon or --delta."
    return (
        f"kms21 needs {chosen.noise_scale / labels.noise_scale:,.0f} times the noise of labels (scale"
        f" {labels.noise_scale:.1f}, found from {labels.smallest_detectable(_FOUND):,} users on) for the same"
        " guarantee. It is there for comparison: use --release labels."
    )


def _threshold_text(plan: ReleasePlan) -> str:
    if plan.zone_width == 0:
        return f"{plan.threshold:,}"
    return f"{plan.threshold:,} (charged zone: {plan.threshold:,} to {plan.threshold + plan.zone_width - 1:,})"
