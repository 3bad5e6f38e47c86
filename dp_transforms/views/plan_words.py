"""A plan in one sentence, for readers who know no statistics."""

from __future__ import annotations

import math

from dp_transforms.plan.plan import Plan
from dp_transforms.plan.plan_comparison import (
    FOUND,
    HITS_TO_COMPARE,
    LOOKS_ALONE,
    LOOKS_AND_HITS,
    LOOKS_NEW,
    FoundFrom,
    likely_hits,
)
from dp_transforms.views.report_words import counted

_UNITS = ((604_800, "week"), (86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def in_a_sentence(plan: Plan) -> str:
    """From how many users on an item is found, for two activities where it depends on them."""
    what = f"{_window_of_item(plan.schedule.window_seconds)} (a story, a search, an error) is found from about"
    run = f"in these {_duration(plan.schedule.end_seconds - plan.schedule.start_seconds)}"
    if plan.looks is not None:
        few, many = _usual(plan)
        first = f"{what} {plan.found_from(few, FOUND):,} users on, if each of them has {counted(few, 'item')} {run}"
        return f"{first}." if few == many else f"{first}; from {plan.found_from(many, FOUND):,} if each has {many:,}."
    hits = "its one hit is" if plan.hits_per_user == 1 else f"all {plan.hits_per_user:,} hits are"
    return (
        f"{what} {plan.smallest_detectable(FOUND):,} users on, however many items each of them has {run}; a user no"
        f" longer counts once {hits} used up."
    )


def why(plan: Plan, found: FoundFrom) -> str:
    """Why a plan of mode `looks` has a price for hits or none; empty for another plan.

    found: of a `Comparison`. It compares at the largest of its activities that is usual.
    """
    if plan.looks is None:
        return ""
    if plan.rounds is not None:
        first, block = plan.rounds.units[0] / plan.looks.purse, _duration(plan.rounds.block_seconds)
        return (
            f"Looks are paid for in {len(plan.rounds.units)} rounds. The first, with {first:.0%} of each purse, names"
            f" items in blocks of {block}; the others look at the windows of these items alone, where they are not"
            " named yet."
        )
    if plan.window_rounds is not None:
        shares = ", ".join(f"{units / plan.looks.purse:.0%}" for units in plan.window_rounds.units)
        return (
            f"Each window is looked at in {len(plan.window_rounds.units)} rounds, which are paid with {shares} of each"
            " purse. A later round looks at what is not named yet."
        )
    few, many = plan.looks.usual_looks
    usual = f"{counted(few, 'item')} in the run" if few == many else f"{few:,} to {many:,} items"
    paid = f"are paid for: most users have {usual}."
    looks = max((each for each in found[LOOKS_NEW] if each <= many), default=min(found[LOOKS_NEW]))
    users, items = found[LOOKS_NEW][looks], counted(looks, "item")
    if plan.hits_per_user:
        alone = found.get(LOOKS_ALONE, {}).get(looks)
        instead = "" if alone is None else f" instead of {alone:,}"
        return (
            f"Looks and hits {paid} With a price for hits an item of users with {items} each is found from {users:,}"
            f" users on{instead}, until they have had {counted(plan.hits_per_user, 'hit')}; then they no longer count."
        )
    with_hits = found.get(LOOKS_AND_HITS, {}).get(looks)
    if with_hits is None or with_hits >= users:
        return f"Looks alone {paid} A price for hits would find no more."
    return (
        f"Looks alone {paid} With a price for hits an item of users with {items} each would be found from"
        f" {with_hits:,} users on instead of {users:,}, but only until each has had {counted(HITS_TO_COMPARE, 'hit')};"
        f" a user with {items} may have some {likely_hits(looks):,}. Use --hits-per-user where few of a user's items"
        " are near the threshold."
    )


def _usual(plan: Plan) -> tuple[int, int]:
    """Two of the usual numbers of looks: the middle one, by powers, as a round number, and the largest."""
    first, last = plan.paid_looks.usual_looks
    middle = round(math.sqrt(first * last))
    return min(max(round(middle, 1 - len(str(middle))), first), last), last


def _window_of_item(seconds: int) -> str:
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    if seconds == size:
        return f"{'An' if unit == 'hour' else 'A'} {unit}'s item"
    return f"An item of {_duration(seconds)}"


def _duration(seconds: int) -> str:
    """384 hours are 16 days, but 36 hours stay hours."""
    size, unit = next(
        (size, unit) for size, unit in _UNITS if seconds % size == 0 and (seconds >= 2 * size or unit == "second")
    )
    return counted(seconds // size, unit)
