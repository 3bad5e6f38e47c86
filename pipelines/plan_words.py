"""A plan in one sentence, for readers who know no statistics."""

from __future__ import annotations

import math

from dp_transforms.accounting.charging_plan import ChargingPlan
from dp_transforms.accounting.names_plan import NamesPlan
from dp_transforms.accounting.release_plan import ReleasePlan
from dp_transforms.pipelines.plan_comparison import FOUND

_UNITS = ((604_800, "week"), (86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def in_a_sentence(plan: ReleasePlan) -> str:
    """From how many users on an item is found, for two activities where it depends on them."""
    what = f"{_window_of_item(plan.schedule.window_seconds)} (a story, a search, an error) is found from about"
    run = f"in these {_duration(plan.schedule.end_seconds - plan.schedule.start_seconds)}"
    if isinstance(plan, NamesPlan):
        few, many = _usual(plan)
        first = f"{what} {plan.found_from(few, FOUND):,} users on, if each of them has {_items(few)} {run}"
        return f"{first}." if few == many else f"{first}; from {plan.found_from(many, FOUND):,} if each has {many:,}."
    assert isinstance(plan, ChargingPlan)
    hits = "its one hit is" if plan.hits_per_user == 1 else f"all {plan.hits_per_user:,} hits are"
    return (
        f"{what} {plan.smallest_detectable(FOUND):,} users on, however many items each of them has {run}; a user no"
        f" longer counts once {hits} used up."
    )


def _usual(plan: NamesPlan) -> tuple[int, int]:
    """Two of the usual numbers of looks: the middle one, by powers, as a round number, and the largest."""
    first, last = plan.usual_looks
    middle = round(math.sqrt(first * last))
    return min(max(round(middle, 1 - len(str(middle))), first), last), last


def _items(number: int) -> str:
    return "1 item" if number == 1 else f"{number:,} items"


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
    number = seconds // size
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"
