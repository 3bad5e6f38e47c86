"""What ``shh plan`` prints: a sentence, from how many users on an item is found, and what the plan is."""

from __future__ import annotations

import contextlib
from typing import Any

from rich.console import Console
from rich.table import Table

from dp_transforms.plan.plan import Plan
from dp_transforms.plan.records import PaidContributions
from dp_transforms.views.plan_words import FOLLOWED, FOUND, NEW, FoundFrom, in_a_sentence, why

_HITS = (1, 3, 10, 30)
_MAX_ITEMS_PER_USER = (1, 3, 10)
_OF_ALL = ("epsilon", "delta", "schedule", "counts", "max_users", "max_items", "most_keys")
_TITLES = {NEW: "new item", FOLLOWED: "followed item"}


def alternatives(chosen: Plan) -> list[Plan]:
    """The chosen plan among others of its mode: with other hits and items per user.

    The others have the default threshold. Plans that the budget cannot pay for are left out.
    """
    plans = []
    for hits in sorted({*_HITS, chosen.hits_per_user}):
        for max_items_per_user in sorted({*_MAX_ITEMS_PER_USER, chosen.charged_hits.max_items_per_user}):
            if (hits, max_items_per_user) == (chosen.hits_per_user, chosen.charged_hits.max_items_per_user):
                plans.append(chosen)
                continue
            with contextlib.suppress(ValueError):
                plans.append(
                    Plan.for_hits(
                        **{name: getattr(chosen, name) for name in _OF_ALL},
                        public_items=chosen.public_items,
                        hits_per_user=hits,
                        max_items_per_user=max_items_per_user,
                    )
                )
    return plans


def as_record(plan: Plan, chosen: Plan) -> dict[str, Any]:
    return {
        "charge": plan.charge,
        "counts": plan.counts,
        "hits_per_user": plan.hits_per_user,
        "max_items_per_user": plan.charged_hits.max_items_per_user,
        "epsilon_per_query": plan.charged_hits.epsilon_per_query,
        "noise_scale": plan.charged_hits.noise.scale,
        "threshold": plan.threshold,
        "zone_width": plan.charged_hits.zone_width,
        "smallest_detectable": plan.smallest_detectable(FOUND),
        "expected_false_reports": plan.expected_false_reports,
        "chosen": plan is chosen,
    }


def choices_table(chosen: Plan, plans: list[Plan]) -> Table:
    table = Table()
    table.add_column("")
    for title in ("hits\nper user", "items per user\nand window", "noise\nscale", "threshold", "found with\n95 %"):
        table.add_column(title, justify="right")
    for before, plan in zip([None, *plans], plans, strict=False):
        if before is not None and before.hits_per_user != plan.hits_per_user:
            table.add_section()
        table.add_row(
            ">" if plan is chosen else "",
            str(plan.hits_per_user),
            str(plan.charged_hits.max_items_per_user),
            f"{plan.charged_hits.noise.scale:,.1f}",
            f"{plan.threshold:,}",
            f"{plan.smallest_detectable(FOUND):,}",
            style="bold" if plan is chosen else None,
        )
    return table


def print_plan(plan: Plan, use: str, found: FoundFrom, choices: list[Plan]) -> None:
    """What it finds in a sentence, for who reads no table; a table of it, and the plan's numbers.

    choices: a charging plan among its alternatives; empty for another one.
    """
    console = Console(highlight=False)
    whole = not console.is_terminal  # lines for programs are not cut
    console.print(in_a_sentence(plan), style="bold", soft_wrap=whole)
    if plan.contributions is not None:
        console.print(f"\n{why(plan, use)}", soft_wrap=whole)
    console.print()
    if plan.contributions is None:
        console.print(choices_table(plan, choices))
        console.print("hits: only items in a zone above the threshold are charged; with counts every report is.\n")
    else:
        console.print(found_table(plan, found))
        for note in _notes(found):
            console.print(note, soft_wrap=whole)
        console.print()
    grid = Table.grid(padding=(0, 2))
    for name, value in plan_lines(plan):
        grid.add_row(name, value)
    console.print(grid)
    console.print(f"\n{plan.guarantee}", soft_wrap=whole)


def found_table(plan: Plan, found: FoundFrom) -> Table:
    """One row for each activity."""
    table = Table(
        title=f"Users from which an item is found with {FOUND:.0%}: epsilon {plan.epsilon:g}, delta {plan.delta:g}, "
        f"{plan.schedule.horizon:,} windows"
    )
    table.add_column("contributions\nof each user", justify="right")
    for method in found:
        table.add_column(_TITLES[method], justify="right")
    for each in found[NEW]:
        table.add_row(f"{each:,}", *(f"{row[each]:,}" for row in found.values()))
    return table


