"""A plan that charges hits among its alternatives: with other hits and items per user."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from dp_transforms.plan.charging_plan import ChargingPlan
from dp_transforms.views.plan_comparison import FOUND

_HITS = (1, 3, 10, 30)
_MAX_ITEMS_PER_USER = (1, 3, 10)


def alternatives(chosen: ChargingPlan) -> list[ChargingPlan]:
    """The chosen plan among others of its release mode: with other hits and items per user.

    The others have the default threshold. Plans that the budget cannot pay for are left out.
    """
    plans = []
    for hits in sorted({*_HITS, chosen.hits_per_user}):
        for max_items_per_user in sorted({*_MAX_ITEMS_PER_USER, chosen.max_items_per_user}):
            if (hits, max_items_per_user) == (chosen.hits_per_user, chosen.max_items_per_user):
                plans.append(chosen)
                continue
            try:
                plans.append(
                    ChargingPlan.calibrate(
                        epsilon=chosen.epsilon,
                        delta=chosen.delta,
                        schedule=chosen.schedule,
                        hits_per_user=hits,
                        max_items_per_user=max_items_per_user,
                        release=chosen.release,
                        domain=chosen.domain,
                        max_users=chosen.max_users,
                        max_items=chosen.max_items,
                        accountant=chosen.accountant,
                    )
                )
            except ValueError:
                continue
    return plans


def as_record(plan: ChargingPlan, chosen: ChargingPlan) -> dict[str, Any]:
    return {
        "release": plan.release,
        "hits_per_user": plan.hits_per_user,
        "max_items_per_user": plan.max_items_per_user,
        "epsilon_per_query": plan.epsilon_per_query,
        "noise_scale": plan.noise_scale,
        "threshold": plan.threshold,
        "zone_width": plan.zone_width,
        "smallest_detectable": plan.smallest_detectable(FOUND),
        "expected_false_reports": plan.expected_false_reports,
        "chosen": plan is chosen,
    }


def choices_table(chosen: ChargingPlan, plans: list[ChargingPlan]) -> Table:
    table = Table()
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
            f"{plan.smallest_detectable(FOUND):,}",
            style="bold" if plan is chosen else None,
        )
    return table
