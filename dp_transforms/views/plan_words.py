"""What a plan finds: in one sentence for readers who know no statistics, and from how many users on."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import found_in_block, why_one_round
from dp_transforms.views.report_words import counted

FOUND = 0.95  # with this probability
CONTRIBUTIONS = (1, 10, 100, 1000)  # of each holder in the whole run
NEW, FOLLOWED = "new_item", "followed_item"
FoundFrom = dict[str, dict[int, int]]

_UNITS = ((604_800, "week"), (86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def in_a_sentence(plan: Plan) -> str:
    """From how many users on an item is found, for two activities where it depends on them."""
    seconds = plan.schedule.window_seconds if plan.rounds is None else _block_seconds(plan)
    what = f"{_window_of_item(seconds)} (a story, a search, an error) is found from about"
    run = f"in these {_duration(plan.schedule.end_seconds - plan.schedule.start_seconds)}"
    if plan.contributions is not None:
        few, many = _usual(plan)
        users, in_windows = _found_from(plan, few)
        first = f"{what} {users:,} users on{in_windows}, if each of them has {counted(few, 'item')} {run}"
        users, in_windows = _found_from(plan, many)
        return f"{first}." if few == many else f"{first}; from {users:,}{in_windows} if each has {many:,}."
    hits = "its one hit is" if plan.hits_per_user == 1 else f"all {plan.hits_per_user:,} hits are"
    return (
        f"{what} {plan.smallest_detectable(FOUND):,} users on, however many items each of them has {run}; a user no"
        f" longer counts once {hits} used up."
    )


def found_from(plan: Plan, contributions: Iterable[int]) -> FoundFrom:
    """Contributions of each holder -> users from which an item is found in a window: a new and a followed one, or by
    hits."""
    numbers = tuple(contributions)
    if plan.contributions is None:
        return {"hits": dict.fromkeys(numbers, plan.smallest_detectable(FOUND))}
    found = {NEW: {number: plan.found_from(number, FOUND) for number in numbers}}
    if plan.followed is not None or plan.rounds is not None:
        found[FOLLOWED] = {number: plan.found_from(number, FOUND, followed=True) for number in numbers}
    return found


def why(plan: Plan, use: str) -> str:
    """Of a plan of contributions: whether they are tested in rounds, and why."""
    if len(plan.units_of_rounds) > 1:
        return rounds_in_words(plan)
    usual, most = plan.paid_contributions.usual_tests, plan.paid_contributions.most_tests
    number, also_open = plan.public_item_count, plan.takes_open_items
    reason = why_one_round(plan.schedule, usual, most, use, public_items=number, also_open=also_open)
    return f"Contributions are tested in one round: {reason or 'so it was declared, by forget_after or its use'}."


def rounds_in_words(plan: Plan) -> str:
    """What rounds do, and what they find less; or the two tests of a stream."""
    if plan.second_test is not None:
        percent = 100 * plan.units_of_rounds[0] // BUDGET_UNITS
        return (
            f"Each contribution is tested twice in its window: with {percent} % of a user budget first; and what that"
            " neither names nor leaves out, once more with the rest."
        )
    few, _ = _usual(plan)
    return (
        f"Contributions are tested in rounds: first the items of {_duration(_block_seconds(plan))} together, then the"
        " windows of those that many users have. That usually finds more where items stay for several windows; an item"
        f" of one window alone is found from about {plan.found_from(few, FOUND):,} users on."
    )


def _block_seconds(plan: Plan) -> int:
    """A run may be shorter than a block."""
    return min(plan.paid_rounds.block_seconds, plan.schedule.end_seconds - plan.schedule.start_seconds)


def _found_from(plan: Plan, contributions: int) -> tuple[int, str]:
    """With rounds of a block, and then of its windows, in words."""
    if plan.rounds is None:
        return plan.found_from(contributions, FOUND), ""
    in_block = found_in_block(plan, contributions, FOUND)
    in_windows = plan.found_from(contributions, FOUND, followed=True)
    if in_block < in_windows and plan.paid_contributions.least_users is not None:
        return in_windows, ""  # blocks are not published
    return in_block, f" (and then in its windows from {in_windows:,} on)"


def _usual(plan: Plan) -> tuple[int, int]:
    """Two of the usual numbers of contributions: the middle one, by powers, as a round number, and the largest."""
    first, last = plan.paid_contributions.usual_tests
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
