"""From how many users on an item is found: by a plan, and by the other modes at the same budget.

For comparison alone: no plan depends on it. All holders of the item have equally many pairs (window, item) in the run
(`looks`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

from dp_transforms.accounting.purse.purse_search import HIT_SHARE
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.records import Looks

LOOKS = (1, 10, 100, 1000)  # pairs (window, item) of each holder in the whole run
FOUND = 0.95
# Keys of the methods in JSON, and what tables and pictures call them.
LOOKS_NEW, LOOKS_KNOWN = "looks", "looks_known"
LOOKS_AND_HITS, LOOKS_ALONE = "looks_and_hits", "looks_alone"  # the other of the two for a `LooksPlan`
HITS_TO_COMPARE = 10
TITLES = {
    LOOKS_NEW: "looks, new item",
    LOOKS_KNOWN: "looks, known item",
    LOOKS_AND_HITS: f"looks and {HITS_TO_COMPARE} hits",
    LOOKS_ALONE: "looks alone",
    "hits": "hits",
    "hits-with-counts": "hits-with-counts",
    "kms21": "kms21",
}
FoundFrom = dict[str, dict[int, int]]
_Users = Callable[[int], int]


def found_from(plan: Plan, looks: Iterable[int]) -> FoundFrom:
    """Method -> pairs of each holder -> users, for the mode of the plan alone."""
    return _table(_of_plan(plan), looks)


class Comparison:
    """The plan, and at the same budget, schedule and domain the other modes with their defaults.

    Beside a plan of mode `looks` stands the same with a price for hits, or without one: new items, while none of their
    users is excluded. A mode that the budget cannot pay for is left out.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        methods: dict[str, _Users] = {}
        for mode in (LOOKS_NEW, "hits", "hits-with-counts"):
            of_mode = plan if plan.mode == mode else _in_mode(plan, mode)
            if of_mode is not None:
                methods |= _of_plan(of_mode)
        if plan.looks is not None:
            methods |= _with_other_hits(plan, plan.looks)
        self._methods = methods | _of_plan(plan)

    def found_from(self, looks: Iterable[int]) -> FoundFrom:
        """As the function of this name, for all methods, in the order of `TITLES`."""
        ordered = {key: self._methods[key] for key in TITLES if key in self._methods}
        return _table(ordered, looks)


def likely_hits(looks: int) -> int:
    """So many hits a user with these looks may have."""
    return math.ceil(HIT_SHARE * looks)


def as_json(found: FoundFrom) -> dict[str, dict[str, int]]:
    return {method: {str(looks): users for looks, users in row.items()} for method, row in found.items()}


def _table(methods: dict[str, _Users], looks: Iterable[int]) -> FoundFrom:
    activities = tuple(looks)
    return {method: {number: users(number) for number in activities} for method, users in methods.items()}


def _of_plan(plan: Plan) -> dict[str, _Users]:
    if plan.looks is None:
        return {plan.mode: lambda _: plan.smallest_detectable(FOUND)}
    new = functools.partial(plan.found_from, probability=FOUND)
    if plan.known is None and plan.rounds is None:
        return {LOOKS_NEW: new}
    return {LOOKS_NEW: new, LOOKS_KNOWN: functools.partial(plan.found_from, probability=FOUND, known=True)}


def _with_other_hits(plan: Plan, looks: Looks) -> dict[str, _Users]:
    """With hits if the plan has none, and without if it has; empty if the budget is too small, and for rounds."""
    if len(plan.units_of_rounds) > 1:
        return {}
    hits = 0 if plan.hits else min(HITS_TO_COMPARE, looks.most_looks)
    other = plan.again(
        usual_looks=looks.usual_looks,
        most_looks=looks.most_looks,
        hits_per_user=hits,
        known_error=plan.known_error if plan.domain_size else None,
    )
    return {} if other is None else {LOOKS_AND_HITS if hits else LOOKS_ALONE: _of_plan(other)[LOOKS_NEW]}


def _in_mode(plan: Plan, mode: str) -> Plan | None:
    """The same guarantee in another mode; None if the budget is too small for it."""
    if plan.looks is None and mode != LOOKS_NEW:
        return plan.again(mode, max_items_per_user=plan.charged_hits.max_items_per_user)
    return plan.again(mode)