def _notes(found: FoundFrom) -> list[str]:
    notes = ["contributions: how many items in windows each user of the item has in the whole run."]
    if FOLLOWED in found:
        notes.append(
            "followed item: one that was named lately. With rounds it is one that was named in its block of windows,"
            " and a new one is an item of one window alone. In a stream each user has its own pace, and these differ."
        )
    return notes


def plan_lines(plan: Plan) -> list[tuple[str, str]]:
    own = _charging_lines(plan) if plan.contributions is None else _names_lines(plan, plan.contributions)
    if plan.public_item_count:
        alone = f"{plan.expected_false_reports:.2g} reports of items that nobody holds in the whole run"
        others = "; other items count, too" if plan.takes_open_items else ""
        own = [*own, ("public items", f"{plan.public_item_count:,} items; about {alone}{others}")]
    return [
        *own,
        ("delta, charged results" if plan.contributions is None else "delta, contributions", f"{plan.shares.paid:.4g}"),
        ("delta, items of one user", f"{plan.delta_open:.4g}"),
        ("delta, hash collisions", f"{plan.shares.hash:.2g}"),
        ("delta, sampled noise", f"{plan.shares.sampling:.2g}"),
        ("fingerprint", plan.fingerprint[:16]),
    ]


def _names_lines(plan: Plan, paid: PaidContributions) -> list[tuple[str, str]]:
    largest, first = paid.weights[-1], paid.weights[-1]
    of_new, counting = "threshold", f"at most {paid.most_tests:,} of a user"
    of_rounds, noise = plan.prices_of_rounds, f"exp(-|x / {paid.scale / largest:.2f}|^{paid.shape:g})"
    if plan.rounds is not None:
        first, *later = plan.largest_in_rounds
        largest = max(later)
        of_new = "threshold of blocks"
    if len(plan.units_of_rounds) > 1:
        most = [units // prices.units[0] for units, prices in zip(plan.units_of_rounds, of_rounds, strict=True)]
        scales = ", ".join(f"{paid.scale / weight:.2f}" for weight in plan.largest_in_rounds)
        shapes = ", ".join(f"{prices.noise.shape:g}" for prices in of_rounds)
        where = "in the rounds" if plan.second_test is None else "in the first and the second test"
        noise = f"exp(-|x / s|^p), s = {scales} and p = {shapes} {where}"
        counting = f"at most {', '.join(f'{each:,}' for each in most)} of a user {where}"
    if not plan.takes_open_items:
        followed = "all"
    elif plan.followed is not None:
        threshold = plan.followed.threshold / largest
        followed = f"for {plan.followed.forget_after:,} windows after a name, with a threshold of {threshold:.1f}"
    else:
        followed = "none"
    of_each = "" if paid.least_users is None else f"at least {paid.least_users:,} of each item, "
    return [
        (
            "chosen",
            f"contributions, for users with {paid.usual_tests[0]:,} to {paid.usual_tests[1]:,} in the run",
        ),
        ("contributions that count", counting),
        (
            "noise",
            f"{noise}, in users with one contribution; Renyi order {paid.order:.4g}",
        ),
        (of_new, f"{plan.threshold / first:.1f} users with one contribution"),
        ("followed items", followed),
        (
            "sizes",
            f"{of_each}in steps of {of_rounds[-1].spacing / largest:.1f}; all are right but for {paid.size_error:.2g}",
        ),
    ]


def _charging_lines(plan: Plan) -> list[tuple[str, str]]:
    hits, threshold = plan.charged_hits, f"{plan.threshold:,}"
    noise = f"scale {hits.noise.scale:.2f} ({hits.epsilon_per_query:g} = epsilon per query)"
    if hits.wide is not None:
        scales = f"W of scale {hits.noise.scale:,.0f} and V of scale {1 / hits.epsilon_per_query:,.0f}"
        noise = f"W + min(V, {hits.wide.cap:,}), {scales}"
    if hits.zone_width:
        threshold += f" (charged zone: {threshold} to {plan.threshold + hits.zone_width - 1:,})"
    return [
        ("chosen", f"{plan.charge_in_words}, {hits.per_user} hits, {hits.max_items_per_user} items per user"),
        ("noise", noise),
        ("threshold", threshold),
    ]
